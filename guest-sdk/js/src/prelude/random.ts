/** Random numbers from the node, different in every instance. */

import { getRandomBytes } from "wasi:random/random@0.2.12";

/** Limit of the Web Crypto standard per call. */
const BYTES_MAX = 65536;

/** Fills `array` with random bytes. */
export function getRandomValues<T extends ArrayBufferView>(array: T): T {
  if (array.byteLength > BYTES_MAX) throw new RangeError(`at most ${BYTES_MAX} random bytes are given at once`);
  new Uint8Array(array.buffer, array.byteOffset, array.byteLength).set(getRandomBytes(array.byteLength));
  return array;
}

/** A random UUID, version 4. */
export function randomUUID(): string {
  const bytes = getRandomBytes(16);
  bytes[6] = (bytes[6]! & 0x0f) | 0x40;
  bytes[8] = (bytes[8]! & 0x3f) | 0x80;
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join("-");
}

/** A random number from 0 up to but not including 1, with all 53 bits random. */
export function random(): number {
  const bits = new DataView(getRandomBytes(8).slice().buffer);
  return ((bits.getUint32(0) >>> 5) * 2 ** 26 + (bits.getUint32(4) >>> 6)) / 2 ** 53;
}
