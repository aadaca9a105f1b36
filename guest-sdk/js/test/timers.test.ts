// Tests of the prelude's timers and signals, on Node.js's clock.

import assert from "node:assert/strict";
import { afterEach, test } from "node:test";
import { HELD, READY, SERVER } from "../src/memory/outgoing.ts";
import { AbortController, AbortSignal } from "../src/prelude/abort.ts";
import { fetch } from "../src/prelude/fetch.ts";
import { clearInterval, clearTimeout, setInterval, setTimeout } from "../src/prelude/timers.ts";

const slept = (ms: number) => new Promise<void>((resolve) => void setTimeout(resolve, ms));

afterEach(() => {
  READY.now = true;
  assert.equal(HELD.size, 0, "everything was given back");
});

test("timers run in the order of their times and then of their calls", async () => {
  const ran: unknown[] = [];
  setTimeout((name) => ran.push(name), 20, "c");
  setTimeout(() => ran.push("a"), 1);
  setTimeout(() => void Promise.resolve().then(() => ran.push("b")));
  setTimeout(() => ran.push("d"), 20);
  clearTimeout(setTimeout(() => ran.push("cleared"), 5));
  clearTimeout(undefined);
  await slept(40);
  assert.deepEqual(ran, ["a", "b", "c", "d"]);
});

test("an interval repeats until it is cleared, also by itself", async () => {
  let count = 0;
  const id = setInterval(() => ++count === 3 && clearInterval(id), 2);
  await slept(40);
  assert.equal(count, 3);
});

test("an error in a timer does not stop the others", async (context) => {
  const logged = context.mock.method(console, "error", () => {});
  let ran = false;
  setTimeout(() => {
    throw new RangeError("on purpose");
  }, 1);
  setTimeout(() => (ran = true), 2);
  await slept(10);
  assert.deepEqual([ran, logged.mock.callCount()], [true, 1]);
});

test("the end of a call ends its timers", async () => {
  let ran = false;
  setTimeout(() => (ran = true), 5);
  const clock = (globalThis as unknown as { __weirClock: { end(): void; isNeeded(): boolean } }).__weirClock;
  assert.equal(clock.isNeeded(), true);
  clock.end();
  await slept(20);
  assert.equal(ran, false);
});

test("values other than functions are refused", () => {
  assert.throws(() => setTimeout("run()" as never), /a timer runs a function, and this is a string/);
});

test("a signal is aborted once, with its reason", () => {
  const controller = new AbortController();
  const seen: unknown[] = [];
  controller.signal.addEventListener("abort", ({ type, target }) => seen.push(type, target.reason), { once: true });
  const removed = () => seen.push("removed");
  controller.signal.addEventListener("abort", removed);
  controller.signal.removeEventListener("abort", removed);
  controller.signal.onabort = () => seen.push("onabort");
  controller.signal.throwIfAborted();
  controller.abort("why");
  controller.abort("again");
  assert.deepEqual(seen, ["abort", "why", "onabort"]);
  assert.throws(() => controller.signal.throwIfAborted(), (reason) => reason === "why");
  assert.equal(AbortSignal.abort().reason.name, "AbortError");
});

test("a timeout and any of several signals abort", async () => {
  const signal = AbortSignal.timeout(5);
  const controller = new AbortController();
  const any = AbortSignal.any([controller.signal, signal]);
  assert.deepEqual([any.aborted, AbortSignal.any([AbortSignal.abort(7)]).reason], [false, 7]);
  await slept(20);
  assert.deepEqual([any.aborted, any.reason.name, any.reason.message], [true, "TimeoutError", "it took longer than 5 ms"]);
});

test("a signal ends a fetch, and timers run during it", async () => {
  SERVER.answer = () => ({ body: "here" });
  READY.now = false;
  await assert.rejects(async () => fetch("http://a.example/", { signal: AbortSignal.timeout(5) }), { name: "TimeoutError" });
  const controller = new AbortController();
  setTimeout(() => controller.abort("enough"), 5);
  await assert.rejects(async () => fetch("http://a.example/", { signal: controller.signal }), (reason) => reason === "enough");
  await assert.rejects(async () => fetch("http://a.example/", { signal: AbortSignal.abort("before") }), (reason) => reason === "before");
  READY.now = true;
  const late = new AbortController();
  const pending = fetch("http://a.example/", { signal: late.signal });
  late.abort("late");
  await assert.rejects(async () => pending, (reason) => reason === "late");
  READY.now = false;
  // The response is ready when a timer has run.
  setTimeout(() => (READY.now = true), 5);
  assert.equal(await (await fetch("http://a.example/", { signal: new AbortController().signal })).text(), "here");
});
