/** Bodies that are sent while the function makes them, and server-sent events. */

import "./prelude.ts";
import { joined } from "./chunks.ts";
import { kindOf, NoAnswer } from "./kinds.ts";

/** A part of a streamed body. */
export type Chunk = string | Uint8Array;

/** The chunks of a streamed body: a generator, asynchronous or not, or another iterator. */
export type ChunkSource = AsyncIterable<Chunk> | IterableIterator<Chunk>;

/** Whether `value` is a source of chunks. Lists, maps and sets are values. */
export function isSource(value: unknown): value is ChunkSource {
  if (typeof value !== "object" || value === null) return false;
  return Symbol.asyncIterator in value || (Symbol.iterator in value && "next" in value && typeof value.next === "function");
}

/**
 * The encoded chunks of a body. The source advances only when the node takes the next chunk, and
 * ends with the body.
 */
export class Chunks implements AsyncIterable<Uint8Array> {
  private readonly source: AsyncIterator<Chunk> | Iterator<Chunk>;
  private first: IteratorResult<Chunk> | undefined;

  constructor(source: ChunkSource) {
    this.source = Symbol.asyncIterator in source ? source[Symbol.asyncIterator]() : source[Symbol.iterator]();
  }

  /**
   * Advances to the first chunk, so that an error before it becomes an error response. Returns
   * whether the chunk is text.
   */
  async start(): Promise<boolean> {
    this.first = await this.source.next();
    const { done, value } = this.first;
    if (!done && !isChunk(value)) {
      await this.source.return?.();
      throw new NoAnswer(`${noChunk(value)}; for JSON, give [...iterator]`);
    }
    return done || typeof value === "string";
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Uint8Array, void, undefined> {
    let isOver = false;
    try {
      for (;;) {
        // A source that throws is over.
        isOver = true;
        const { done, value } = this.first ?? (await this.source.next());
        this.first = undefined;
        if (done) return;
        isOver = false;
        const bytes = encoded(value);
        // An empty chunk would end the body.
        if (bytes.length > 0) yield bytes;
      }
    } finally {
      // The body ends early: the client is gone, or a chunk cannot be sent.
      if (!isOver) await this.source.return?.();
    }
  }

  /** All chunks as one. */
  async bytes(): Promise<Uint8Array> {
    const chunks: Uint8Array[] = [];
    for await (const chunk of this) chunks.push(chunk);
    return joined(chunks);
  }
}

/** The records of a WebSocket: its response starts before the first of them. */
export class SocketChunks extends Chunks {
  override async start(): Promise<boolean> {
    return false;
  }
}

function encoded(chunk: unknown): Uint8Array {
  if (!isChunk(chunk)) throw new TypeError(noChunk(chunk));
  return typeof chunk === "string" ? new TextEncoder().encode(chunk) : chunk;
}

function isChunk(value: unknown): value is Chunk {
  return typeof value === "string" || value instanceof Uint8Array;
}

function noChunk(value: unknown): string {
  return `a chunk of a body is text or a Uint8Array, and this one is ${kindOf(value)}`;
}

/** Fields of an {@link Event} besides its data. */
export interface EventInit {
  /** Kind of event, for which clients listen; `message` if unset. */
  event?: string;
  /** The client sends the last id in the header `last-event-id` when it connects again. */
  id?: string;
  /** Time in milliseconds after which a client that lost its connection connects again. */
  retry?: number;
  /** Text that clients ignore, for example to keep an idle connection open. */
  comment?: string;
}

/** The line ends of server-sent events. */
const LINE_END = /\r\n|\r|\n/;

/**
 * A server-sent event. `data` is text of any number of lines, or a value that becomes JSON;
 * undefined for an event without data.
 */
export class Event {
  constructor(
    readonly data: unknown,
    readonly init: EventInit = {},
  ) {
    for (const name of ["event", "id"] as const) {
      const value = init[name];
      if (value !== undefined && (typeof value !== "string" || LINE_END.test(value) || value.includes("\0"))) {
        throw new TypeError(`the ${name} of an event is a single line of text, and not ${JSON.stringify(value)}`);
      }
    }
    if (init.retry !== undefined && !(Number.isInteger(init.retry) && init.retry >= 0)) {
      throw new TypeError(`the retry of an event is a whole number of milliseconds, and not ${String(init.retry)}`);
    }
  }

  /** The event as it is sent. `json` converts data other than text. */
  encode(json: (data: unknown) => string = JSON.stringify): string {
    const { event, id, retry, comment } = this.init;
    const lines = comment?.split(LINE_END).map((line) => `: ${line}`) ?? [];
    for (const [name, value] of Object.entries({ event, id, retry })) {
      if (value !== undefined) lines.push(`${name}: ${value}`);
    }
    if (this.data !== undefined) {
      const text = typeof this.data === "string" ? this.data : json(this.data);
      lines.push(...text.split(LINE_END).map((line) => `data: ${line}`));
    }
    return [...lines, "", ""].join("\n");
  }
}
