// What is done to a bundle before it becomes a component.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import process from "node:process";
import { test } from "node:test";
import { sourced } from "../src/prelude/stacks.ts";

const FINISH = resolve("../../guest-sdk/js/finish.mjs");

/** Bundle `source`, and finish it. */
function finished(source: string, wanted: string) {
  const folder = join(tmpdir(), `weir-finish-${process.pid}`);
  mkdirSync(join(folder, "build"), { recursive: true });
  try {
    writeFileSync(join(folder, "function.ts"), source);
    const bundle = join(folder, "build/function.js");
    const { buildSync } = createRequire(resolve("package.json"))("esbuild");
    buildSync({ entryPoints: [join(folder, "function.ts")], bundle: true, format: "esm", sourcemap: true, outfile: bundle, absWorkingDir: folder });
    const { status, stderr } = spawnSync(process.execPath, [FINISH, bundle, wanted], { encoding: "utf8" });
    return { status, stderr, text: readFileSync(bundle, "utf8") };
  } finally {
    rmSync(folder, { recursive: true });
  }
}

test("a bundle without the export of its world is refused", () => {
  for (const [source, wanted, why] of [
    ["export const handle = 1;", "handler", "the function exports handle, and its world needs `handler`: export const handler = httpFunction(...);\n"],
    ["export const handler = 1; export default 2;", "stage", "the function exports default, handler, and its world needs `stage`: export const stage = tensorFunction(...);\n"],
    ["const stage = 1;", "stage", "the function exports nothing, and its world needs `stage`: export const stage = tensorFunction(...);\n"],
  ] as const) {
    const { status, stderr } = finished(source, wanted);
    assert.deepEqual([status, stderr], [1, why]);
  }
});

test("a bundle whose export is something else says so when it runs", () => {
  for (const [source, wanted, why] of [
    ["export const handler = async () => 1;", "handler", "the export `handler` is not what httpFunction makes: export const handler = httpFunction(...);"],
    ["const it = null; export { it as stage };", "stage", "the export `stage` is not what tensorFunction makes: export const stage = tensorFunction(...);"],
    ["export const run = 1; export const handler = { handle() {} };", "handler", undefined],
    ["const it = { run() {} }; export { it as stage, it as other };", "stage", undefined],
  ] as const) {
    const { status, text } = finished(source, wanted);
    assert.equal(status, 0);
    const ran = spawnSync(process.execPath, ["--input-type=module", "-e", text], { encoding: "utf8" });
    assert.equal(ran.status === 0, why === undefined, ran.stderr);
    if (why !== undefined) assert.ok(ran.stderr.includes(`TypeError: ${why}`), ran.stderr);
  }
});

test("a bundle knows the lines of its sources", () => {
  const source = '\n\ninterface Gone {\n  a: number;\n}\n\nexport const handler = 1;\n\nexport function fail(): Gone {\n  throw new RangeError("on purpose");\n}\n';
  const { status, stderr, text } = finished(source, "handler");
  assert.deepEqual([status, stderr], [0, ""]);
  const lines: string = JSON.parse(/__weirLines = (.*);/.exec(text)![1]!);
  const at = text.split("\n").findIndex((line: string) => line.includes("on purpose")) + 1;
  assert.notEqual(at, 10);
  assert.equal(sourced(`at fail (/build/function.js:${at}:9)`, lines), "at fail (function.ts:10)");
});
