/** Tensors, and collections of named tensors. */

import { Tensor as Raw } from "weir:inference/tensors@0.1.0";
import { type ElementType, joinStrings, pack, sizeBytes, splitStrings, type TypedArray, typeOf, unpack, type Values } from "./elements.ts";
import { asked, InvalidArgument } from "./errors.ts";
import { isPromise, kindOf, noJson } from "./kinds.ts";
import { axisOf, computed, largest, nested, type Operation, product, resultType, rows, softmax, topk } from "./math.ts";

/** Named tensors, in order. */
export type NamedTensors = Iterable<readonly [string, Tensor]> | Record<string, Tensor>;

/**
 * A dense, row-major tensor on the node. Its data enters guest memory only when it is read.
 *
 * ```ts
 * Tensor.from(new Float32Array([1, 2, 3, 4]), [2, 2]);
 * Tensor.from([1, 2, 3]);                       // fp32
 * Tensor.from([1n, 2n]);                        // int64
 * Tensor.from([true, false]);                   // bool
 * Tensor.fromStrings(["a", "b"]);
 * ```
 *
 * Released by the garbage collector, or with `using` or `tensor[Symbol.dispose]()`.
 */
export class Tensor {
  /** @internal */
  constructor(private handle: Raw | undefined) {}

  /**
   * The node's tensor.
   * @internal
   */
  get raw(): Raw {
    if (this.handle === undefined) throw new TypeError("the tensor was disposed of");
    return this.handle;
  }

  /**
   * Creates a tensor from a copy of numbers.
   *
   * The element type is that of the typed array; for plain values, `fp32`, `int64` or `bool`.
   * `type` overrides it: `bool` for a `Uint8Array`, `fp16` and `bf16` for a `Float32Array`. `shape`
   * is the size of each dimension, outermost first; one may be -1, and `[]` is a scalar. Without a
   * shape, the tensor has one dimension.
   *
   * @throws {InvalidArgument} if the shape has a different number of elements, and {@link
   * ResourceExhausted} above the function's limit of tensor bytes.
   */
  static from(values: TypedArray | readonly (number | bigint | boolean)[], shape?: readonly number[], type?: ElementType): Tensor {
    const [array, kind] = typed(values);
    const sizes = filled(shape ?? [array.length], array.length);
    return Tensor.fromBytes(type ?? kind, sizes, pack(type ?? kind, array));
  }

  /** Creates a tensor from a copy of strings or byte strings. */
  static fromStrings(strings: readonly (string | Uint8Array)[], shape?: readonly number[]): Tensor {
    const encoder = new TextEncoder();
    const bytes = strings.map((string) => (typeof string === "string" ? encoder.encode(string) : string));
    return Tensor.fromBytes("bytes", filled(shape ?? [strings.length], strings.length), joinStrings(bytes));
  }

  /** Creates a tensor from a copy of `data`, little-endian and row-major. */
  static fromBytes(type: ElementType, shape: readonly number[], data: Uint8Array): Tensor {
    return new Tensor(asked(() => Raw.fromBytes(type, sizes(shape), data)));
  }

  /** Element type. */
  get type(): ElementType {
    return this.raw.elementType() as ElementType;
  }

  /** Size of each dimension, outermost first. */
  get shape(): number[] {
    return this.raw.shape();
  }

  /** Size of the data in bytes. */
  get byteLength(): number {
    return this.raw.byteLength();
  }

  /** Copies the data into guest memory unchanged: little-endian, row-major. */
  bytes(): Uint8Array {
    return asked(() => this.raw.read(0, this.raw.byteLength()));
  }

  /**
   * Copies all numbers into guest memory. Half floats are widened to fp32.
   *
   * @throws {InvalidArgument} if the numbers are not of the type `wanted`.
   */
  values(): TypedArray;
  values<T extends ElementType>(wanted: T): Values<T>;
  values(wanted?: ElementType): TypedArray {
    return unpack(this.checked(wanted), this.bytes());
  }

  /**
   * Copies the numbers from `start` up to `end`, counted in row-major order: for example, one
   * row of a large output.
   */
  read<T extends ElementType>(wanted: T, start: number, end: number): Values<T> {
    const type = this.checked(wanted);
    const size = sizeBytes(type) ?? 1;
    const bytes = asked(() => this.raw.read(start * size, Math.max(end - start, 0) * size));
    return unpack(type, bytes) as Values<T>;
  }

  /** Copies all strings into guest memory. */
  strings(): string[] {
    const decoder = new TextDecoder("utf-8", { fatal: true });
    try {
      return this.byteStrings().map((bytes) => decoder.decode(bytes));
    } catch (error) {
      if (error instanceof TypeError) throw new InvalidArgument("the tensor holds bytes that are no text");
      throw error;
    }
  }

  /** Copies all byte strings into guest memory. */
  byteStrings(): Uint8Array[] {
    return splitStrings((this.checked("bytes"), this.bytes()));
  }

