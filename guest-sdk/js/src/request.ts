/** HTTP requests, after the Fetch standard. */

import { takeBodyAsTensor } from "weir:inference/request@0.1.0";
import { Request as RawRequest } from "wasi:http/types@0.3.0";
import "./prelude.ts";
import { joined } from "./chunks.ts";
import type { ElementType } from "./elements.ts";
import { asked, InvalidArgument, StatusError } from "./errors.ts";
import { Headers, type HeadersInit } from "./headers.ts";
import { noJson } from "./kinds.ts";
import { sizes, Tensor } from "./tensor.ts";

/** Properties of a request created by a test. */
export interface RequestInit {
  method?: string;
  headers?: HeadersInit;
  body?: string | Uint8Array;
}

/**
 * The request to answer. Tests create one with `new Request("/shout?loud=1", { method: "POST",
 * body: "hi" })`.
 */
export class Request {
  /** Method in capitals: `GET`, `POST`, ... */
  readonly method: string;
  /** Path within the function and query, as sent. */
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

  /** Path within the function, percent-encoded, with the leading slash and without the query. */
  get path(): string {
    return this.url.split("?", 1)[0] || "/";
  }

  /** Decoded query. */
  get query(): URLSearchParams {
    return new URLSearchParams(this.url.slice(this.url.split("?", 1)[0]!.length));
  }

  /** The whole body. Enters guest memory on the first call. */
  async bytes(): Promise<Uint8Array> {
    if (this.raw !== undefined) this.body = received(this.raw);
    this.raw = undefined;
    if (this.body === undefined) throw new InvalidArgument("the body was taken before");
    return this.body;
  }

  /** The body as text. The error is a 400 response if the body is not UTF-8. */
  async text(): Promise<string> {
    const bytes = await this.bytes();
    try {
      return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    } catch {
      throw new StatusError(400, "the body is no text");
    }
  }

  /** The body as JSON. The error is a 400 response if the body is not JSON. */
  async json(): Promise<any> {
    const text = await this.text();
    try {
      return JSON.parse(text);
    } catch (error) {
      throw new StatusError(400, `the body is no JSON: ${(error as Error).message}`);
    }
  }

  /**
   * The body in the pieces in which it arrives.
   * @internal
   */
  stream(): AsyncIterable<Uint8Array> {
    if (this.raw === undefined && this.body === undefined) throw new InvalidArgument("the body was taken before");
    const take = () => {
      const { raw, body } = this;
      this.raw = undefined;
      this.body = undefined;
      return { raw, body };
    };
    // The request keeps the body until its first piece is read.
    return (async function* () {
      const { raw, body } = take();
      if (raw !== undefined) yield* pieces(raw);
      else if (body !== undefined) yield await body;
    })();
  }

  /** Takes the body as a tensor, without reading it into guest memory. One dimension may be -1. */
  tensor(type: ElementType, shape: readonly number[] = [-1]): Tensor {
    if (this.raw === undefined) throw new InvalidArgument("the body was read before");
    // The node's encoding of an open dimension is 0xffffffff.
    const dimensions = sizes(shape.map((size) => (size === -1 ? 0xffffffff : size)));
    const tensor = new Tensor(asked(() => takeBodyAsTensor(type, dimensions)));
    this.end();
    return tensor;
  }

  /** @internal */
  toJSON(key: string): never {
    throw noJson(key, this, "give what of it is wanted");
  }

  /**
   * Releases the host's request if its body was not read. In a reused instance, the garbage
   * collector would release it only after the next call.
   * @internal
   */
  end(): void {
    this.raw?.[Symbol.dispose]();
    this.raw = undefined;
  }
}

async function received(request: RawRequest): Promise<Uint8Array> {
  const chunks: Uint8Array[] = [];
  for await (const chunk of pieces(request)) chunks.push(chunk);
  return joined(chunks);
}

async function* pieces(request: RawRequest): AsyncGenerator<Uint8Array, void, undefined> {
  const done = wit.Future.from({ tag: "ok", val: null }, wit.Future.RESULT_VOID_ERROR_CODE);
  const [stream, trailers] = RawRequest.consumeBody(request, done.readable);
  try {
    yield* stream;
  } finally {
    stream.drop();
    trailers.drop();
  }
}
