/** Arithmetic on the numbers of tensors. */

import { ARRAYS, type ElementType, type TypedArray } from "./elements.ts";
import { InvalidArgument } from "./errors.ts";

/** The arithmetic operations, on numbers and on bigints. */
const OPERATIONS = {
  add: <N extends number>(a: N, b: N) => a + b,
  sub: <N extends number>(a: N, b: N) => a - b,
  mul: <N extends number>(a: N, b: N) => a * b,
  div: <N extends number>(a: N, b: N) => a / b,
};
export type Operation = keyof typeof OPERATIONS;

const FLOATS: ElementType[] = ["fp16", "bf16", "fp32", "fp64"];

/**
 * The element type of a result: that of the operands, or `fp32` for a division of integers and for
 * integers with a fraction.
 */
export function resultType(operation: Operation, left: ElementType, right: ElementType | number): ElementType {
  if (left === "bool" || left === "bytes") throw new InvalidArgument(`the tensor holds ${left} and not numbers`);
  if (typeof right === "string" && right !== left) throw new InvalidArgument(`the tensors hold ${left} and ${right}`);
  const isWhole = typeof right === "string" || Number.isInteger(right);
  return FLOATS.includes(left) || (operation !== "div" && isWhole) ? left : "fp32";
}

/** `operation` on pairs of numbers, as an array of `type`. `right` may be a single number. */
export function computed(operation: Operation, left: TypedArray, right: TypedArray | number, type: ElementType): TypedArray {
  // Half floats are widened.
  const results = new (ARRAYS[type] ?? Float32Array)(left.length);
  const isBig = results instanceof BigInt64Array || results instanceof BigUint64Array;
  // The operators of bigints are those of numbers.
  const operate = OPERATIONS[operation];
  const converted = (isBig ? BigInt : Number) as (value: number | bigint) => number;
  const isExact = !FLOATS.includes(type);
  const single = typeof right === "number" ? converted(right) : undefined;
  for (let at = 0; at < left.length; at++) {
    const result = operate(converted(left[at]!), single ?? converted((right as TypedArray)[at]!));
    results[at] = result;
    if (isExact && results[at] !== result) throw new InvalidArgument(`the result ${result} does not fit ${type}`);
  }
  return results;
}

/** `axis` counted from the outermost dimension. */
export function axisOf(axis: number, shape: readonly number[]): number {
  const found = axis < 0 ? axis + shape.length : axis;
  if (!Number.isInteger(found) || found < 0 || found >= shape.length) {
    throw new InvalidArgument(`the shape [${shape.join(", ")}] has no axis ${axis}`);
  }
  return found;
}

/** Indices of the numbers along `axis`, for each position of the other dimensions. */
export function* rows(shape: readonly number[], axis: number): Generator<number[]> {
  const total = product(shape);
  const step = product(shape.slice(axis + 1));
  const length = shape[axis]! * step;
  for (let start = 0; start < total; start += length) {
    for (let first = start; first < start + step; first++) yield Array.from({ length: shape[axis]! }, (_, at) => first + at * step);
  }
}

/** The index of the first largest value; that of the first NaN if there is one. */
export function largest(values: ArrayLike<number | bigint>): number {
  if (values.length === 0) throw new InvalidArgument("an empty tensor has no largest number");
  let best = 0;
  for (let at = 0; at < values.length; at++) {
    if (Number.isNaN(values[at])) return at;
    if (values[at]! > values[best]!) best = at;
  }
  return best;
}

/** Positive numbers with the sum 1, in the proportions of the exponentials of `values`. */
export function softmax(values: readonly number[]): number[] {
  const top = values.reduce((top, value) => Math.max(top, value), -Infinity);
  const powers = values.map((value) => Math.exp(value - top));
  const total = powers.reduce((total, power) => total + power, 0);
  return powers.map((power) => power / total);
}

/** The largest values with their indices, largest first; of equal ones, the first. */
export function topk<N extends number | bigint>(values: readonly N[], count: number): { index: number; value: N }[] {
  if (!Number.isInteger(count) || count < 0) throw new InvalidArgument(`the count is a whole number, and not ${count}`);
  const found = values.map((value, index) => ({ index, value }));
  return found.sort((a, b) => descending(a.value, b.value) || a.index - b.index).slice(0, count);
}

/** Orders larger values first, and NaN before them, as {@link largest} does. */
function descending(a: number | bigint, b: number | bigint): number {
  const isNan = [a, b].map(Number.isNaN);
  if (isNan[0] || isNan[1]) return Number(isNan[1]) - Number(isNan[0]);
  return a < b ? 1 : a > b ? -1 : 0;
}

/** `flat` in arrays of `shape`. */
export function nested(flat: unknown[], shape: readonly number[]): unknown[] {
  for (let at = shape.length - 1; at > 0; at--) {
    const size = shape[at]!;
    flat = Array.from({ length: product(shape.slice(0, at)) }, (_, row) => flat.slice(row * size, (row + 1) * size));
  }
  return flat;
}

/** The number of elements of `shape`. */
export function product(shape: readonly number[]): number {
  return shape.reduce((product, size) => product * size, 1);
}
