/** Element types of tensors, and the corresponding typed arrays. */

import { InvalidArgument } from "./errors.ts";

/**
 * Typed array of each numeric type. Booleans are bytes of 0 and 1; half floats are converted to
 * and from fp32.
 */
interface Arrays {
  bool: Uint8Array;
  uint8: Uint8Array;
  uint16: Uint16Array;
  uint32: Uint32Array;
  uint64: BigUint64Array;
  int8: Int8Array;
  int16: Int16Array;
  int32: Int32Array;
  int64: BigInt64Array;
  fp16: Float32Array;
  bf16: Float32Array;
  fp32: Float32Array;
  fp64: Float64Array;
}

/** Element types of the Open Inference Protocol, named as in WIT. */
export type ElementType = keyof Arrays | "bytes";

/** Return type of {@link Tensor.values} for an element type. */
export type Values<T extends ElementType = ElementType> = T extends keyof Arrays ? Arrays[T] : never;

/** Any supported typed array. */
export type TypedArray = Arrays[keyof Arrays] | Uint8ClampedArray;

type Constructor = { new (contents: ArrayBuffer | number): TypedArray; readonly BYTES_PER_ELEMENT: number };

/** Arrays by element type. Half floats and byte strings have none. */
export const ARRAYS: Record<string, Constructor> = {
  bool: Uint8Array,
  uint8: Uint8Array,
  uint16: Uint16Array,
  uint32: Uint32Array,
  uint64: BigUint64Array,
  int8: Int8Array,
  int16: Int16Array,
  int32: Int32Array,
  int64: BigInt64Array,
  fp32: Float32Array,
  fp64: Float64Array,
};

/** Size of an element in bytes; undefined for byte strings, which vary in length. */
export function sizeBytes(type: ElementType): number | undefined {
  return type === "fp16" || type === "bf16" ? 2 : ARRAYS[type]?.BYTES_PER_ELEMENT;
}

/** Element type of a typed array. */
export function typeOf(values: TypedArray): ElementType {
  if (values instanceof Uint8ClampedArray) return "uint8";
  const found = Object.entries(ARRAYS).find(([type, array]) => type !== "bool" && values instanceof array);
  if (found === undefined) throw new InvalidArgument("the values are in no typed array that a tensor can hold");
  return found[0] as ElementType;
}

/** Encodes `values` as tensor data of `type`. A typed array of another type is converted. */
export function pack(type: ElementType, values: TypedArray): Uint8Array {
  if (type === "fp16" || type === "bf16") return narrow(type, numbers(type, values));
  const own = ARRAYS[type];
  if (own === undefined) throw new InvalidArgument("byte strings are made with Tensor.fromStrings");
  const fits = values instanceof own || (own === Uint8Array && values instanceof Uint8ClampedArray);
  if (!fits) throw new InvalidArgument(`a tensor of ${type} takes a ${(own as unknown as { name: string }).name}`);
  return new Uint8Array(values.buffer as ArrayBuffer, values.byteOffset, values.byteLength);
}

/** Decodes tensor data. */
export function unpack(type: ElementType, bytes: Uint8Array): TypedArray {
  if (type === "fp16" || type === "bf16") return widen(type, bytes);
  const own = ARRAYS[type];
  if (own === undefined) throw new InvalidArgument("the tensor holds bytes and not numbers");
  // Copies the bytes if they are not aligned for the element type.
  const whole = bytes.byteOffset === 0 && bytes.byteLength === bytes.buffer.byteLength;
  return new own((whole ? bytes : bytes.slice()).buffer as ArrayBuffer);
}

/**
 * Encodes byte strings as tensor data: each is prefixed with its length as four little-endian
 * bytes.
 */
export function joinStrings(strings: Uint8Array[]): Uint8Array {
  const bytes = new Uint8Array(strings.reduce((total, string) => total + 4 + string.length, 0));
  const view = new DataView(bytes.buffer);
  let at = 0;
  for (const string of strings) {
    view.setUint32(at, string.length, true);
    bytes.set(string, at + 4);
    at += 4 + string.length;
  }
  return bytes;
}

/** Decodes byte strings. */
export function splitStrings(bytes: Uint8Array): Uint8Array[] {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const strings: Uint8Array[] = [];
  let at = 0;
  while (at < bytes.length) {
    const end = at + 4 <= bytes.length ? at + 4 + view.getUint32(at, true) : Infinity;
    if (end > bytes.length) throw new InvalidArgument(`string ${strings.length} ends early`);
    strings.push(bytes.subarray(at + 4, end));
    at = end;
  }
  return strings;
}

function numbers(type: ElementType, values: TypedArray): Float32Array {
  if (values instanceof Float32Array) return values;
  throw new InvalidArgument(`a tensor of ${type} takes a Float32Array`);
}

// Gives access to the bits of one fp32 number.
const FLOAT = new Float32Array(1);
const BITS = new Uint32Array(FLOAT.buffer);

function narrow(type: "fp16" | "bf16", values: Float32Array): Uint8Array {
  const halves = Uint16Array.from(values, type === "fp16" ? halfOf : upperHalfOf);
  return new Uint8Array(halves.buffer);
}

function widen(type: "fp16" | "bf16", bytes: Uint8Array): Float32Array {
  const halves = new Uint16Array(bytes.slice().buffer);
  return Float32Array.from(halves, type === "fp16" ? ofHalf : ofUpperHalf);
}

function upperHalfOf(value: number): number {
  FLOAT[0] = value;
  const bits = BITS[0]!;
  // NaN stays NaN; other values are rounded to nearest, ties to even.
  return Number.isNaN(value) ? (bits >>> 16) | 0x40 : (bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16;
}

function ofUpperHalf(half: number): number {
  BITS[0] = half << 16;
  return FLOAT[0]!;
}

function halfOf(value: number): number {
  FLOAT[0] = value;
  const sign = (BITS[0]! >>> 16) & 0x8000;
  const size = Math.abs(FLOAT[0]!);
  if (Number.isNaN(value)) return sign | 0x7e00;
  if (size >= 65520) return sign | 0x7c00;
  if (size < 2 ** -14) return sign | rounded(size * 2 ** 24);
  const exponent = Math.floor(Math.log2(size));
  // A mantissa that rounds up to 2048 correctly carries into the exponent.
  return sign | (((exponent + 14) << 10) + rounded(size * 2 ** (10 - exponent)));
}

function ofHalf(half: number): number {
  const [sign, exponent, mantissa] = [half & 0x8000 ? -1 : 1, (half >> 10) & 31, half & 1023];
  if (exponent === 31) return mantissa ? NaN : sign * Infinity;
  return sign * (exponent ? (1024 + mantissa) * 2 ** (exponent - 25) : mantissa * 2 ** -24);
}

/** Rounds to the nearest integer, ties to even. */
function rounded(value: number): number {
  const below = Math.floor(value);
  const rest = value - below;
  return rest > 0.5 || (rest === 0.5 && below % 2 === 1) ? below + 1 : below;
}
