/** Answers with the request's body, as ../echo-body does. */

import { httpFunction } from "weir/http";

export const handler = httpFunction((request) => request.bytes());
