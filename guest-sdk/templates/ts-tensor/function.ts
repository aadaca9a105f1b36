/**
 * `{{ name }}` maps tensors to tensors: it scales `x` into 0 to 1 as `y`. Call it with
 *
 *     curl -d '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [3], "data": [1, 2, 4]}]}' http://127.0.0.1:9347/fn/{{ name }}
 */

import { Tensor, tensorFunction, type Tensors } from "weir";

export function run(inputs: Tensors): { y: Tensor } {
  const x = inputs.get("x");
  return { y: Tensor.from(scale(x.values("fp32")), x.shape) };
}

function scale(values: Float32Array): Float32Array {
  const low = values.reduce((low, value) => Math.min(low, value), Infinity);
  const high = values.reduce((high, value) => Math.max(high, value), -Infinity);
  return values.map((value) => (value - low) / (high - low || 1));
}

export const stage = tensorFunction(run);
