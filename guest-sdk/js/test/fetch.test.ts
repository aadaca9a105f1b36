// Tests of the prelude's `fetch` against an in-memory server.

import assert from "node:assert/strict";
import { afterEach, test } from "node:test";
import { type Given, HELD, RequestOptions, type Sent, SERVER } from "../src/memory/outgoing.ts";
import { parsed } from "../src/prelude/address.ts";
import { fetch } from "../src/prelude/fetch.ts";
import { Response } from "../src/response.ts";

/** Answers the next requests with `answers`. Returns the list of sent requests. */
function served(...answers: Given[]): Sent[] {
  const sent: Sent[] = [];
  SERVER.answer = (request) => (sent.push(request), answers[Math.min(sent.length, answers.length) - 1]!);
  return sent;
}

afterEach(() => {
  assert.equal(HELD.size, 0, "everything was given back");
});

test("a response has status, headers and body", async () => {
  const sent = served({ status: 201, headers: [["Content-Type", "application/json"], ["Transfer-Encoding", "chunked"]], body: '{"a": [1, 2]}' });
  const response = await fetch("http://example.com:8080?x=1#part");
  assert.ok(response instanceof Response);
  assert.deepEqual([response.status, response.ok, response.url], [201, true, "http://example.com:8080/?x=1"]);
  assert.deepEqual([...response.headers], [["content-type", "application/json"]]);
  assert.deepEqual([await response.json(), await response.text()], [{ a: [1, 2] }, '{"a": [1, 2]}']);
  assert.deepEqual(sent, [{ method: "GET", url: "http://example.com:8080/?x=1", headers: [["user-agent", "weir"]], body: "" }]);
});

test("a body is sent with its type and length", async () => {
  const long = "x".repeat(10_000);
  for (const [body, type, text] of [
    ["hi", "text/plain;charset=UTF-8", "hi"],
    [Uint8Array.of(104, 105), undefined, "hi"],
    [Uint8Array.of(104, 105).buffer, undefined, "hi"],
    [new URLSearchParams({ a: "b c" }), "application/x-www-form-urlencoded;charset=UTF-8", "a=b+c"],
    [long, "text/plain;charset=UTF-8", long],
  ] as const) {
    const [sent] = [served({})];
    assert.equal(await (await fetch("https://example.com/", { method: "post", body })).text(), "");
    const headers = Object.fromEntries(sent[0]!.headers);
    assert.deepEqual([sent[0]!.method, headers["content-type"], headers["content-length"]], ["POST", type, String(text.length)]);
    assert.equal(sent[0]!.body, text);
  }
});

test("redirects follow the standard", async () => {
  const to = (status: number, location: string): Given => ({ status, headers: [["location", location]], body: "moved" });
  const headers = { authorization: "secret" };
  let sent = served(to(302, "/b?c"), to(307, "https://other.example/d"), { body: "there" });
  const response = await fetch("http://a.example/a", { method: "POST", body: "hi", headers });
  assert.deepEqual([await response.text(), response.url], ["there", "https://other.example/d"]);
  assert.deepEqual(
    sent.map(({ method, url, headers, body }) => [method, url, Object.fromEntries(headers).authorization, body]),
    [
      ["POST", "http://a.example/a", "secret", "hi"],
      ["GET", "http://a.example/b?c", "secret", ""],
      ["GET", "https://other.example/d", undefined, ""],
    ],
  );
  sent = served(to(307, "/b"), { body: "there" });
  await (await fetch("http://a.example/a", { method: "POST", body: "hi" })).text();
  assert.deepEqual(sent.map(({ method, body }) => [method, body]), [["POST", "hi"], ["POST", "hi"]]);
  sent = served(to(302, "/b"));
  assert.equal(await (await fetch("http://a.example/a", { redirect: "manual" })).text(), "moved");
  served(to(302, "/b"));
  await assert.rejects(fetch("http://a.example/a"), { name: "TypeError", message: /redirects more than 20 times/ });
});

test("fetch waits only when it is awaited", async () => {
  let asked = 0;
  SERVER.answer = () => (asked++, { body: "here" });
  const response = fetch("http://a.example/");
  await Promise.resolve();
  assert.equal(asked, 0);
  assert.equal(await response.then((response) => response.text()), "here");
  assert.equal((await response).status, 200);
  assert.equal(asked, 1);
});

test("a time limit is passed to the node", async () => {
  served({});
  await (await fetch("http://a.example/", { timeoutMs: 1.5 })).text();
  assert.deepEqual(RequestOptions.last, [1_500_000, 1_500_000, 1_500_000]);
});

test("failed requests throw a TypeError with the reason", async () => {
  served({ refused: { tag: "HTTP-request-denied" } });
  await assert.rejects(fetch("http://a.example/"), { name: "TypeError", message: /fetch of http:\/\/a\.example\/ failed: .*outbound_hosts = \["a\.example"\]/ });
  served({ refused: { tag: "DNS-error", val: {} } });
  await assert.rejects(fetch("http://a.example/"), /failed: DNS error$/);
  for (const [url, init, why] of [
    ["/a", {}, /begins with http/],
    ["ftp://a/", {}, /begins with http/],
    ["http:///a", {}, /names no host/],
    ["http://me:secret@a.example/", {}, /send it as a header/],
    ["http://a.example/", { body: "hi" }, /a GET has no body/],
    ["http://a.example/", { redirect: "bogus" }, /redirect is follow, manual or error/],
    ["http://a.example/", { timeoutMs: 0 }, /timeoutMs is a number of milliseconds/],
    ["http://a.example/", { headers: { "bad name": "x" } }, /the header bad name cannot be sent: invalid syntax/],
    ["http://a.example/", { method: "POST", body: { a: 1 } }, /this one is an Object; give JSON.stringify/],
  ] as const) {
    await assert.rejects(fetch(url, init as object), { name: "TypeError", message: why });
  }
});

test("relative addresses resolve as in URL", () => {
  const base = "http://a.example/b/c/d?q";
  for (const path of ["g", "./g", "g/", "/g", "//g", "?y", "g?y", "", ".", "./", "..", "../", "../g", "../..", "../../../g", "./../g", "g/./h", "g/../h", "http://h", "https://h/x?y#z", "ü?ß"]) {
    const { scheme, authority, path: found } = parsed(path, parsed(base));
    const url = new URL(path, base);
    assert.equal(`${scheme}://${authority}${found}`, url.href.replace(/#.*/, ""), path);
  }
});
