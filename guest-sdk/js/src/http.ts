/** HTTP in and out, over `wasi:http` 0.3, in the manner of the Fetch standard. */

import { replyWithTensor, takeBodyAsTensor } from "weir:inference/request@0.1.0";
import { Fields, Request as RawRequest, Response as RawResponse } from "wasi:http/types@0.3.0";
import "./prelude.ts";
import type { ElementType } from "./elements.ts";
import { asked, InvalidArgument, ResourceExhausted, StatusError, Unavailable, WeirError } from "./errors.ts";
import { sizes, Tensor } from "./tensor.ts";

/** What headers can be given as. */
export type HeadersInit = Iterable<readonly [string, string]> | Record<string, string>;

/** Headers by name, whatever its case. */
export class Headers implements Iterable<[string, string]> {
  private readonly pairs: [string, string][] = [];

  constructor(init: HeadersInit = []) {
    for (const [name, value] of Symbol.iterator in init ? init : Object.entries(init)) this.append(name, value);
  }

  /** All values of a header, joined; null where there is none. */
  get(name: string): string | null {
    const values = this.pairs.filter(([key]) => key === name.toLowerCase()).map(([, value]) => value);
    return values.length ? values.join(", ") : null;
  }

  has(name: string): boolean {
    return this.get(name) !== null;
  }

  /** Replace a header. */
  set(name: string, value: string): void {
    this.delete(name);
    this.append(name, value);
  }

  append(name: string, value: string): void {
    this.pairs.push([name.toLowerCase(), String(value)]);
  }

  delete(name: string): void {
    for (let at = this.pairs.length - 1; at >= 0; at--) {
      if (this.pairs[at]![0] === name.toLowerCase()) this.pairs.splice(at, 1);
    }
  }

  [Symbol.iterator](): Iterator<[string, string]> {
    return this.pairs[Symbol.iterator]();
  }
}

/** What a request is made of in tests. */
export interface RequestInit {
  method?: string;
  headers?: HeadersInit;
  body?: string | Uint8Array;
}

/** A request to answer. Tests make one as `new Request("/shout?loud=1", { method: "POST", body: "hi" })`. */
export class Request {
  /** In capitals: `GET`, `POST`, ... */
  readonly method: string;
  /** The path within the function and the query, as they were sent. */
  readonly url: string;
  readonly headers: Headers;
  private body: RawRequest | Promise<Uint8Array> | undefined;

  constructor(url: string, init: RequestInit | RawRequest = {}) {
    this.url = url;
    if (init instanceof RawRequest) {
      const decoder = new TextDecoder();
      const { tag, val } = init.getMethod();
      this.method = val ?? tag.toUpperCase();
      this.headers = new Headers(
        init.getHeaders().copyAll().map(([name, value]) => [name, decoder.decode(value)] as const),
      );
      this.body = init;
    } else {
      this.method = init.method ?? "GET";
      this.headers = new Headers(init.headers);
      this.body = Promise.resolve(typeof init.body === "string" ? new TextEncoder().encode(init.body) : (init.body ?? new Uint8Array()));
    }
  }

  /** The path within the function, percent-encoded, with the slash at its start and without the query. */
  get path(): string {
    return this.url.split("?", 1)[0] || "/";
  }

  /** The query, decoded. */
  get query(): URLSearchParams {
    return new URLSearchParams(this.url.slice(this.url.split("?", 1)[0]!.length));
  }

  /** The whole body. It enters the function's memory with the first call. */
  async bytes(): Promise<Uint8Array> {
    if (this.body instanceof RawRequest) this.body = received(this.body);
    if (this.body === undefined) throw new InvalidArgument("the body was taken before");
    return this.body;
  }

  /** The body as text. Answers 400 where it is not UTF-8. */
  async text(): Promise<string> {
    const bytes = await this.bytes();
    try {
      return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    } catch {
      throw new StatusError(400, "the body is no text");
    }
  }

  /** The body as JSON. Answers 400 where it is none. */
  async json(): Promise<any> {
    const text = await this.text();
    try {
      return JSON.parse(text);
    } catch (error) {
      throw new StatusError(400, `the body is no JSON: ${(error as Error).message}`);
    }
  }

  /** Take the body as a tensor, without reading it into the function's memory. One dimension may be -1. */
  tensor(type: ElementType, shape: readonly number[] = [-1]): Tensor {
    if (!(this.body instanceof RawRequest)) throw new InvalidArgument("the body was read before");
    // The contract's sign for an open dimension is 0xffffffff.
    const dimensions = sizes(shape.map((size) => (size === -1 ? 0xffffffff : size)));
    const tensor = new Tensor(asked(() => takeBodyAsTensor(type, dimensions)));
    this.body = undefined;
    return tensor;
  }
}

