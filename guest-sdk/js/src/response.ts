/** Answers, those that a function gives and those that it is given, in the manner of the Fetch standard. */

import "./prelude.ts";
import { Headers, type HeadersInit } from "./headers.ts";
import { kindOf, noJson } from "./kinds.ts";
import { Tensor } from "./tensor.ts";

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
  /** Where it is from in the end, if it was fetched. */
  readonly url: string = "";
  private readonly contents: Uint8Array | Tensor;

  constructor(body: string | Uint8Array | Tensor | null = null, { status = 200, headers = [] }: ResponseInit = {}) {
    this.status = status;
    this.headers = new Headers(headers);
    if (!(body === null || typeof body === "string" || body instanceof Uint8Array || body instanceof Tensor)) {
      throw new TypeError(`a body is text, a Uint8Array or a Tensor, and this one is ${kindOf(body)}; for JSON, there is Response.json`);
    }
    this.contents = typeof body === "string" ? new TextEncoder().encode(body) : (body ?? new Uint8Array());
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

  /** Whether the status is one of success. */
  get ok(): boolean {
    return this.status >= 200 && this.status < 300;
  }

  /** @internal */
  get body(): Uint8Array | Tensor {
    return this.contents;
  }

  /** The whole body. */
  async bytes(): Promise<Uint8Array> {
    return this.body instanceof Tensor ? this.body.bytes() : this.body;
  }

  /** The whole body. */
  async arrayBuffer(): Promise<ArrayBuffer> {
    return (await this.bytes()).slice().buffer as ArrayBuffer;
  }

  /** The body as text. */
  async text(): Promise<string> {
    return new TextDecoder().decode(await this.bytes());
  }

  /** The body as JSON. */
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
