import assert from "node:assert/strict";
import { test } from "node:test";
import { Model, StatusError, Tensor, Tensors, Unavailable } from "../src/index.ts";
import { answer, type Handler, Headers, Request, Response } from "../src/http.ts";
import { model } from "../src/testing.ts";

test("a request exposes its parts", async () => {
  const request = new Request("/a/b?x=1&y=a%20b", { method: "POST", headers: { "Content-Type": "text/plain" }, body: "grüezi" });
  assert.deepEqual([request.path, request.query.get("y"), request.headers.get("content-type")], ["/a/b", "a b", "text/plain"]);
  assert.equal(await request.text(), "grüezi");
  assert.equal(await request.text(), "grüezi");
  assert.equal(new Request("").path, "/");
});

test("invalid bodies become 400 responses", async () => {
  for (const read of [
    () => new Request("/", { body: Uint8Array.of(255) }).text(),
    () => new Request("/", { body: "{" }).json(),
  ]) {
    await assert.rejects(read, (error: StatusError) => error.status === 400);
  }
});

test("handler results become responses", async () => {
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

test("WeirErrors become responses and other exceptions do not", async (context) => {
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
  // A value without a JSON form must not become an empty response.
  await assert.rejects(answer(() => Response, new Request("/")), TypeError);
});

test("values without a JSON form are rejected with a suggestion", async (context) => {
  context.mock.method(console, "error", () => {});
  using _ = model("any", () => ({}));
  const any = Model.open("any");
  for (const [value, message] of [
    [{ y: Tensor.from([1]) }, /^a Tensor cannot be JSON, at "y": give its values\(\)/],
    [new Tensors([]), /^a Tensors cannot be JSON: give the values\(\)/],
    [any, /^a Model cannot be JSON: give its describe\(\)/],
    [[any.submit({ x: Tensor.from([1]) })], /^a Pending cannot be JSON, at "0": await it/],
    [new Map([["a", 1]]), /^a Map cannot be JSON: give Object.fromEntries/],
    [{ seen: [new Set([1])] }, /^a Set cannot be JSON, at "0": give \[...set\]/],
    [new RangeError("a mistake"), /^a RangeError cannot be JSON: give its message/],
    [{ data: new ArrayBuffer(2) }, /^an ArrayBuffer cannot be JSON, at "data": give new Uint8Array/],
    [{ data: new DataView(new ArrayBuffer(2)) }, /^a DataView cannot be JSON/],
    [{ later: Promise.resolve(1) }, /^a Promise cannot be JSON, at "later": await it/],
    [{ r: new Response("x") }, /^a Response cannot be JSON, at "r": give await response.json\(\)/],
    [new Request("/"), /^a Request cannot be JSON: give what of it is wanted/],
    [{ h: new Headers() }, /^a Headers cannot be JSON, at "h": give Object.fromEntries/],
    [{ all: [1].values() }, /cannot be JSON, at "all": give \[...iterator\]/],
    [/x/, /^a RegExp cannot be JSON: give its source/],
    [{ values: BigInt64Array.of(1n) }, /^a bigint cannot be JSON, at "0": give Number/],
  ] as const) {
    await assert.rejects(answer(() => value, new Request("/")), { name: "TypeError", message });
    assert.throws(() => Response.json(value), { name: "TypeError", message });
  }
  for (const status of [7, 199, 600, 200.5, "200", null]) {
    assert.throws(() => new Response("", { status: status as never }), { name: "TypeError", message: `the status ${status} is not from 200 to 599` });
  }
  for (const body of [{ a: 1 }, new ArrayBuffer(2), new Float32Array(2), 7]) {
    assert.throws(() => new Response(body as never), /^TypeError: a body is text, a Uint8Array or a Tensor, and this one is an? /);
  }
  const date = new Date(0);
  assert.equal(await Response.json({ date, no: undefined, list: [new Uint8Array(1)] }).text(), '{"date":"1970-01-01T00:00:00.000Z","list":[[0]]}');
});
