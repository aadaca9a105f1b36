/**
 * In-memory tensors with the interface of componentize-qjs's bindings, for tests without a node.
 */

const SIZES: Record<string, number> = {
  bool: 1, uint8: 1, int8: 1,
  uint16: 2, int16: 2, fp16: 2, bf16: 2,
  uint32: 4, int32: 4, fp32: 4,
  uint64: 8, int64: 8, fp64: 8,
};

/** An error in the form that the engine throws. */
export function refused(tag: string, val?: string): Error {
  return Object.assign(new Error(`${tag}: ${val}`), { payload: { tag, val } });
}

export class Tensor {
  private constructor(
    private readonly kind: string,
    private readonly sizes: number[],
    private readonly data: Uint8Array,
  ) {}

  static fromBytes(elementType: string, shape: number[], data: Uint8Array): Tensor {
    if (!(data instanceof Uint8Array)) throw new TypeError("the engine takes bytes only");
    const size = SIZES[elementType];
    const bytes = shape.reduce((product, size) => product * size, size ?? 1);
    if (size !== undefined && bytes !== data.length) {
      throw refused("invalid-argument", `${data.length} bytes do not fill the shape [${shape.join(", ")}]`);
    }
    return new Tensor(elementType, shape, data.slice());
  }

  elementType(): string {
    return this.kind;
  }

  shape(): number[] {
    return [...this.sizes];
  }

  byteLength(): number {
    return this.data.length;
  }

  read(offset: number, length: number): Uint8Array {
    if (offset + length > this.data.length) throw refused("invalid-argument", `the range goes past ${this.data.length}`);
    return this.data.slice(offset, offset + length);
  }

  [Symbol.dispose](): void {}
}
