import assert from "node:assert/strict";
import { test } from "node:test";
import { StatusError, Tensor, Unavailable } from "../src/index.ts";
import { answer, type Handler, Request, Response } from "../src/http.ts";

test("a request is taken apart", async () => {
  const request = new Request("/a/b?x=1&y=a%20b", { method: "POST", headers: { "Content-Type": "text/plain" }, body: "grüezi" });
  assert.deepEqual([request.path, request.query.get("y"), request.headers.get("content-type")], ["/a/b", "a b", "text/plain"]);
  assert.equal(await request.text(), "grüezi");
  assert.equal(await request.text(), "grüezi");
  assert.equal(new Request("").path, "/");
});

test("bad bodies are the caller's fault", async () => {
  for (const read of [
    () => new Request("/", { body: Uint8Array.of(255) }).text(),
    () => new Request("/", { body: "{" }).json(),
  ]) {
    await assert.rejects(read, (error: StatusError) => error.status === 400);
  }
});

test("what a handler gives becomes an answer", async () => {
  const of = (value: any) => answer(() => value, new Request("/"));
  for (const [value, type, text] of [
    ["hi", "text/plain; charset=utf-8", "hi"],
    [Uint8Array.of(104), "application/octet-stream", "h"],
    [{ a: new Float32Array([1, 2]) }, "application/json", '{"a":[1,2]}'],
    [Tensor.from(Uint8Array.of(104)), "application/octet-stream", "h"],
    [null, null, ""],
  ] as const) {
    const response = await of(value);
    assert.deepEqual([response.status, response.headers.get("content-type"), await response.text()], [200, type, text]);
  }
  const page = new Response("<p>", { status: 203, headers: { "Content-Type": "text/html" } });
  assert.equal((await of(page)).headers.get("content-type"), "text/html");
});

test("errors become answers and exceptions do not", async (context) => {
  const logged = context.mock.method(console, "error", () => {});
  const thrown = (error: unknown): Handler => () => {
    throw error;
  };
  const teapot = await answer(thrown(new StatusError(418, "a teapot")), new Request("/"));
  assert.deepEqual([teapot.status, await teapot.text()], [418, "a teapot\n"]);
  assert.equal((await answer(thrown(new Unavailable("soon")), new Request("/"))).headers.get("retry-after"), "1");
  assert.equal(logged.mock.callCount(), 0);
  await assert.rejects(answer(thrown(new RangeError("a mistake")), new Request("/")), RangeError);
  assert.equal(logged.mock.callCount(), 1);
  // What has no JSON is no empty answer.
  await assert.rejects(answer(() => Response, new Request("/")), TypeError);
});
