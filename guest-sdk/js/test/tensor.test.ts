import assert from "node:assert/strict";
import { test } from "node:test";
import { Cancelled, InvalidArgument, InvalidRun, Model, NotFound, objects, StatusError, Tensor, Tensors, tensorFunction } from "../src/index.ts";
import type { ElementType } from "../src/elements.ts";
import type { RawError } from "../src/errors.ts";
import { model } from "../src/testing.ts";

test("numbers of every type round-trip", () => {
  const arrays = [
    Uint8Array, Uint16Array, Uint32Array, Int8Array, Int16Array, Int32Array, Float32Array, Float64Array,
  ];
  for (const array of arrays) {
    const values = array.from([0, 1, 2, 100]);
    const tensor = Tensor.from(values, [2, 2]);
    assert.deepEqual(tensor.values(), values);
    assert.deepEqual([...tensor.read(tensor.type as "fp32", 1, 3)], [1, 2]);
    assert.deepEqual(tensor.shape, [2, 2]);
  }
  assert.deepEqual(Tensor.from([1n, -2n]).values("int64"), BigInt64Array.from([1n, -2n]));
  assert.deepEqual(Tensor.from(BigUint64Array.from([1n])).type, "uint64");
  assert.deepEqual([Tensor.from([true, false]).type, [...Tensor.from([true, false]).values("bool")]], ["bool", [1, 0]]);
  assert.equal(Tensor.from(new Uint8ClampedArray(3)).type, "uint8");
  assert.deepEqual(Tensor.from(new Float32Array([9, 1, 2, 9]).subarray(1, 3)).values("fp32"), new Float32Array([1, 2]));
});

test("half floats round to nearest, ties to even", () => {
  const back = (type: ElementType, ...values: number[]) => [...Tensor.from(Float32Array.from(values), undefined, type).values()];
  assert.deepEqual(back("fp16", 1, -2.5, 65504, 65520, 2 ** -24, 2 ** -25, 1 + 2 ** -11, 1 + 3 * 2 ** -11, 2047.5), [
    1, -2.5, 65504, Infinity, 2 ** -24, 0, 1, 1 + 2 ** -9, 2048,
  ]);
  assert.deepEqual(back("bf16", 1, -2.5, Infinity, 1 + 2 ** -8, 1 + 3 * 2 ** -8), [1, -2.5, Infinity, 1, 1 + 2 ** -6]);
  for (const type of ["fp16", "bf16"] as const) assert.ok(Number.isNaN(back(type, NaN)[0]));
});

test("strings round-trip and invalid text is reported", () => {
  assert.deepEqual(Tensor.fromStrings(["grüezi", ""]).strings(), ["grüezi", ""]);
  assert.deepEqual(Tensor.fromStrings([Uint8Array.of(255)]).byteStrings(), [Uint8Array.of(255)]);
  assert.throws(() => Tensor.fromStrings([Uint8Array.of(255)]).strings(), InvalidArgument);
  assert.throws(() => Tensor.fromBytes("bytes", [1], Uint8Array.of(9, 0, 0, 0, 1)).byteStrings(), /string 0 ends early/);
});

test("mismatched values and shapes are rejected", () => {
  for (const make of [
    () => Tensor.from([1, 2, 3], [2, 2]),
    () => Tensor.from([1, 2, 3], [-1, 2]),
    () => Tensor.from([1, 2], [2], "int64"),
    () => Tensor.from([1, true]),
    () => Tensor.from(["a"] as never),
    () => Tensor.fromBytes("fp32", [0.5], new Uint8Array(2)),
    () => Tensor.fromBytes("fp32", [1], new Uint8Array(3)),
    () => Tensor.from([1]).values("int32"),
    () => Tensor.from([1]).strings(),
    () => new Tensors([]).only(),
    () => new Tensors([["a", Tensor.from([1])]]).get("x"),
  ]) {
    assert.throws(make, InvalidArgument, String(make));
  }
  assert.deepEqual(Tensor.from([1, 2, 3, 4], [-1, 2]).shape, [2, 2]);
  assert.deepEqual(Tensor.from([7], []).shape, []);
});