  /** Copies all elements into arrays, nested according to the shape; a scalar becomes its value. */
  toArray(): any {
    const type = this.type;
    const flat: unknown[] = type === "bytes" ? this.strings() : Array.from<unknown>(this.values());
    const values = type === "bool" ? flat.map((value) => value !== 0) : flat;
    const shape = this.shape;
    return shape.length === 0 ? values[0] : nested(values, shape);
  }

  /** A copy with another shape; one dimension may be -1. */
  reshape(shape: readonly number[]): Tensor {
    return Tensor.fromBytes(this.type, filled(shape, product(this.shape)), this.bytes());
  }

  /**
   * The sum with a number, or with a tensor of the same type and shape, element by element. The
   * result has the type of the tensors, and `fp32` for integers with a fraction.
   *
   * Arithmetic copies the numbers into guest memory and runs in JavaScript: leave work on large
   * tensors to models.
   */
  add(other: Tensor | number): Tensor {
    return this.computed("add", other);
  }

  /** The difference; see {@link Tensor.add}. */
  sub(other: Tensor | number): Tensor {
    return this.computed("sub", other);
  }

  /** The product, element by element; see {@link Tensor.add}. */
  mul(other: Tensor | number): Tensor {
    return this.computed("mul", other);
  }

  /** The quotient, element by element; `fp32` for integers. See {@link Tensor.add}. */
  div(other: Tensor | number): Tensor {
    return this.computed("div", other);
  }

  /**
   * The index of the largest number, counted in row-major order: the class of a classifier's
   * scores. With an `axis`, the indices along it, as an int64 tensor without that dimension.
   */
  argmax(): number;
  argmax(axis: number): Tensor;
  argmax(axis?: number): number | Tensor {
    const values = this.values();
    if (axis === undefined) return largest(values);
    const shape = this.shape;
    const along = axisOf(axis, shape);
    const indices = Array.from(rows(shape, along), (row) => BigInt(largest(row.map((at) => values[at]!))));
    return Tensor.from(BigInt64Array.from(indices), shape.toSpliced(along, 1));
  }

  /** The probabilities for scores along `axis`: positive, with the sum 1. Of integers, `fp32`. */
  softmax(axis = -1): Tensor {
    const shape = this.shape;
    const values = this.values();
    const type = resultType("div", this.type, 1);
    const results = new (type === "fp64" ? Float64Array : Float32Array)(values.length);
    for (const row of rows(shape, axisOf(axis, shape))) {
      softmax(row.map((at) => Number(values[at]))).forEach((result, at) => (results[row[at]!] = result));
    }
    return Tensor.from(results, shape, type);
  }

  /**
   * The `count` largest numbers along the last axis with their indices, largest first: an array for
   * one dimension, and nested arrays like those of {@link Tensor.toArray} for more.
   */
  topk(count: number): any {
    const shape = this.shape;
    const values = this.values();
    const along = axisOf(-1, shape);
    const best = Array.from(rows(shape, along), (row) => topk(row.map((at): number | bigint => values[at]!), count));
    return along > 0 ? nested(best, shape.slice(0, along)) : (best[0] ?? []);
  }

  private computed(operation: Operation, other: Tensor | number): Tensor {
    const shape = this.shape;
    if (typeof other === "number") {
      const type = resultType(operation, this.type, other);
      return Tensor.from(computed(operation, this.values(), other, type), shape, type);
    }
    if (!(other instanceof Tensor)) throw new InvalidArgument(`the operand is a number or a Tensor, and this one is ${kindOf(other)}`);
    if (String(other.shape) !== String(shape)) throw new InvalidArgument(`the shapes [${shape.join(", ")}] and [${other.shape.join(", ")}] differ`);
    const type = resultType(operation, this.type, other.type);
    return Tensor.from(computed(operation, this.values(), other.values(), type), shape, type);
  }

  /** Releases the tensor. */
  [Symbol.dispose](): void {
    this.handle?.[Symbol.dispose]();
    this.handle = undefined;
  }

  /** @internal */
  toJSON(key: string): never {
    throw noJson(key, this, "give its values() or strings(), or answer with the tensor itself");
  }

  private checked(wanted: ElementType | undefined): ElementType {
    const type = this.type;
    if (wanted !== undefined && wanted !== type) throw new InvalidArgument(`the tensor holds ${type} and not ${wanted}`);
    return type;
  }
}

/** Named tensors in order: the outputs of a model, or the inputs of a tensor function. */
export class Tensors implements Iterable<[string, Tensor]> {
  private readonly tensors: Map<string, Tensor>;

  constructor(tensors: Iterable<readonly [string, Tensor]>) {
    this.tensors = new Map(tensors);
  }

  /** The tensor named `name`. */
  get(name: string): Tensor {
    const tensor = this.tensors.get(name);
    if (tensor === undefined) throw new InvalidArgument(`there is no tensor ${name}; there are: ${this.names().join(", ")}`);
    return tensor;
  }

