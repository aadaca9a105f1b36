/**
 * WebSockets. The node speaks the protocol with the client; the function reads and writes whole
 * messages.
 *
 * ```ts
 * import { httpFunction } from "weir/http";
 * import { upgradeWebSocket } from "weir/websocket";
 *
 * export const handler = httpFunction((request) =>
 *   upgradeWebSocket(request, async (socket) => {
 *     for await (const message of socket) await socket.send(message);
 *   }),
 * );
 * ```
 *
 * @module
 */

import "./prelude.ts";
import { StatusError, WeirError } from "./errors.ts";
import { type Close, decode, encode, encodeClose, type Entry, type Message } from "./records.ts";
import type { Request } from "./request.ts";
import { Response } from "./response.ts";
import { SocketChunks } from "./streams.ts";

export type { Close, Message } from "./records.ts";

const MEDIA_TYPE = "application/vnd.weir.websocket";

/** Serves a WebSocket. It is closed when the handler is done: with code 1011 after an exception. */
export type SocketHandler = (socket: WebSocket) => void | Promise<void>;

/** Options of {@link upgradeWebSocket}. */
export interface UpgradeOptions {
  /** One of the subprotocols that the client offers. */
  protocol?: string;
}

/** A record that waits for the node. */
interface Outgoing {
  record: Uint8Array;
  taken(): void;
}

/**
 * An open WebSocket, the argument of a {@link SocketHandler}. Iterate over it to receive the messages
 * of the client until it is closed.
 */
export class WebSocket implements AsyncIterable<Message> {
  /** Why the WebSocket was closed; undefined while it is open. */
  closed: Close | undefined;
  private readonly entries: AsyncIterator<Entry>;
  private readonly outgoing: Outgoing[] = [];
  private wake: () => void = () => {};
  private isEnding = false;

  /** @internal */
  constructor(pieces: AsyncIterable<Uint8Array>) {
    this.entries = decode(pieces)[Symbol.asyncIterator]();
  }

  /** Waits for the next message. Undefined: the WebSocket is closed, and `closed` has the reason. */
  async receive(): Promise<Message | undefined> {
    if (this.closed !== undefined) return undefined;
    const next = await this.entries.next();
    if (next.done) this.closed = { code: 1006, reason: "" };
    else if ("message" in next.value) return next.value.message;
    else this.closed = next.value.close;
    return undefined;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Message, void, undefined> {
    for (let message = await this.receive(); message !== undefined; message = await this.receive()) yield message;
  }

  /**
   * Sends a message: text, or a `Uint8Array`. Await the result, so that a client that reads slowly slows
   * the function down: it resolves when the node has taken the message.
   */
  async send(message: Message): Promise<void> {
    if (this.closed !== undefined || this.isEnding) throw new StatusError(500, "the WebSocket is closed");
    await this.write(encode(message));
  }

  /** Closes the WebSocket with a code and a reason of at most 123 bytes. */
  async close(code = 1000, reason = ""): Promise<void> {
    if (this.isEnding) return;
    const record = encodeClose({ code, reason });
    this.isEnding = true;
    await this.write(record);
  }

  private write(record: Uint8Array): Promise<void> {
    return new Promise((taken) => {
      this.outgoing.push({ record, taken });
      this.wake();
    });
  }

  /**
   * The body of the response: the records that `handler` sends.
   * @internal
   */
  async *serve(handler: SocketHandler): AsyncGenerator<Uint8Array, void, undefined> {
    let isDone = false;
    void run(this, handler).then(() => {
      isDone = true;
      this.wake();
    });
    try {
      for (;;) {
        const next = this.outgoing.shift();
        if (next !== undefined) {
          yield next.record;
          next.taken();
        } else if (isDone) {
          return;
        } else {
          await new Promise<void>((wake) => (this.wake = wake));
        }
      }
    } finally {
      // Releases the request.
      void this.entries.return?.();
    }
  }
}

async function run(socket: WebSocket, handler: SocketHandler): Promise<void> {
  let code = 1000;
  try {
    await handler(socket);
  } catch (error) {
    // A message that was sent after the client had closed is no failure.
    if (!(error instanceof WeirError && socket.closed !== undefined)) {
      console.error(error);
      code = 1011;
    }
  }
  if (socket.closed === undefined) void socket.close(code);
}

/**
 * Accepts a WebSocket, and serves it with `handler`. Throws an error that is a 426 response if the
 * request does not open a WebSocket.
 */
export function upgradeWebSocket(request: Request, handler: SocketHandler, { protocol }: UpgradeOptions = {}): Response {
  if (!isWebSocket(request)) throw new StatusError(426, "this is a WebSocket: connect with a WebSocket client");
  const headers: Record<string, string> = { "content-type": MEDIA_TYPE };
  if (protocol !== undefined) headers["sec-websocket-protocol"] = protocol;
  return new Response(new SocketChunks(new WebSocket(request.stream()).serve(handler)), { headers });
}

/** Whether the request opens a WebSocket. */
export function isWebSocket(request: Request): boolean {
  return request.headers.get("content-type") === MEDIA_TYPE;
}

/** The subprotocols that the client offers, in its order. */
export function protocols(request: Request): string[] {
  const offered = (request.headers.get("sec-websocket-protocol") ?? "").split(",");
  return offered.map((name) => name.trim()).filter((name) => name !== "");
}
