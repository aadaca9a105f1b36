import assert from "node:assert/strict";
import { test } from "node:test";
import { type ElementType, InvalidArgument, Tensor } from "../src/index.ts";

const listed = (tensor: Tensor) => [tensor.type, tensor.shape, tensor.toArray()];

test("numbers and tensors are combined element by element", () => {
  const floats = Tensor.from([1, 2, 4, -8], [2, 2]);
  for (const [result, expected] of [
    [floats.add(1), [[2, 3], [5, -7]]],
    [floats.sub(1.5), [[-0.5, 0.5], [2.5, -9.5]]],
    [floats.mul(0.5), [[0.5, 1], [2, -4]]],
    [floats.div(floats), [[1, 1], [1, 1]]],
    [floats.add(floats).sub(floats).mul(floats), [[1, 4], [16, 64]]],
  ] as const) {
    assert.deepEqual(listed(result), ["fp32", [2, 2], expected]);
  }
  assert.deepEqual(Tensor.from([1, -1, 0]).div(0).toArray(), [Infinity, -Infinity, NaN]);
  assert.equal(Tensor.from([3], []).mul(Tensor.from([2], [])).toArray(), 6);
});

test("a result keeps its type unless it has fractions", () => {
  for (const array of [Uint8Array, Int8Array, Uint16Array, Int32Array]) {
    const tensor = Tensor.from(array.of(4, 8));
    assert.deepEqual(listed(tensor.mul(2).sub(tensor)), [tensor.type, [2], [4, 8]]);
    assert.deepEqual(listed(tensor.div(8)), ["fp32", [2], [0.5, 1]]);
    assert.deepEqual(listed(tensor.add(0.5)), ["fp32", [2], [4.5, 8.5]]);
  }
  const big = Tensor.from([4n, 8n]);
  assert.deepEqual(listed(big.add(2).mul(big)), ["int64", [2], [24n, 80n]]);
  assert.deepEqual(listed(big.div(8)), ["fp32", [2], [0.5, 1]]);
  for (const type of ["fp16", "bf16"] as ElementType[]) {
    assert.deepEqual(listed(Tensor.from(Float32Array.of(4, 8), [2], type).div(2).add(1)), [type, [2], [3, 5]]);
  }
});

test("operands that do not fit are refused", () => {
  const a = Tensor.from([1, 2]);
  for (const [compute, message] of [
    [() => a.add(Tensor.from([1])), /the shapes \[2\] and \[1\] differ/],
    [() => a.add(Tensor.from([1n, 2n])), /hold fp32 and int64/],
    [() => Tensor.from([true]).add(1), /holds bool and not numbers/],
    [() => Tensor.fromStrings(["a"]).mul(2), /holds bytes and not numbers/],
    [() => Tensor.from(Uint8Array.of(200)).add(100), /the result 300 does not fit uint8/],
    [() => Tensor.from([2n ** 62n]).mul(4), /does not fit int64/],
    [() => a.add("1" as never), /this one is a string/],
  ] as const) {
    assert.throws(compute, (error: Error) => error instanceof InvalidArgument && message.test(error.message), String(message));
  }
});

test("reshape copies into another shape", () => {
  const tensor = Tensor.from(Int32Array.of(0, 1, 2, 3, 4, 5), [2, 3]);
  assert.deepEqual(listed(tensor.reshape([3, -1])), ["int32", [3, 2], [[0, 1], [2, 3], [4, 5]]]);
  assert.deepEqual(Tensor.fromStrings(["a", "b"]).reshape([2, 1]).toArray(), [["a"], ["b"]]);
  assert.throws(() => tensor.reshape([4, 2]), /6 elements do not fill/);
});

test("argmax is the first largest", () => {
  const tensor = Tensor.from([1, 9, 2, 9, 0, 3], [2, 3]);
  assert.equal(tensor.argmax(), 1);
  assert.deepEqual(listed(tensor.argmax(-1)), ["int64", [2], [1n, 0n]]);
  assert.deepEqual(tensor.argmax(0).toArray(), [1n, 0n, 1n]);
  assert.equal(Tensor.from([5n, 7n, 7n]).argmax(), 1);
  assert.equal(Tensor.from([1, NaN, 3]).argmax(), 1);
  assert.throws(() => Tensor.from([]).argmax(), /empty/);
  assert.throws(() => tensor.argmax(2), /no axis 2/);
});

test("softmax gives probabilities along an axis", () => {
  const rounded = (rows: number[][]) => rows.map((row) => row.map((value) => Math.round(value * 1e5) / 1e5));
  const rows = Tensor.from([0, Math.log(3), 1000, 1000], [2, 2]);
  assert.deepEqual(rounded(rows.softmax().toArray()), [[0.25, 0.75], [0.5, 0.5]]);
  const columns = Tensor.from([0, 5, Math.log(3), 5], [2, 2]).softmax(0);
  assert.deepEqual(rounded(columns.toArray()), [[0.25, 0.5], [0.75, 0.5]]);
  assert.equal(Tensor.from([1n]).softmax().type, "fp32");
});

test("topk is ordered", () => {
  const scores = Tensor.from([0.25, 0.5, 0.125, 0.5]);
  const best = [{ index: 1, value: 0.5 }, { index: 3, value: 0.5 }, { index: 0, value: 0.25 }];
  assert.deepEqual(scores.topk(3), best);
  assert.deepEqual(scores.reshape([1, 4]).topk(3), [best]);
  assert.deepEqual(scores.reshape([2, 1, 2]).topk(1), [[[{ index: 1, value: 0.5 }]], [[{ index: 1, value: 0.5 }]]]);
  assert.deepEqual([scores.topk(9).length, Tensor.from([]).topk(1)], [4, []]);
  assert.throws(() => scores.topk(-1), InvalidArgument);
  const indices = Tensor.from([0.1, NaN, 0.3, 0.9, NaN, 0.2]).topk(3).map(({ index }: { index: number }) => index);
  assert.deepEqual(indices, [1, 4, 3], "NaN is first, as for argmax");
  const large = [2n ** 53n, 2n ** 53n + 1n];
  assert.deepEqual(Tensor.from(large).topk(1), [{ index: 1, value: large[1] }]);
});
