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
    if (!Number.isInteger(status) || status < 200 || status > 599) {
      throw new NoAnswer(`the status ${String(status)} is not from 200 to 599`);
    }
    this.status = status;
    this.headers = new Headers(headers);
    if (!(body === null || typeof body === "string" || body instanceof Uint8Array || body instanceof Tensor)) {
      throw new NoAnswer(`a body is text, a Uint8Array or a Tensor, and this one is ${kindOf(body)}; for JSON, there is Response.json`);
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
    const text = written(value);
    if (text === undefined) throw new NoAnswer(`a ${typeof value} cannot be an answer: it has no JSON`);
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

  /** @internal */
  toJSON(key: string): never {
    throw noJson(key, this, "give await response.json(), or the response itself");
  }

  /** The body as JSON. */
  async json(): Promise<any> {
    return JSON.parse(await this.text());
  }
}

/** What can be no answer: an error of the function that gave it, and no exception in it. */
export class NoAnswer extends TypeError {}

/** `value` as JSON, if it has any. */
function written(value: unknown): string | undefined {
  try {
    return JSON.stringify(value, plain);
  } catch (error) {
    throw error instanceof TypeError ? new NoAnswer(error.message) : error;
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
  [RegExp, "give its source"],
  [WeakMap, "give what is in it"],
  [WeakSet, "give what is in it"],
  [URLSearchParams, "give String(query), or Object.fromEntries(query)"],
];

/** A typed array is a list to JSON, as a plain one is; what has no JSON is refused. */
function plain(key: string, value: unknown): unknown {
  if (typeof value === "bigint") throw noJson(key, value, "give Number(value) or String(value)");
  const instead = NO_JSON.find(([type]) => value instanceof type)?.[1];
  if (instead !== undefined) throw noJson(key, value, instead);
  if (typeof (value as Iterator<unknown> | null)?.next === "function") throw noJson(key, value, "give [...iterator]");
  return ArrayBuffer.isView(value) ? Array.from(value as unknown as ArrayLike<number>) : value;
}
