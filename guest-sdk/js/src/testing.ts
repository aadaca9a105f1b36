/**
 * Tests of functions without a node: `node sdk/test.mjs` runs a project's `*.test.ts` and
 * `*.test.js` under Node.js, with tensors in memory and models defined by the test.
 *
 * ```ts
 * import { model } from "weir/testing";
 *
 * test("the likeliest digit is the answer", async () => {
 *   using _ = model("digits", () => ({ scores: Tensor.from([0.1, 0.9]) }));
 *   assert.equal((await answer(handle, new Request("/"))).status, 200);
 * });
 * ```
 *
 * @module
 */

import type { Tensor as RawTensor } from "weir:inference/tensors@0.1.0";
import { toNode, WeirError } from "./errors.ts";
import { DECODER } from "./memory/images.ts";
import { MODELS } from "./memory/models.ts";
import { refused } from "./memory/tensors.ts";
import { fromPairs, type NamedTensors, type Tensor, type Tensors, toOutputs } from "./tensor.ts";

/**
 * Registers a model for `Model.open(name)`, implemented by `run`, until the returned object is
 * disposed of.
 */
export function model(name: string, run: (inputs: Tensors) => NamedTensors): { [Symbol.dispose](): void } {
  type Run = NonNullable<ReturnType<typeof MODELS.get>>;
  const infer = (inputs: [string, RawTensor][]) => {
    try {
      return toOutputs(run(fromPairs(inputs)));
    } catch (error) {
      if (!(error instanceof WeirError)) throw error;
      const { tag, val } = toNode(error);
      throw refused(tag, val);
    }
  };
  MODELS.set(name, infer as unknown as Run);
  return { [Symbol.dispose]: () => void MODELS.delete(name) };
}

/**
 * Decodes images with `decode` until the returned object is disposed of: a function from the bytes
 * of an encoded image, and the options in the node's format, to the tensor that `images.decode`
 * returns.
 */
export function decoder(decode: (encoded: Uint8Array, options: unknown) => Tensor): { [Symbol.dispose](): void } {
  DECODER.run = (encoded, options) => {
    try {
      return decode(encoded, options).raw as never;
    } catch (error) {
      if (!(error instanceof WeirError)) throw error;
      const { tag, val } = toNode(error);
      throw refused(tag, val);
    }
  };
  return { [Symbol.dispose]: () => void delete DECODER.run };
}
