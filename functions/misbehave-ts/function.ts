/**
 * Misbehaves on request, like `../misbehave`: the path selects the fault. For tests of the
 * consequences.
 */

import { type Answer, httpFunction, type Request, Response } from "weir/http";

export function handle(request: Request): Answer {
  switch (request.path) {
    case "/behave":
      return "ok\n";
    case "/spin":
      return spin();
    case "/hoard":
      return hoard();
    case "/trap":
      return fail();
    case "/wrong":
      // Neither a response nor a value that converts to one.
      return handle;
    case "/status":
      return new Response("", { status: 7 });
  }
  return new Response(`no misbehaviour called ${request.path}\n`, { status: 404 });
}

function spin(): never {
  for (;;);
}

/** Allocates and writes memory until none is left. */
function hoard(): never {
  const kept = [];
  for (;;) kept.push(new Uint8Array(1 << 20).fill(1));
}

function fail(): never {
  throw new RangeError("on purpose");
}

export const handler = httpFunction(handle);
