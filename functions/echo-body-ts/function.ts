/** Echoes the request body, like ../echo-body. */

import { httpFunction, type Request } from "weir/http";

export function handle(request: Request): Promise<Uint8Array> {
  return request.bytes();
}

export const handler = httpFunction(handle);
