// Run with `npm test`; needs no node.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Tensor, Tensors } from "weir";
import { run } from "./function.js";

test("values come out between 0 and 1", () => {
  const { y } = run(new Tensors([["x", Tensor.from([1, 2, 5])]]));
  assert.deepEqual([...y.values()], [0, 0.25, 1]);
});
