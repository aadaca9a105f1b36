import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { Tensor } from "weir";
import { Request } from "weir/http";
import { model } from "weir/testing";
import { handle } from "./function.ts";

const SAMPLES = "../classify-digits/samples";

test("samples are prepared as in training", async () => {
  const expected = JSON.parse(readFileSync(`${SAMPLES}/expected.json`, "utf8"));
  for (const [name, { digit, input, probabilities }] of Object.entries<any>(expected)) {
    const provided = model("digits", (inputs) => {
      const image = inputs.get("image").values("fp32");
      const worst = input.flat().reduce((worst: number, wanted: number, at: number) => Math.max(worst, Math.abs(wanted - image[at]!)), 0);
      assert.ok(worst < 1e-5, `${name} differs by ${worst}`);
      return { probabilities: Tensor.from(probabilities, [1, 10]) };
    });
    const answer = await handle(new Request("/", { method: "POST", body: readFileSync(`${SAMPLES}/${name}`) }));
    assert.equal((await answer.json()).digit, digit);
    provided[Symbol.dispose]();
  }
});

test("bad requests have distinct errors", async () => {
  const provided = model("digits", () => ({ probabilities: Tensor.from(new Array(10).fill(0.1)) }));
  for (const [method, path, body, status] of [
    ["GET", "/", "", 200],
    ["GET", "/nowhere", "", 404],
    ["DELETE", "/", "", 405],
    ["POST", "/", "", 400],
    ["POST", "/", "GIF89a", 415],
    ["POST", "/", Uint8Array.of(0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a, 1), 400],
    ["POST", "/", '{"pixels": 3}', 400],
    ["POST", "/", '{"pixels": [[0, 1]], "more": 1}', 400],
    ["POST", "/", '{"pixels": [[0, 1e999]]}', 400],
    ["POST", "/", '{"pixels": [[0, 1], [1]]}', 400],
    ["POST", "/", '{"pixels": [[3, 3]]}', 422],
    ["POST", "/classify", '{"pixels": [[0, 1]]}', 200],
  ] as const) {
    assert.equal((await handle(new Request(path, { method, body }))).status, status, `${method} ${path} ${body}`);
  }
  provided[Symbol.dispose]();
  const missing = await handle(new Request("/", { method: "POST", body: '{"pixels": [[0, 1]]}' }));
  assert.equal(missing.status, 500);
});