  /** The only tensor. */
  only(): Tensor {
    const [tensor, ...more] = this.tensors.values();
    if (tensor === undefined || more.length > 0) {
      throw new InvalidArgument(`there are ${this.names().join(", ") || "no tensors"} where one tensor is expected`);
    }
    return tensor;
  }

  /** Whether there is a tensor named `name`. */
  has(name: string): boolean {
    return this.tensors.has(name);
  }

  /** Names of the tensors. */
  names(): string[] {
    return [...this.tensors.keys()];
  }

  [Symbol.iterator](): Iterator<[string, Tensor]> {
    return this.tensors.entries();
  }

  /** @internal */
  toJSON(key: string): never {
    throw noJson(key, this, "give the values() of the tensors in it");
  }
}

/** Wraps tensors that the node returned. */
export function fromPairs(pairs: [string, Raw][]): Tensors {
  return new Tensors(pairs.map(([name, raw]) => [name, new Tensor(raw)]));
}

/**
 * Converts the inputs of a run. Validates them, because the engine ends the call on a value of
 * the wrong type.
 */
export function toPairs(inputs: NamedTensors): [string, Raw][] {
  return entries(inputs, "a model takes tensors by name, like { x: tensor }, and was given").map(([name, tensor]) => [
    name,
    rawOf(tensor, `the input ${name}`),
  ]);
}

/**
 * Converts the outputs of a tensor function. Transfers each tensor to the node, so each may
 * appear only once.
 */
export function toOutputs(outputs: NamedTensors): [string, Raw][] {
  const names = new Map<Raw, string>();
  return entries(outputs, "a tensor function gives tensors by name, like { y: tensor }, and this one gave").map(([name, tensor]) => {
    const raw = rawOf(tensor, `the output ${name}`);
    const other = names.get(raw);
    if (other !== undefined) throw new TypeError(`the output ${name} is the same tensor as ${other}: give a copy of it`);
    names.set(raw, name);
    return [name, raw];
  });
}

/** Entries of named tensors. `wanted` describes the expected value in the error. */
function entries(named: unknown, wanted: string): [string, unknown][] {
  if (isPromise(named)) {
    throw new TypeError(`${wanted} ${kindOf(named)}: it cannot be async; use model.infer or pending.wait()`);
  }
  const isNamed = typeof named === "object" && named !== null && !(named instanceof Tensor) && !ArrayBuffer.isView(named);
  if (!isNamed) throw new TypeError(`${wanted} ${kindOf(named)}`);
  const pairs: unknown[] = Symbol.iterator in named ? [...(named as Iterable<unknown>)] : Object.entries(named);
  const isPair = (pair: unknown) => Array.isArray(pair) && pair.length === 2 && typeof pair[0] === "string";
  if (!pairs.every(isPair)) throw new TypeError(`${wanted} ${kindOf(named)}, whose items are no pairs of a name and a tensor`);
  if (pairs.length === 0) throw new TypeError(`${wanted} ${kindOf(named)} without any`);
  return pairs as [string, unknown][];
}

function rawOf(tensor: unknown, what: string): Raw {
  if (!(tensor instanceof Tensor)) throw new TypeError(`${what} is no Tensor: it is ${kindOf(tensor)}`);
  try {
    return tensor.raw;
  } catch (error) {
    throw new TypeError(`${what} cannot be used: ${(error as Error).message}`);
  }
}

/** Converts a shape to the node's format. */
export function sizes(shape: readonly number[]): number[] {
  if (!shape.every((size) => Number.isInteger(size) && size >= 0 && size < 2 ** 32)) {
    throw new InvalidArgument(`a dimension of [${shape.join(", ")}] is no whole number from 0 up to 2^32`);
  }
  // The engine expects numbers from 2^31 on as signed integers.
  return shape.map((size) => size | 0);
}

function typed(values: TypedArray | readonly (number | bigint | boolean)[]): [TypedArray, ElementType] {
  if (ArrayBuffer.isView(values)) return [values, typeOf(values)];
  const kind = typeof values[0];
  if (!values.every((value) => typeof value === kind)) throw new InvalidArgument("the values are of several types");
  switch (kind) {
    case "bigint":
      return [BigInt64Array.from(values as bigint[]), "int64"];
    case "boolean":
      return [Uint8Array.from(values as boolean[], Number), "bool"];
    case "number":
    case "undefined":
      return [Float32Array.from(values as number[]), "fp32"];
    default:
      throw new InvalidArgument(`values of type ${kind} are no numbers`);
  }
}

function filled(shape: readonly number[], count: number): number[] {
  const rest = shape.reduce((product, size) => (size === -1 ? product : product * size), 1);
  const open = shape.filter((size) => size === -1).length === 1 && rest > 0 && count % rest === 0;
  const sizes = shape.map((size) => (size === -1 && open ? count / rest : size));
  if (sizes.some((size) => size < 0) || sizes.reduce((product, size) => product * size, 1) !== count) {
    throw new InvalidArgument(`${count} elements do not fill the shape [${shape.join(", ")}]`);
  }
  return sizes;
}
