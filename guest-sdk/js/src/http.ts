/** HTTP handlers over `wasi:http` 0.3, after the Fetch standard. */

import { replyWithTensor } from "weir:inference/request@0.1.0";
import { Fields, type Request as RawRequest, Response as RawResponse } from "wasi:http/types@0.3.0";
import "./prelude.ts";
import { asked, logged, ResourceExhausted, Unavailable, WeirError } from "./errors.ts";
import { Request } from "./request.ts";
import { NoAnswer, Response } from "./response.ts";
import { Tensor } from "./tensor.ts";

export { Headers, type HeadersInit } from "./headers.ts";
export { Request, type RequestInit } from "./request.ts";
export { Response, type ResponseInit } from "./response.ts";

/**
 * Result of a handler: a response, or a value that converts to one. Values other than text,
 * bytes and tensors become JSON.
 */
export type Answer = Response | string | Uint8Array | Tensor | object | null | undefined;

/** A handler of HTTP requests. */
export type Handler = (request: Request) => Answer | Promise<Answer>;

/**
 * Makes an HTTP component of `handler`. Export the result as `handler`.
 *
 * A {@link WeirError} that the handler throws becomes the response.
 */
export function httpFunction(handler: Handler) {
  return {
    async handle(raw: RawRequest): Promise<RawResponse> {
      const request = new Request(raw.getPathWithQuery() ?? "/", raw);
      const response = await answer(handler, request).catch((error) => {
        throw error instanceof NoAnswer ? unsent(error.message) : logged();
      });
      request.end();
      try {
        return sent(response);
      } catch (error) {
        throw unsent(`status ${response.status}, headers ${JSON.stringify([...response.headers])}`, error);
      }
    },
  };
}

/** The error that ends a call whose response cannot be sent. Logs the reason. */
function unsent(why: string, ...errors: unknown[]): { tag: string; val: string } {
  const text = `the answer cannot be sent: ${why}`;
  console.error("%s", text, ...errors);
  return { tag: "internal-error", val: text };
}

/**
 * Calls `handler` in the same way as the node: converts its result or error to a response, and
 * rethrows exceptions other than {@link WeirError}.
 */
export async function answer(handler: Handler, request: Request): Promise<Response> {
  let given: Answer;
  try {
    given = await handler(request);
  } catch (error) {
    if (error instanceof WeirError) return refusal(error);
    if (!(error instanceof NoAnswer)) console.error(error);
    throw error;
  }
  return responseOf(given);
}

function responseOf(answer: Answer): Response {
  if (answer instanceof Response) return answer;
  if (answer === null || answer === undefined || typeof answer === "string") return new Response(answer);
  if (answer instanceof Uint8Array || answer instanceof Tensor) return new Response(answer);
  return Response.json(answer);
}

function refusal(error: WeirError): Response {
  const later = error instanceof ResourceExhausted || error instanceof Unavailable;
  return new Response(`${error.message}\n`, { status: error.status, headers: later ? { "retry-after": "1" } : {} });
}

function sent({ status, headers, body }: Response): RawResponse {
  const encoder = new TextEncoder();
  if (body instanceof Tensor) asked(() => replyWithTensor(body.raw));
  else headers.set("content-length", String(body.length));
  const fields = Fields.fromList([...headers].map(([name, value]) => [name, encoder.encode(value)]));
  // The trailers are sent after the body; the call does not wait for them.
  const trailers = wit.Future.from({ tag: "ok", val: null }, wit.Future.RESULT_OPTION_OTHER_ERROR_CODE);
  const contents = body instanceof Tensor || body.length === 0 ? null : [body];
  const [response, transmitted] = RawResponse.new(fields, contents, trailers.readable);
  transmitted.drop();
  response.setStatusCode(status);
  return response;
}
