/**
 * Records of the bodies of a WebSocket: one byte for the kind, the length of the payload as four bytes
 * in little-endian order, and the payload.
 */

import "./prelude.ts";
import { joined } from "./chunks.ts";

const TEXT = 1;
const BINARY = 2;
const CLOSE = 8;
const HEAD = 5;
/** RFC 6455, section 5.5. */
const REASON_BYTES_MAX = 123;

/** A message of a WebSocket. */
export type Message = string | Uint8Array;

/** The reason why a WebSocket was closed (RFC 6455, section 7.4). */
export interface Close {
  /** 1000: a normal end; 1001: the node stops; 1005: the client sent no code; 1006: the connection was lost. */
  code: number;
  /** Reason, for people. */
  reason: string;
}

/** A record of the request body. */
export type Entry = { message: Message } | { close: Close };

/** The record of a message. */
export function encode(message: Message): Uint8Array {
  if (typeof message === "string") return record(TEXT, new TextEncoder().encode(message));
  if (message instanceof Uint8Array) return record(BINARY, message);
  throw new TypeError("a message is text or a Uint8Array");
}

/** The record of a close. */
export function encodeClose({ code, reason }: Close): Uint8Array {
  const text = new TextEncoder().encode(reason);
  if (text.length > REASON_BYTES_MAX) {
    throw new RangeError(`the reason of a close has at most ${REASON_BYTES_MAX} bytes, and not ${text.length}`);
  }
  return record(CLOSE, joined([Uint8Array.of(code & 0xff, code >> 8), text]));
}

function record(kind: number, payload: Uint8Array): Uint8Array {
  const bytes = new Uint8Array(HEAD + payload.length);
  const view = new DataView(bytes.buffer);
  view.setUint8(0, kind);
  view.setUint32(1, payload.length, true);
  bytes.set(payload, HEAD);
  return bytes;
}

/** The records of a body that arrives in pieces. */
export async function* decode(pieces: AsyncIterable<Uint8Array>): AsyncGenerator<Entry, void, undefined> {
  let waiting: Uint8Array[] = [];
  let length = 0;
  let needed = HEAD;
  for await (const piece of pieces) {
    waiting.push(piece);
    length += piece.length;
    if (length < needed) continue;
    let bytes = joined(waiting);
    for (;;) {
      needed = bytes.length < HEAD ? HEAD : HEAD + sizeOf(bytes);
      if (bytes.length < needed) break;
      yield entry(bytes[0]!, bytes.slice(HEAD, needed));
      bytes = bytes.subarray(needed);
    }
    waiting = [bytes];
    length = bytes.length;
  }
}

function sizeOf(bytes: Uint8Array): number {
  return new DataView(bytes.buffer, bytes.byteOffset).getUint32(1, true);
}

function entry(kind: number, payload: Uint8Array): Entry {
  const text = (bytes: Uint8Array) => new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  if (kind === TEXT) return { message: text(payload) };
  if (kind === BINARY) return { message: payload };
  if (kind === CLOSE && payload.length >= 2) {
    return { close: { code: payload[0]! | (payload[1]! << 8), reason: text(payload.subarray(2)) } };
  }
  throw new TypeError(`the body has a record of the unknown kind ${kind}`);
}
