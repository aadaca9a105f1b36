import assert from "node:assert/strict";
import { test } from "node:test";
import { answer, Request } from "../src/http.ts";
import { decode, encode, encodeClose, type Entry } from "../src/records.ts";
import { protocols, type SocketHandler, upgradeWebSocket } from "../src/websocket.ts";

const MEDIA_TYPE = "application/vnd.weir.websocket";

/** The records that a function sends to a client that has sent `body`. */
async function served(serve: SocketHandler, ...records: Uint8Array[]): Promise<unknown[]> {
  const body = Uint8Array.from(records.flatMap((record) => [...record]));
  const request = new Request("/", { headers: { "content-type": MEDIA_TYPE }, body });
  const response = await answer((request) => upgradeWebSocket(request, serve), request);
  assert.deepEqual([response.status, response.headers.get("content-type")], [200, MEDIA_TYPE]);
  const bytes = await response.bytes();
  return (await all(pieces(bytes, bytes.length || 1))).map((entry) => ("message" in entry ? entry.message : entry.close));
}

async function* pieces(bytes: Uint8Array, size: number): AsyncGenerator<Uint8Array> {
  for (let at = 0; at < bytes.length; at += size) yield bytes.slice(at, at + size);
}

async function all(source: AsyncIterable<Uint8Array>): Promise<Entry[]> {
  const entries: Entry[] = [];
  for await (const entry of decode(source)) entries.push(entry);
  return entries;
}

test("records are read from pieces of any size", async () => {
  // A byte order mark at the start is a part of the message.
  const records = [encode("\ufeffgrüezi"), encode(Uint8Array.of(0, 1)), encode(""), encodeClose({ code: 4001, reason: "enough" })];
  const body = Uint8Array.from(records.flatMap((record) => [...record]));
  for (const size of [1, 7, body.length]) {
    assert.deepEqual(await all(pieces(body, size)), [
      { message: "\ufeffgrüezi" },
      { message: Uint8Array.of(0, 1) },
      { message: "" },
      { close: { code: 4001, reason: "enough" } },
    ]);
  }
  await assert.rejects(all(pieces(Uint8Array.of(3, 0, 0, 0, 0), 5)), TypeError);
  assert.throws(() => encodeClose({ code: 1000, reason: "a".repeat(124) }), RangeError);
});

test("messages are echoed until the client closes", async () => {
  const closed: unknown[] = [];
  const echo: SocketHandler = async (socket) => {
    for await (const message of socket) await socket.send(message);
    closed.push(socket.closed);
  };
  assert.deepEqual(await served(echo, encode("one"), encode(Uint8Array.of(7)), encodeClose({ code: 4001, reason: "" })), ["one", Uint8Array.of(7)]);
  assert.deepEqual(closed, [{ code: 4001, reason: "" }]);
  assert.deepEqual(await served(echo), [], "a body without a close was lost");
  assert.deepEqual(closed[1], { code: 1006, reason: "" });
});

test("the handler decides how the WebSocket ends", async () => {
  assert.deepEqual(await served(() => {}), [{ code: 1000, reason: "" }]);
  assert.deepEqual(await served((socket) => socket.close(4000, "bye")), [{ code: 4000, reason: "bye" }]);
  const failed = () => {
    throw new Error("as asked");
  };
  assert.deepEqual(await served(failed), [{ code: 1011, reason: "" }]);
});

test("a message is sent when the node has taken the last one", async () => {
  const sent: number[] = [];
  const request = new Request("/", { headers: { "content-type": MEDIA_TYPE } });
  const response = upgradeWebSocket(request, async (socket) => {
    for (let n = 0; ; n++) {
      sent.push(n);
      await socket.send(String(n));
    }
  });
  const chunks = (response.body as AsyncIterable<Uint8Array>)[Symbol.asyncIterator]();
  await chunks.next();
  assert.deepEqual(sent, [0]);
  await chunks.next();
  assert.deepEqual(sent, [0, 1]);
});

test("ordinary requests are refused, and subprotocols are chosen", async () => {
  assert.equal((await answer((request) => upgradeWebSocket(request, () => {}), new Request("/"))).status, 426);
  const request = new Request("/", { headers: { "content-type": MEDIA_TYPE, "sec-websocket-protocol": "a, b" } });
  assert.deepEqual(protocols(request), ["a", "b"]);
  assert.equal(upgradeWebSocket(request, () => {}, { protocol: "b" }).headers.get("sec-websocket-protocol"), "b");
});