/** What an answer is made of besides its body. */
export interface ResponseInit {
  status?: number;
  headers?: HeadersInit;
}

/**
 * An answer. The body is text, bytes, or a {@link Tensor}, whose bytes do not enter the function's memory. The content type follows from it
 * unless `headers` has one.
 */
export class Response {
  readonly status: number;
  readonly headers: Headers;
  /** @internal */
  readonly body: Uint8Array | Tensor;

  constructor(body: string | Uint8Array | Tensor | null = null, { status = 200, headers = [] }: ResponseInit = {}) {
    this.status = status;
    this.headers = new Headers(headers);
    this.body = typeof body === "string" ? new TextEncoder().encode(body) : (body ?? new Uint8Array());
    const type = typeof body === "string" ? "text/plain; charset=utf-8" : "application/octet-stream";
    if (body !== null && !this.headers.has("content-type")) this.headers.set("content-type", type);
  }

  /** An answer of JSON. Throws a `TypeError` where `value` has no JSON, as functions and symbols have none. */
  static json(value: unknown, init: ResponseInit = {}): Response {
    const text: string | undefined = JSON.stringify(value, plainArrays);
    if (text === undefined) throw new TypeError(`a ${typeof value} cannot be an answer: it has no JSON`);
    const response = new Response(text, init);
    if (!new Headers(init.headers).has("content-type")) response.headers.set("content-type", "application/json");
    return response;
  }

  /** The body as text, for tests. */
  async text(): Promise<string> {
    return new TextDecoder().decode(this.body instanceof Tensor ? this.body.bytes() : this.body);
  }

  /** The body as JSON, for tests. */
  async json(): Promise<any> {
    return JSON.parse(await this.text());
  }
}

/** What a handler may give: an answer, or what makes one. Anything but text, bytes and tensors becomes JSON. */
export type Answer = Response | string | Uint8Array | Tensor | object | null | undefined;

/** A function that answers requests. */
export type Handler = (request: Request) => Answer | Promise<Answer>;

/**
 * Make a component of `handler`. The result is exported as `handler`.
 *
 * A {@link WeirError} that it throws becomes the answer.
 */
export function httpFunction(handler: Handler) {
  return {
    async handle(raw: RawRequest): Promise<RawResponse> {
      const response = await answer(handler, new Request(raw.getPathWithQuery() ?? "/", raw));
      try {
        return sent(response);
      } catch (error) {
        const why = `the answer cannot be sent: status ${response.status}, headers ${JSON.stringify([...response.headers])}`;
        console.error(why, error);
        throw { tag: "internal-error", val: why };
      }
    },
  };
}

/** Call `handler` as the node would: what it gives or throws becomes an answer, and an exception that is no {@link WeirError} is thrown on. */
export async function answer(handler: Handler, request: Request): Promise<Response> {
  try {
    return responseOf(await handler(request));
  } catch (error) {
    if (error instanceof WeirError) return refusal(error);
    console.error(error);
    throw error;
  }
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

/** A typed array is a list to JSON, as a plain one is. */
function plainArrays(_: string, value: unknown): unknown {
  return ArrayBuffer.isView(value) && !(value instanceof DataView) ? Array.from(value as unknown as ArrayLike<number>) : value;
}

async function received(request: RawRequest): Promise<Uint8Array> {
  const done = wit.Future(wit.Future.RESULT_VOID_ERROR_CODE);
  const [stream] = RawRequest.consumeBody(request, done.readable);
  const chunks: Uint8Array[] = [];
  for await (const chunk of stream) chunks.push(chunk);
  if (chunks.length === 1) return chunks[0]!;
  const bytes = new Uint8Array(chunks.reduce((total, chunk) => total + chunk.length, 0));
  let at = 0;
  for (const chunk of chunks) {
    bytes.set(chunk, at);
    at += chunk.length;
  }
  return bytes;
}

function sent({ status, headers, body }: Response): RawResponse {
  const encoder = new TextEncoder();
  if (body instanceof Tensor) asked(() => replyWithTensor(body.raw));
  else headers.set("content-length", String(body.length));
  const fields = Fields.fromList([...headers].map(([name, value]) => [name, encoder.encode(value)]));
  const trailers = wit.Future(wit.Future.RESULT_OPTION_OTHER_ERROR_CODE);
  const contents = body instanceof Tensor || body.length === 0 ? null : [body];
  const [response] = RawResponse.new(fields, contents, trailers.readable);
  response.setStatusCode(status);
  // Sent once the body is: nobody waits for it here.
  void trailers.writable.write({ tag: "ok", val: null });
  return response;
}
