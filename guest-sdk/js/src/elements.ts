/** The types of tensors' elements, and the typed arrays that hold them. */

import { InvalidArgument } from "./errors.ts";

/** The typed array for each type of numbers. Truths are bytes of 0 and 1, and half floats are read and written as fp32. */
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

/** The element types of the Open Inference Protocol, as the contract spells them. */
export type ElementType = keyof Arrays | "bytes";

/** What {@link Tensor.values} gives for a type of elements. */
export type Values<T extends ElementType = ElementType> = T extends keyof Arrays ? Arrays[T] : never;

/** A typed array. */
export type TypedArray = Arrays[keyof Arrays] | Uint8ClampedArray;

type Constructor = { new (buffer: ArrayBuffer): TypedArray; readonly BYTES_PER_ELEMENT: number };

const ARRAYS: Record<string, Constructor> = {
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

/** The size of an element in bytes; none for byte strings, which have each their own. */
export function sizeBytes(type: ElementType): number | undefined {
  return type === "fp16" || type === "bf16" ? 2 : ARRAYS[type]?.BYTES_PER_ELEMENT;
}

/** The type whose elements `values` holds. */
export function typeOf(values: TypedArray): ElementType {
  if (values instanceof Uint8ClampedArray) return "uint8";
  const found = Object.entries(ARRAYS).find(([type, array]) => type !== "bool" && values instanceof array);
  if (found === undefined) throw new InvalidArgument("the values are in no typed array that a tensor can hold");
  return found[0] as ElementType;
}

/** The bytes of a tensor of `type` that holds `values`: those of its own typed array, or numbers that are brought into the type. */
export function pack(type: ElementType, values: TypedArray): Uint8Array {
  if (type === "fp16" || type === "bf16") return narrow(type, numbers(type, values));
  const own = ARRAYS[type];
  if (own === undefined) throw new InvalidArgument("byte strings are made with Tensor.fromStrings");
  const fits = values instanceof own || (own === Uint8Array && values instanceof Uint8ClampedArray);
  if (!fits) throw new InvalidArgument(`a tensor of ${type} takes a ${(own as unknown as { name: string }).name}`);
  return new Uint8Array(values.buffer as ArrayBuffer, values.byteOffset, values.byteLength);
}

/** The elements in `bytes`. */
export function unpack(type: ElementType, bytes: Uint8Array): TypedArray {
  if (type === "fp16" || type === "bf16") return widen(type, bytes);
  const own = ARRAYS[type];
  if (own === undefined) throw new InvalidArgument("the tensor holds bytes and not numbers");
  // A copy where the bytes do not begin where such an element may.
  const whole = bytes.byteOffset === 0 && bytes.byteLength === bytes.buffer.byteLength;
  return new own((whole ? bytes : bytes.slice()).buffer as ArrayBuffer);
}

/** The bytes of a tensor that holds byte strings: each is its length as four bytes, little-endian, then itself. */
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

/** The byte strings in `bytes`. */
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

// The bits of one number, as fp32.
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
  // Not a number stays one; all else is rounded to even.
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
  // A mantissa that rounds up to 2048 carries into the exponent, as it should.
  return sign | (((exponent + 14) << 10) + rounded(size * 2 ** (10 - exponent)));
}

function ofHalf(half: number): number {
  const [sign, exponent, mantissa] = [half & 0x8000 ? -1 : 1, (half >> 10) & 31, half & 1023];
  if (exponent === 31) return mantissa ? NaN : sign * Infinity;
  return sign * (exponent ? (1024 + mantissa) * 2 ** (exponent - 25) : mantissa * 2 ** -24);
}

/** To the nearest whole number, and to the even one where two are as near. */
function rounded(value: number): number {
  const below = Math.floor(value);
  const rest = value - below;
  return rest > 0.5 || (rest === 0.5 && below % 2 === 1) ? below + 1 : below;
}
