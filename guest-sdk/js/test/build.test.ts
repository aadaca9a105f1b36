// Tests of the build steps before and after compilation, and of a whole build.

import assert from "node:assert/strict";
import { Buffer } from "node:buffer";
import { spawnSync } from "node:child_process";
import { mkdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import process from "node:process";
import { test } from "node:test";
import { sourced } from "../src/prelude/stacks.ts";
import { checked, kindOf } from "../steps/exports.mjs";
import { bound } from "../steps/late.mjs";
import { table } from "../steps/lines.mjs";
import { frozen, WATCHED } from "../steps/watch.mjs";

/** Bundles `source`. Returns the text and the source map. */
function bundled(source: string): { text: string; map: object } {
  const folder = join(tmpdir(), `weir-build-${process.pid}`);
  mkdirSync(folder, { recursive: true });
  try {
    writeFileSync(join(folder, "function.ts"), source);
    const bundle = join(folder, "build/function.js");
    const { buildSync } = createRequire(resolve("package.json"))("esbuild");
    buildSync({ entryPoints: [join(folder, "function.ts")], bundle: true, format: "esm", sourcemap: true, outfile: bundle, absWorkingDir: folder });
    return { text: readFileSync(bundle, "utf8"), map: JSON.parse(readFileSync(`${bundle}.map`, "utf8")) };
  } finally {
    rmSync(folder, { recursive: true });
  }
}

function ran(text: string) {
  return spawnSync(process.execPath, ["--input-type=module", "-e", text], { encoding: "utf8" });
}

test("the export determines the kind of a function", () => {
  const refused = (names: string[]) => checked(names, (why: string) => why);
  assert.equal(checked(["other", "handler"], assert.fail), "http");
  assert.equal(checked(["stage"], assert.fail), "tensor");
  const needs = "and needs one of: export const handler = httpFunction(...); export const stage = tensorFunction(...);";
  assert.equal(refused(["handle", "default"]), `the function exports handle, default, ${needs}`);
  assert.equal(refused([]), `the function exports nothing, ${needs}`);
  assert.equal(refused(["handler", "stage"]), `the function exports both a handler and a stage, ${needs}`);
});

test("a bundle with an invalid export throws when it runs", () => {
  for (const [source, kind, why] of [
    ["export const handler = async () => 1;", "http", "the export `handler` is not what httpFunction makes: export const handler = httpFunction(...);"],
    ["const it = null; export { it as stage };", "tensor", "the export `stage` is not what tensorFunction makes: export const stage = tensorFunction(...);"],
    ["export const run = 1; export const handler = { handle() {} };", "http", undefined],
    ["const it = { run() {} }; export { it as stage, it as other };", "tensor", undefined],
  ] as const) {
    const { text } = bundled(source);
    const { status, stderr } = ran(`${text}\n${kindOf(kind, text)}`);
    assert.equal(status === 0, why === undefined, stderr);
    if (why !== undefined) assert.ok(stderr.includes(`TypeError: ${why}`), stderr);
  }
});

const SOURCE = '\n\ninterface Gone {\n  a: number;\n}\n\nexport const handler = 1;\n\nexport function fail(): Gone {\n  throw new RangeError("on purpose");\n}\n';

test("a bundle maps its lines to source lines", () => {
  const { text, map } = bundled(SOURCE);
  const lines: string = JSON.parse(/__weirLines = (.*);/.exec(table(map))![1]!);
  const at = text.split("\n").findIndex((line: string) => line.includes("on purpose")) + 1;
  assert.notEqual(at, 10);
  assert.equal(sourced(`at fail (/build/function.js:${at}:9)`, lines), "at fail (function.ts:10)");
});

test("build-time calls are reported with source lines", () => {
  const { text, map } = bundled(SOURCE);
  const at = text.split("\n").findIndex((line: string) => line.includes("on purpose")) + 1;
  const watched = (asked: unknown[]) => ran(`globalThis.__weirWatched = () => (${JSON.stringify(asked)});\n${WATCHED}`);
  assert.equal(watched([]).status, 0);
  const { status, stderr } = watched([["Date.now()", [at]], ["Date.now()", [at]], ["Math.random()", [at]], ["Math.random()", []]]);
  assert.notEqual(status, 0);
  const warnings = frozen(stderr.slice(stderr.indexOf("Error: ")), map)!;
  assert.equal(warnings.length, 2);
  assert.ok(warnings[0]!.startsWith("function.ts:10: Date.now() is called when the function is built"), warnings[0]);
  assert.equal(frozen("ReferenceError: a is not defined", map), undefined);
});

test("a build creates a component and warns about frozen values", () => {
  const folder = join(tmpdir(), `weir-built-${process.pid}`);
  const packages = dirname(dirname(createRequire(resolve("package.json")).resolve("esbuild/package.json")));
  const built = (lines: string[]) => {
    writeFileSync(join(folder, "function.js"), ['import { httpFunction } from "weir/http";', ...lines].join("\n"));
    const build = [resolve("../../guest-sdk/js/build.mjs"), "function.js", "function.wasm", resolve("../../wit")];
    const { status, stderr } = spawnSync(process.execPath, build, { encoding: "utf8", cwd: folder });
    return { status, stderr };
  };
  const imports = (name: string) => readFileSync(join(folder, "function.wasm")).includes(name);
  mkdirSync(folder, { recursive: true });
  try {
    symlinkSync(packages, join(folder, "node_modules"));
    writeFileSync(join(folder, "package.json"), "{}");
    const handler = "export const handler = httpFunction(() => [Date.now(), new Date(), crypto.randomUUID()]);";
    assert.deepEqual(built([handler]), { status: 0, stderr: "" });
    assert.deepEqual(["wasi:http/outgoing-handler", "weir:inference/models", "wasi:random/random"].map(imports), [false, false, true]);
    const fetching = ['import { Model } from "weir";', "export const handler = httpFunction(() => fetch(`http://${Model.open('a').describe().name}/`));"];
    assert.deepEqual(built(fetching), { status: 0, stderr: "" });
    assert.deepEqual(["wasi:http/outgoing-handler@0.2.11", "weir:inference/models"].map(imports), [true, true]);
    const { status, stderr } = built(["const began = String(new Date()), id = Math.random(), day = String(new Date(0));", "function uuid() {", "  return crypto.randomUUID();", "}", "const name = uuid();", handler]);
    const warnings = stderr.trim().split("\n").map((line: string) => line.split(" is called")[0]);
    assert.deepEqual([status, warnings], [0, ["warning: function.js:2: new Date()", "warning: function.js:2: Math.random()", "warning: function.js:4: crypto.randomUUID()"]]);
    const broken = built(["null.f();", handler]);
    assert.equal(broken.status, 1);
    assert.match(broken.stderr, /^the function's modules run when it is built, and fail: Error: cannot read property 'f' of null\n.*\(function.js:2\)$/m);
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test("late binding renames only the late imports", () => {
  const section = (kind: number, text: string) => [kind, 0x80 | text.length, 0, ...Buffer.from(text)];
  const component = (import_: string) => Buffer.from([0, 97, 115, 109, 13, 0, 1, 0, ...section(0, "late:other"), ...section(10, import_), ...section(4, "late:http")]);
  assert.deepEqual(bound(component("late:http/types late:io")), component("wasi:http/types wasi:io"));
});
