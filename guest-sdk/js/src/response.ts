/** HTTP responses of handlers and of `fetch`, after the Fetch standard. */

import "./prelude.ts";
import { Headers, type HeadersInit } from "./headers.ts";
import { kindOf, NoAnswer, noJson } from "./kinds.ts";
import { Chunks, type ChunkSource, Event, isSource } from "./streams.ts";
import { Tensor } from "./tensor.ts";

/** Properties of a response besides its body. */
export interface ResponseInit {
  status?: number;
  headers?: HeadersInit;
}

/**
 * A response. The body is text, bytes, a {@link Tensor}, whose bytes stay on the node and do not
 * enter guest memory, or an iterator of text or bytes, such as a generator. The content type follows
 * from the body unless `headers` sets one.
 *
 * The chunks of an iterator are sent as it gives them, and it may be asynchronous. It advances when
 * the node has taken the last chunk, so a slow client holds it back. The response starts with the
 * first chunk: a `WeirError` thrown before it becomes the response. A later exception cuts the body
 * off.
 */
export class Response {
  readonly status: number;
  readonly headers: Headers;
  /** Final URL of a fetched response. */
  readonly url: string = "";
  private contents: Uint8Array | Tensor | Chunks;
  private whole: Promise<Uint8Array> | undefined;

  constructor(body: string | Uint8Array | Tensor | ChunkSource | Chunks | null = null, { status = 200, headers = [] }: ResponseInit = {}) {
    if (!Number.isInteger(status) || status < 200 || status > 599) {
      throw new NoAnswer(`the status ${String(status)} is not from 200 to 599`);
    }
    this.status = status;
    this.headers = new Headers(headers);
    if (body instanceof Chunks) {
      this.contents = body;
      return;
    }
    if (isSource(body)) {
      // The content type is that of the first chunk.
      this.contents = new Chunks(body);
      return;
    }
    if (!(body === null || typeof body === "string" || body instanceof Uint8Array || body instanceof Tensor)) {
      throw new NoAnswer(`a body is text, a Uint8Array or a Tensor, and this one is ${kindOf(body)}; for JSON, there is Response.json`);
    }
    this.contents = typeof body === "string" ? new TextEncoder().encode(body) : (body ?? new Uint8Array());
    const type = typeof body === "string" ? "text/plain; charset=utf-8" : "application/octet-stream";
    if (body !== null) this.defaultType(type);
  }

  private defaultType(type: string): void {
    if (!this.headers.has("content-type")) this.headers.set("content-type", type);
  }

  /**
   * Runs a streamed body up to its first chunk.
   * @internal
   */
  async start(): Promise<void> {
    if (!(this.contents instanceof Chunks)) return;
    this.defaultType((await this.contents.start()) ? "text/plain; charset=utf-8" : "application/octet-stream");
  }

  /**
   * Creates a JSON response; typed arrays become lists. Throws a `TypeError` if `value` contains
   * something without a JSON form: functions, bigints, tensors, maps, sets, errors, buffers or
   * promises.
   */
  static json(value: unknown, init: ResponseInit = {}): Response {
    const text = written(value);
    if (text === undefined) throw new NoAnswer(`a ${typeof value} cannot be an answer: it has no JSON`);
    const response = new Response(text, init);
    if (!new Headers(init.headers).has("content-type")) response.headers.set("content-type", "application/json");
    return response;
  }

  /** Whether the status is a success. */
  get ok(): boolean {
    return this.status >= 200 && this.status < 300;
  }

  /** @internal */
  get body(): Uint8Array | Tensor | Chunks {
    return this.contents;
  }

  /** The whole body. Runs a streamed body to its end. */
  async bytes(): Promise<Uint8Array> {
    const { contents } = this;
    // All readers get the bytes of one run of the source.
    if (contents instanceof Chunks) return (this.whole ??= contents.bytes().then((bytes) => (this.contents = bytes)));
    return contents instanceof Tensor ? contents.bytes() : contents;
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

/**
 * A response of server-sent events, each sent as soon as `events` gives it: {@link Event}s, or their
 * data.
 *
 * ```ts
 * async function* count() {
 *   for (let n = 0; n < 3; n++) yield new Event({ n }, { event: "count" });
 * }
 * export const handler = httpFunction(() => new EventStream(count()));
 * ```
 */
export class EventStream extends Response {
  constructor(events: AsyncIterable<unknown> | Iterable<unknown>, init: Omit<ResponseInit, "status"> = {}) {
    super(encodedEvents(events), init);
    for (const [name, value] of [["content-type", "text/event-stream"], ["cache-control", "no-cache"]] as const) {
      if (!this.headers.has(name)) this.headers.set(name, value);
    }
  }
}

async function* encodedEvents(events: AsyncIterable<unknown> | Iterable<unknown>): AsyncGenerator<string, void, undefined> {
  for await (const event of events) yield (event instanceof Event ? event : new Event(event)).encode(eventData);
}

function eventData(data: unknown): string {
  const text = written(data);
  if (text === undefined) throw new NoAnswer(`the data of an event is ${kindOf(data)}, which has no JSON`);
  return text;
}

/** `value` as JSON, or undefined if it has no JSON form. */
function written(value: unknown): string | undefined {
  try {
    return JSON.stringify(value, plain);
  } catch (error) {
    throw error instanceof TypeError ? new NoAnswer(error.message) : error;
  }
}

/** Types that `JSON.stringify` converts to `{}`, and suggestions. */
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

/**
 * Replacer for `JSON.stringify`: converts typed arrays to lists, and rejects values without a
 * JSON form.
 */
function plain(key: string, value: unknown): unknown {
  if (typeof value === "bigint") throw noJson(key, value, "give Number(value) or String(value)");
  const instead = NO_JSON.find(([type]) => value instanceof type)?.[1];
  if (instead !== undefined) throw noJson(key, value, instead);
  if (typeof (value as Iterator<unknown> | null)?.next === "function") throw noJson(key, value, "give [...iterator]");
  return ArrayBuffer.isView(value) ? Array.from(value as unknown as ArrayLike<number>) : value;
}
