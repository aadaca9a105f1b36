/**
 * `{{ name }}` answers HTTP requests. Every request runs on a fresh copy of the engine:
 * variables do not keep their values between requests.
 */

import { StatusError } from "weir";
import { httpFunction } from "weir/http";

export async function handle(request) {
  switch (`${request.method} ${request.path}`) {
    case "GET /":
      return "hello from {{ name }}\n";
    case "POST /shout": {
      const text = shout(await request.text());
      // Standard output and error go to `weir logs {{ name }}`.
      console.log(`shouted ${new TextEncoder().encode(text).length} bytes`);
      return text;
    }
    default:
      throw new StatusError(404, "there are GET / and POST /shout");
  }
}

function shout(text) {
  return text.toUpperCase();
}

export const handler = httpFunction(handle);
