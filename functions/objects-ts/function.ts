/** Stores and serves named objects, like `../objects`. */

import { NotFound, NotGranted, objects, Tensor } from "weir";
import { type Answer, httpFunction, type Request, Response } from "weir/http";

export async function handle(request: Request): Promise<Answer> {
  const name = request.path.slice(1);
  try {
    switch (request.method) {
      case "GET":
        return objects.get(name).bytes();
      case "PUT":
        objects.put(name, Tensor.from(await request.bytes()), { ttlMs: 60_000 });
        break;
      case "DELETE":
        objects.delete(name);
        break;
      default:
        return new Response("GET, PUT or DELETE\n", { status: 405 });
    }
  } catch (error) {
    if (error instanceof NotFound) return new Response(`${error.message}\n`, { status: 404 });
    if (error instanceof NotGranted) return new Response(`${error.message}\n`, { status: 403 });
    throw error;
  }
  return new Response(null, { status: 204 });
}

export const handler = httpFunction(handle);
