/** Requests, answers and their headers, in the manner of the Fetch standard. */

import { takeBodyAsTensor } from "weir:inference/request@0.1.0";
import { Request as RawRequest } from "wasi:http/types@0.3.0";
import "./prelude.ts";
import type { ElementType } from "./elements.ts";
import { asked, InvalidArgument, StatusError } from "./errors.ts";
import { kindOf, noJson } from "./kinds.ts";
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
  /** The host's request, until its body is read. */
  private raw: RawRequest | undefined;
  private body: Promise<Uint8Array> | undefined;

  constructor(url: string, init: RequestInit | RawRequest = {}) {
    this.url = url;
    if (init instanceof RawRequest) {
      const decoder = new TextDecoder();
      const { tag, val } = init.getMethod();
      this.method = val ?? tag.toUpperCase();
      const fields = init.getHeaders();
      this.headers = new Headers(fields.copyAll().map(([name, value]) => [name, decoder.decode(value)] as const));
      fields[Symbol.dispose]();
      this.raw = init;
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
    if (this.raw !== undefined) this.body = received(this.raw);
    this.raw = undefined;
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
    if (this.raw === undefined) throw new InvalidArgument("the body was read before");
    // The contract's sign for an open dimension is 0xffffffff.
    const dimensions = sizes(shape.map((size) => (size === -1 ? 0xffffffff : size)));
    const tensor = new Tensor(asked(() => takeBodyAsTensor(type, dimensions)));
    this.end();
    return tensor;
  }

  /**
   * Give the host's request back, if its body was not read. The collector would do that too, but not before the next call of an instance that
   * is used again.
   * @internal
   */
  end(): void {
    this.raw?.[Symbol.dispose]();
    this.raw = undefined;
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
    if (!(body === null || typeof body === "string" || body instanceof Uint8Array || body instanceof Tensor)) {
      throw new TypeError(`a body is text, a Uint8Array or a Tensor, and this one is ${kindOf(body)}; for JSON, there is Response.json`);
    }
    this.body = typeof body === "string" ? new TextEncoder().encode(body) : (body ?? new Uint8Array());
    const type = typeof body === "string" ? "text/plain; charset=utf-8" : "application/octet-stream";
    if (body !== null && !this.headers.has("content-type")) this.headers.set("content-type", type);
  }

  /**
   * An answer of JSON; typed arrays are lists in it. Throws a `TypeError` where something in `value` has none: functions, bigints, tensors,
   * maps, sets, errors, buffers and promises.
   */
  static json(value: unknown, init: ResponseInit = {}): Response {
    const text: string | undefined = JSON.stringify(value, plain);
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

/** What `JSON.stringify` makes `{}` of, and what to give instead. */
const NO_JSON: [new (...parts: never) => object, string][] = [
  [Map, "give Object.fromEntries(map)"],
  [Set, "give [...set]"],
  [Error, "give its message, or throw it"],
  [ArrayBuffer, "give new Uint8Array(buffer)"],
  [DataView, "give new Uint8Array(view.buffer)"],
  [Promise, "await it"],
];

/** A typed array is a list to JSON, as a plain one is; what has no JSON is refused. */
function plain(key: string, value: unknown): unknown {
  if (typeof value === "bigint") throw noJson(key, value, "give Number(value) or String(value)");
  const instead = NO_JSON.find(([type]) => value instanceof type)?.[1];
  if (instead !== undefined) throw noJson(key, value, instead);
  return ArrayBuffer.isView(value) ? Array.from(value as unknown as ArrayLike<number>) : value;
}

async function received(request: RawRequest): Promise<Uint8Array> {
  const done = wit.Future.from({ tag: "ok", val: null }, wit.Future.RESULT_VOID_ERROR_CODE);
  const [stream, trailers] = RawRequest.consumeBody(request, done.readable);
  const chunks: Uint8Array[] = [];
  for await (const chunk of stream) chunks.push(chunk);
  stream.drop();
  trailers.drop();
  if (chunks.length === 1) return chunks[0]!;
  const bytes = new Uint8Array(chunks.reduce((total, chunk) => total + chunk.length, 0));
  let at = 0;
  for (const chunk of chunks) {
    bytes.set(chunk, at);
    at += chunk.length;
  }
  return bytes;
}
