/** HTTP handlers over `wasi:http` 0.3, after the Fetch standard. */

import { replyWithTensor } from "weir:inference/request@0.1.0";
import { Fields, type Request as RawRequest, Response as RawResponse } from "wasi:http/types@0.3.0";
import "./prelude.ts";
import { asked, logged, ResourceExhausted, Unavailable, WeirError } from "./errors.ts";
import { NoAnswer } from "./kinds.ts";
import { Request } from "./request.ts";
import { Response } from "./response.ts";
import { Chunks, type ChunkSource, isSource } from "./streams.ts";
import { Tensor } from "./tensor.ts";

export { Headers, type HeadersInit } from "./headers.ts";
export { Request, type RequestInit } from "./request.ts";
export { EventStream, Response, type ResponseInit } from "./response.ts";
export { type Chunk, type ChunkSource, Event, type EventInit } from "./streams.ts";

/**
 * Result of a handler: a response, or a value that converts to one. A generator, or
 * another iterator of text or bytes, is streamed. Other values than text, bytes and tensors become
 * JSON.
 */
export type Answer = Response | string | Uint8Array | Tensor | ChunkSource | object | null | undefined;

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
      try {
        return sent(response, request);
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
  const response = responseOf(given);
  try {
    await response.start();
  } catch (error) {
    if (error instanceof WeirError) return refusal(error);
    if (!(error instanceof NoAnswer)) console.error(error);
    throw error;
  }
  return response;
}

function responseOf(answer: Answer): Response {
  if (answer instanceof Response) return answer;
  if (answer === null || answer === undefined || typeof answer === "string") return new Response(answer);
  if (answer instanceof Uint8Array || answer instanceof Tensor || isSource(answer)) return new Response(answer);
  return Response.json(answer);
}

function refusal(error: WeirError): Response {
  const later = error instanceof ResourceExhausted || error instanceof Unavailable;
  return new Response(`${error.message}\n`, { status: error.status, headers: later ? { "retry-after": "1" } : {} });
}

/** The outcome of a body that was sent whole. */
const WHOLE = { tag: "ok", val: null };

function sent({ status, headers, body }: Response, request: Request): RawResponse {
  const encoder = new TextEncoder();
  if (body instanceof Tensor) asked(() => replyWithTensor(body.raw));
  else if (body instanceof Uint8Array) headers.set("content-length", String(body.length));
  // A streamed body may read the request.
  if (!(body instanceof Chunks)) ended(request);
  const fields = Fields.fromList([...headers].map(([name, value]) => [name, encoder.encode(value)]));
  // The trailers are sent after the body; the call does not wait for them.
  const { contents, outcome } = body instanceof Chunks ? streamed(body, request) : { contents: whole(body), outcome: WHOLE };
  const trailers = wit.Future.from(outcome, wit.Future.RESULT_OPTION_OTHER_ERROR_CODE);
  const [response, transmitted] = RawResponse.new(fields, contents, trailers.readable);
  transmitted.drop();
  response.setStatusCode(status);
  return response;
}

/** Releases what the call holds, after its response. */
function ended(request: Request): void {
  request.end();
  (globalThis as { __weirClock?: { end(): void } }).__weirClock?.end();
}

function whole(body: Uint8Array | Tensor): Uint8Array[] | null {
  return body instanceof Tensor || body.length === 0 ? null : [body];
}

/** The chunks of a streamed body, and its outcome once it has ended: an error cuts the body off. */
function streamed(body: Chunks, request: Request): { contents: AsyncIterable<Uint8Array>; outcome: Promise<unknown> } {
  let end: (outcome: unknown) => void;
  const outcome = new Promise((resolve) => (end = resolve));
  async function* contents() {
    let result: unknown = WHOLE;
    try {
      yield* body;
    } catch (error) {
      result = { tag: "err", val: unsent("its body ended with an error", error) };
    } finally {
      ended(request);
      end(result);
    }
  }
  return { contents: contents(), outcome };
}
