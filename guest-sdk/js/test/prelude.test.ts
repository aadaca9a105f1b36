// Compares the prelude's objects with Node's.

import assert from "node:assert/strict";
import { test } from "node:test";
import { format } from "node:util";
import { formatted } from "../src/prelude/console.ts";
import * as encoding from "../src/prelude/encoding.ts";
import { URLSearchParams as OwnSearchParams } from "../src/prelude/query.ts";
import { getRandomValues, random, randomUUID } from "../src/prelude/random.ts";
import { sourced } from "../src/prelude/stacks.ts";
import * as url from "../src/prelude/url.ts";

const own = { ...encoding, ...url };

/** A generator of pseudorandom numbers, the same in every run. */
function numbers(seed: number): () => number {
  return () => (seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0) / 2 ** 32;
}

test("text encoding matches Node", () => {
  const next = numbers(1);
  for (let round = 0; round < 2000; round++) {
    const units = Array.from({ length: Math.floor(next() * 12) }, () => Math.floor(next() * [0x80, 0x800, 0x10000][round % 3]!));
    const text = String.fromCharCode(...units) + (round % 5 ? "" : "\u{1f600}");
    assert.deepEqual(new own.TextEncoder().encode(text), new TextEncoder().encode(text), JSON.stringify(text));
  }
});

test("decoding matches Node for valid and invalid bytes", () => {
  const next = numbers(2);
  const starts = [0x41, 0x80, 0xc2, 0xc1, 0xe0, 0xe2, 0xed, 0xf0, 0xf4, 0xf5, 0xa0, 0x9f, 0xbf, 0xef, 0xff];
  for (let round = 0; round < 20_000; round++) {
    const bytes = Uint8Array.from({ length: Math.floor(next() * 8) }, () => starts[Math.floor(next() * starts.length)]!);
    assert.equal(new own.TextDecoder().decode(bytes), new TextDecoder().decode(bytes), bytes.toString());
    const fatal = (decoder: { decode(bytes: Uint8Array): string }) => {
      try {
        return decoder.decode(bytes);
      } catch (error) {
        return (error as Error).name;
      }
    };
    assert.equal(fatal(new own.TextDecoder("utf-8", { fatal: true })), fatal(new TextDecoder("utf-8", { fatal: true })));
  }
  const long = new TextEncoder().encode("\ufeffgrüezi \u{1f600} ".repeat(3000));
  for (const options of [{}, { ignoreBOM: true }]) {
    assert.equal(new own.TextDecoder("utf-8", options).decode(long), new TextDecoder("utf-8", options).decode(long));
  }
});

test("Latin 1 decoding follows the standard", () => {
  // Node's decoder differs from the standard here in several releases.
  const decode = (...bytes: number[]) => new own.TextDecoder("latin1").decode(Uint8Array.from(bytes));
  assert.equal(decode(0x47, 0xfc, 0x80, 0x9f, 0x81, 0xa0, 0xff), "Gü€Ÿ\x81\xa0ÿ");
  assert.throws(() => new own.TextDecoder("utf-16"), RangeError);
});

test("query parsing and serialisation match Node", () => {
  for (const query of ["a=1&b=2&a=3", "?x", "a=%20+b&&c=d=e", "%zz=%c3%bc&%=1", "a=%ff", "", "=", "ü=ö"]) {
    const [mine, theirs] = [new OwnSearchParams(query), new URLSearchParams(query)];
    assert.deepEqual([...mine], [...theirs], query);
    assert.equal(mine.toString(), theirs.toString(), query);
    for (const params of [mine, theirs]) {
      params.set("a", "é !'()*~-._");
      params.append("b", "9");
      params.delete("x");
    }
    assert.equal(mine.toString(), theirs.toString(), query);
    assert.deepEqual([mine.getAll("b"), mine.has("a"), mine.size], [theirs.getAll("b"), theirs.has("a"), theirs.size]);
  }
});

test("URL parsing matches Node", () => {
  for (const [address, base] of [
    ["https://user:secret@example.com:8443/a/../b?x=1#end"],
    ["../up?q=ü", "http://example.com/a/b/c"],
    ["//other/x", "https://example.com"],
    ["http://EXAMPLE.com:80/%7e"],
    ["http://[::1]:9/"],
  ] as const) {
    const [mine, theirs] = [new own.URL(address, base), new URL(address, base)];
    const parts = (url: typeof mine) => [url.href, url.origin, url.host, url.pathname, url.search, url.hash, url.username];
    assert.deepEqual(parts(mine), parts(theirs as typeof mine));
    mine.searchParams.append("b", "é +");
    assert.ok(mine.href.includes("b=%C3%A9+%2B"), mine.href);
  }
  for (const wrong of ["", "/path", "http://", "http://a:b", "http://exa mple"]) assert.throws(() => new own.URL(wrong), TypeError);
});

test("base64 coding matches Node", () => {
  for (const text of ["", "a", "ab", "abc", "\xff\x00\xfe"]) {
    assert.equal(own.btoa(text), btoa(text));
    assert.equal(own.atob(btoa(text)), text);
  }
  assert.throws(() => own.btoa("ü€"));
  assert.throws(() => own.atob("a"));
});

test("random numbers are in range and differ", () => {
  const many = Array.from({ length: 1000 }, random);
  assert.ok(many.every((value) => value >= 0 && value < 1) && new Set(many).size === 1000);
  assert.match(randomUUID(), /^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
  assert.ok(getRandomValues(new Uint32Array(64)).some((value) => value !== 0));
  assert.throws(() => getRandomValues(new Uint8Array(65537)), RangeError);
});

test("console formatting matches Node", () => {
  for (const values of [
    ["a %s", 1], ["%s and %s", "a", "b"], ["%s"], ["%%"], ["100% %%", 1], ["%d %d %d", 4.5, "0x10", {}], ["%d", 5n], ["%i", "42.9px"], ["%i", 4.9],
    ["%f", "1.5e3x"], ["%j", { a: [1, "b"] }], ["%cred", "color: red"], ["%s", "a", "b", 3], ["%s %s", "a"], ["%x %s", 1], ["%s", null], ["%s", undefined],
    ["%o", 1], ["%O", "text"], [1, "%s", 2], [], ["%s", "%s", 1],
  ]) {
    const quoted = format(...values).replace("'text'", '"text"');
    assert.equal(formatted(values), quoted, JSON.stringify(values, (_, value) => (typeof value === "bigint" ? "big" : value)));
  }
  assert.equal(formatted(["%O and %o", { a: 1 }, [2]]), "{ a: 1 } and [2]");
});

test("stack traces have source lines", () => {
  const stack = "    at fail (/build/function.js:12:9)\n    at map (native)\n    at <anonymous> (/build/function.js:30:1)\n    at first (/build/function.js:1:1)\n";
  const lines = { names: ["sdk/src/http.ts", "function.ts"], runs: [[3, 0, 40], [10, 1, 5], [20, 0, 7]] };
  assert.equal(
    sourced(stack, JSON.stringify(lines)),
    "    at fail (function.ts:7)\n    at map (native)\n    at <anonymous> (sdk/src/http.ts:17)\n    at first (/build/function.js:1:1)\n",
  );
  assert.equal(sourced(stack, undefined), stack);
});
