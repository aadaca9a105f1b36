/** Echoes the request body, like ../echo-body. */

import { httpFunction } from "weir/http";

export const handler = httpFunction((request) => request.bytes());
