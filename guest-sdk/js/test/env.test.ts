import assert from "node:assert/strict";
import { test } from "node:test";
import { env } from "../src/index.ts";

test("variables are read by name and cannot be changed", () => {
  const name = "PATH";
  assert.equal(typeof env[name], "string");
  assert.deepEqual([env.WEIR_NO_SUCH_VARIABLE, name in env, "toString" in env, Object.keys(env).includes(name)], [undefined, true, false, true]);
  assert.deepEqual([{ ...env }[name], env.constructor], [env[name], undefined]);
  assert.throws(() => ((env as Record<string, string>)[name] = "x"), TypeError);
  assert.throws(() => delete (env as Record<string, string>)[name], TypeError);
});

test("variables cannot be read while the function is built", () => {
  const scope = globalThis as { __weirWatched?: () => void };
  scope.__weirWatched = () => {};
  try {
    assert.throws(() => env.PATH, /read env in the handler/);
  } finally {
    delete scope.__weirWatched;
  }
});
