import assert from "node:assert/strict";
import { test } from "node:test";
import { StatusError } from "../src/index.ts";
import { answer, Event, EventStream, type Handler, Request, Response } from "../src/http.ts";

const ask = (handler: Handler) => answer(handler, new Request("/"));

async function collected(iterable: AsyncIterable<Uint8Array>): Promise<string[]> {
  const chunks = [];
  for await (const chunk of iterable) chunks.push(new TextDecoder().decode(chunk));
  return chunks;
}

test("iterators are streamed with the type of their first chunk", async () => {
  for (const [source, type, text] of [
    [["a", "ü", ""].values(), "text/plain; charset=utf-8", "aü"],
    [[65, 66].map((byte) => Uint8Array.of(byte)).values(), "application/octet-stream", "AB"],
    [([] as string[]).values(), "text/plain; charset=utf-8", ""],
  ] as const) {
    const response = await ask(() => source as Iterator<string>);
    assert.equal(response.headers.get("content-type"), type);
    assert.equal(await response.text(), text);
  }
  const typed = await ask(() => new Response(["a,b"].values(), { status: 201, headers: { "content-type": "text/csv" } }));
  assert.deepEqual([typed.status, [...typed.headers], await typed.text()], [201, [["content-type", "text/csv"]], "a,b"]);
});

test("a handler may be an asynchronous generator", async () => {
  async function* count() {
    for (let n = 0; n < 3; n++) yield `${await Promise.resolve(n)} `;
  }
  assert.equal(await (await ask(count)).text(), "0 1 2 ");
});

test("an iterator advances one chunk at a time and ends with the body", async () => {
  const made: unknown[] = [];
  function* count() {
    try {
      for (let n = 0; ; n++) {
        made.push(n);
        yield String(n);
      }
    } finally {
      made.push("ended");
    }
  }
  const response = await ask(count);
  assert.deepEqual(made, [0], "the first chunk decides about the status");
  for await (const _ of response.body as AsyncIterable<Uint8Array>) if (made.length === 3) break;
  assert.deepEqual(made, [0, 1, 2, "ended"]);
});

test("an error before the first chunk is the response", async () => {
  function* missing(count: number) {
    for (let n = 0; n < count; n++) yield "a";
    throw new StatusError(404, "nothing here");
  }
  assert.equal((await ask(() => missing(0))).status, 404);
  assert.equal((await ask(() => new EventStream(missing(0)))).status, 404);
  await assert.rejects((await ask(() => missing(1))).text(), StatusError);
});

test("chunks of other types are refused", async (context) => {
  context.mock.method(console, "error", () => {});
  await assert.rejects(ask(() => [1].values()), /a chunk of a body is text or a Uint8Array, and this one is a number; for JSON, give \[...iterator\]/);
  await assert.rejects((await ask(() => ["a", {}].values())).text(), /this one is an Object/);
});

test("a chunk of another type ends the iterator", async (context) => {
  context.mock.method(console, "error", () => {});
  for (const before of [0, 1]) {
    let hasEnded = false;
    function* wrong() {
      try {
        for (let n = 0; n < before; n++) yield "a";
        yield 7 as unknown as string;
      } finally {
        hasEnded = true;
      }
    }
    await ask(wrong)
      .then((response) => response.text())
      .catch(() => {});
    assert.ok(hasEnded, `after ${before} chunks`);
  }
});

test("all readers of a streamed body get all of it", async () => {
  const response = await ask(() => ["a", "b", "c"].values());
  assert.deepEqual(await Promise.all([response.text(), response.text()]), ["abc", "abc"]);
  assert.equal(await response.text(), "abc");
});

test("an event has its fields in lines", () => {
  for (const [event, lines] of [
    [new Event("one\ntwo\r\nthree\rfour\u2028five"), ["data: one", "data: two", "data: three", "data: four\u2028five"]],
    [new Event(""), ["data: "]],
    [new Event({ n: 1 }, { event: "count", id: "7", retry: 250 }), ["event: count", "id: 7", "retry: 250", 'data: {"n":1}']],
    [new Event(undefined, { comment: "still\nhere" }), [": still", ": here"]],
  ] as const) {
    assert.equal(event.encode(), [...lines, "", ""].join("\n"));
  }
});

test("fields of several lines are refused", () => {
  for (const init of [{ event: "a\nb" }, { id: "a\r" }, { id: "a\0" }, { event: 1 as never }, { retry: -1 }, { retry: 0.5 }]) {
    assert.throws(() => new Event("x", init), TypeError);
  }
});

test("a stream of events has its headers", async () => {
  const response = await ask(() => new EventStream([1, "two", new Event(new Uint8Array(2), { event: "last" })], { headers: { "x-a": "b" } }));
  assert.deepEqual([...response.headers], [["x-a", "b"], ["content-type", "text/event-stream"], ["cache-control", "no-cache"]]);
  assert.deepEqual(await collected(response.body as AsyncIterable<Uint8Array>), ["data: 1\n\n", "data: two\n\n", "event: last\ndata: [0,0]\n\n"]);
  await assert.rejects(ask(() => new EventStream([new Map()])), /a Map cannot be JSON/);
});