test("a provided model runs and is awaited", async () => {
  const provided = model("swap", (inputs) => ({ b: inputs.get("a"), a: inputs.get("b") }));
  const swap = Model.open("swap:1");
  const inputs = { a: Tensor.from([1]), b: Tensor.from([2]) };
  assert.deepEqual([...swap.infer(inputs, { outputs: ["a"] }).only().values()], [2]);
  const [first, second] = await Promise.all([swap.submit(inputs), swap.submit(inputs, { timeoutMs: 1.5 })]);
  assert.deepEqual([first.names(), [...second.get("b").values()]], [["b", "a"], [1]]);
  const pending = swap.submit(inputs);
  pending.cancel();
  await assert.rejects(async () => await pending, Cancelled);
  assert.throws(
    () => swap.infer({ a: Tensor.from([1]) }),
    (error) => error instanceof InvalidArgument && error instanceof InvalidRun && error.status === 500,
  );
  assert.throws(() => swap.infer({ a: [1] } as never), TypeError);
  provided[Symbol.dispose]();
  assert.throws(() => Model.open("swap"), NotFound);
});

test("a tensor function returns tensors or a WIT error", () => {
  const stage = tensorFunction((inputs) => {
    if (!inputs.has("x")) throw new StatusError(404, "no x");
    return { y: inputs.get("x") };
  });
  const { raw } = Tensor.from([1]);
  assert.deepEqual(stage.run([["x", raw]]), [["y", raw]]);
  assert.throws(() => stage.run([]), { tag: "invalid-argument", val: "no x" });
});

test("an invalid result of a tensor function is reported", (context) => {
  const log = context.mock.method(console, "error", () => {});
  const tensor = Tensor.from([1]);
  const disposed = Tensor.from([1]);
  disposed[Symbol.dispose]();
  disposed[Symbol.dispose]();
  assert.throws(() => disposed.values(), { name: "TypeError", message: "the tensor was disposed of" });
  for (const [given, message] of [
    [Promise.resolve({ y: tensor }), /gives tensors by name, like { y: tensor }, and this one gave a Promise: it cannot be async; use model.infer/],
    [undefined, /gave undefined$/],
    [null, /gave null$/],
    ["y", /gave a string$/],
    [tensor, /gave a Tensor$/],
    [[tensor], /gave an Array, whose items are no pairs/],
    [["ab"], /gave an Array, whose items are no pairs/],
    [[], /gave an Array without any$/],
    [{}, /gave an Object without any$/],
    [new Uint8Array(2), /gave a Uint8Array$/],
    [{ y: [1, 2] }, /^the output y is no Tensor: it is an Array$/],
    [{ y: undefined }, /^the output y is no Tensor: it is undefined$/],
    [{ y: tensor, z: tensor }, /^the output z is the same tensor as y: give a copy of it$/],
    [{ y: disposed }, /^the output y cannot be used: the tensor was disposed of$/],
  ] as const) {
    assert.throws(() => tensorFunction(() => given as never).run([]), ({ tag, val }: RawError) => tag === "internal" && message.test(val!));
    assert.match(log.mock.calls.at(-1)!.arguments[1], message);
  }
  const failing = tensorFunction(() => {
    throw new RangeError("on purpose");
  });
  // The log has the error once; the thrown error does not repeat it.
  assert.throws(() => failing.run([]), { name: "Error", message: /exception above$/, stack: "" });
  assert.equal(log.mock.calls.at(-1)!.arguments[0].message, "on purpose");
  for (const given of [new Map([["y", tensor]]), [["y", tensor]] as const, new Tensors([["y", tensor]]), Object.assign(Object.create(null), { y: tensor })]) {
    assert.deepEqual(tensorFunction(() => given).run([]), [["y", tensor.raw]]);
  }
});

test("invalid model inputs are reported", () => {
  using _ = model("same", (inputs) => ({ y: inputs.get("a") }));
  const same = Model.open("same");
  const tensor = Tensor.from([1]);
  assert.equal(same.infer({ a: tensor, b: tensor }).only().shape[0], 1);
  assert.throws(() => same.infer([tensor] as never), /a model takes tensors by name, like { x: tensor }, and was given an Array/);
  assert.throws(() => same.infer({ a: [1] } as never), /the input a is no Tensor: it is an Array/);
});

test("an object exists until it is deleted", () => {
  objects.put("kept", Tensor.from([1.5, 2.5]), { ttlMs: 60_000 });
  assert.deepEqual([...objects.get("kept").values("fp32")], [1.5, 2.5]);
  objects.delete("kept");
  assert.throws(() => objects.get("kept"), NotFound);
  assert.throws(() => objects.delete("kept"), NotFound);
  assert.throws(() => objects.put("kept", Tensor.from([1]), { ttlMs: 0 }), InvalidArgument);
});
