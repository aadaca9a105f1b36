/**
 * `fetch`, over `wasi:http` 0.2. No part of the prelude, for a function that can send requests imports more than others do: builds put it in
 * where a program names it (esbuild's `--inject`).
 *
 * A request is sent when `fetch` is called, and waited for where what it gives is awaited: several at once take no longer than the longest. The
 * node sends those to hosts that `outbound_hosts` names.
 */

import { handle } from "late:http/outgoing-handler@0.2.11";
import {
  Fields,
  type FutureIncomingResponse,
  type IncomingBody,
  OutgoingBody,
  OutgoingRequest,
  RequestOptions,
} from "late:http/types@0.2.11";
import { joined } from "../chunks.ts";
import { Headers, type HeadersInit } from "../headers.ts";
import { kindOf } from "../kinds.ts";
import { Response } from "../response.ts";
import { type Address, parsed } from "./address.ts";

/** How to send a request. */
export interface FetchInit {
  /** `GET` unless there is a body, and then `POST` has to be said. */
  method?: string;
  headers?: HeadersInit;
  /** Not with `GET` and `HEAD`. */
  body?: string | Uint8Array | ArrayBuffer | URLSearchParams | null;
  /** What to do with an answer that names another address: ask there, give that answer as it is, or fail. `follow` if not given. */
  redirect?: "follow" | "manual" | "error";
  /** Give up when there was no connection, no answer, or nothing more of one for this long. The invocation's own deadline holds in any case. */
  timeoutMs?: number;
  /** There is no `AbortController` to make one: one of another maker is looked at once. */
  signal?: { aborted: boolean } | null;
}

/** As the Fetch standard has it. */
const REDIRECTS_MAX = 20;
const REDIRECTS = [301, 302, 303, 307, 308];
/** What a stream takes at once. */
const WRITE_BYTES_MAX = 4096;
const READ_BYTES_MAX = 1 << 20;
const METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];
/** What is between two hosts, and not part of the answer. */
const HOP_BY_HOP = ["connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"];

/** One request, as it is sent. */
interface Outgoing {
  address: Address;
  method: string;
  headers: Headers;
  body: Uint8Array;
  timeoutMs: number | undefined;
}

/**
 * Ask `url`, which is `http` or `https` and absolute.
 *
 * @throws {TypeError} where the request cannot be sent, or there is no answer. A status of failure is an answer.
 */
export function fetch(url: string | URL, init?: FetchInit | null): Promise<Response> {
  const { redirect = "follow", ...asked } = init ?? {};
  try {
    if (!["follow", "manual", "error"].includes(redirect)) throw new TypeError(`redirect is follow, manual or error, and not ${redirect}`);
    const outgoing = request(url, asked);
    const sent = send(outgoing);
    return new WhenAwaited(() => answer(outgoing, sent, redirect)) as unknown as Promise<Response>;
  } catch (error) {
    return Promise.reject(error);
  }
}

/** A promise that is kept where it is asked for, and not before: until then, the function goes on. */
class WhenAwaited<T> implements PromiseLike<T> {
  private kept: Promise<T> | undefined;

  constructor(private readonly keep: () => T) {}

  then<A = T, B = never>(done?: ((value: T) => A | PromiseLike<A>) | null, failed?: ((reason: unknown) => B | PromiseLike<B>) | null): Promise<A | B> {
    this.kept ??= new Promise<T>((resolve) => resolve(this.keep()));
    return this.kept.then(done, failed);
  }

  catch<B = never>(failed?: ((reason: unknown) => B | PromiseLike<B>) | null): Promise<T | B> {
    return this.then(null, failed);
  }

  finally(then?: (() => void) | null): Promise<T> {
    return this.then().finally(then);
  }
}

function request(url: string | URL, { method = "GET", headers = [], body = null, timeoutMs, signal }: FetchInit): Outgoing {
  if ("__weirWatched" in globalThis) throw new TypeError("nothing can be fetched while the function is built: call fetch in the handler");
  if (signal?.aborted) throw new TypeError("fetch was aborted");
  if (timeoutMs !== undefined && !(timeoutMs > 0)) throw new TypeError(`timeoutMs is a number of milliseconds, and not ${String(timeoutMs)}`);
  const verb = METHODS.includes(method.toUpperCase()) ? method.toUpperCase() : method;
  if (body !== null && (verb === "GET" || verb === "HEAD")) throw new TypeError(`a ${verb} has no body: give a method, as { method: "POST", body }`);
  const all = new Headers(headers);
  const { bytes, type } = encoded(body);
  if (type !== undefined && !all.has("content-type")) all.set("content-type", type);
  if (!all.has("content-length") && (body !== null || verb === "POST" || verb === "PUT")) all.set("content-length", String(bytes.length));
  if (!all.has("user-agent")) all.set("user-agent", "weir");
  return { address: parsed(String(url)), method: verb, headers: all, body: bytes, timeoutMs };
}

function encoded(body: NonNullable<FetchInit["body"]> | null): { bytes: Uint8Array; type?: string } {
  if (body === null) return { bytes: new Uint8Array() };
  if (typeof body === "string") return { bytes: new TextEncoder().encode(body), type: "text/plain;charset=UTF-8" };
  if (body instanceof Uint8Array) return { bytes: body };
  if (body instanceof ArrayBuffer) return { bytes: new Uint8Array(body) };
  if (body instanceof URLSearchParams) {
    return { bytes: new TextEncoder().encode(String(body)), type: "application/x-www-form-urlencoded;charset=UTF-8" };
  }
  throw new TypeError(`a body is text, a Uint8Array, an ArrayBuffer or URLSearchParams, and this one is ${kindOf(body)}; give ${ArrayBuffer.isView(body) ? "new Uint8Array(body.buffer)" : "JSON.stringify(value) for JSON"}`);
}

/** Send `outgoing`, and do not wait for its answer. */
function send({ address, method, headers, body, timeoutMs }: Outgoing): FutureIncomingResponse {
  return asking(address, () => {
    const raw = new OutgoingRequest(fieldsOf(headers, address));
    raw.setMethod(METHODS.includes(method) ? { tag: method.toLowerCase() } : { tag: "other", val: method });
    raw.setScheme({ tag: address.scheme.toUpperCase() });
    raw.setAuthority(address.authority);
    raw.setPathWithQuery(address.path);
    const out = raw.body();
    const future = handle(raw, timeouts(timeoutMs));
    const stream = out.write();
    try {
      for (let at = 0; at < body.length; at += WRITE_BYTES_MAX) stream.blockingWriteAndFlush(body.subarray(at, at + WRITE_BYTES_MAX));
    } catch {
      // Whoever answers before it has read all of it; if nobody does, the answer says why.
    }
    stream[Symbol.dispose]();
    try {
      OutgoingBody.finish(out, null);
    } catch {
      // As above.
    }
    return future;
  });
}

function fieldsOf(headers: Headers, address: Address): Fields {
  const encoder = new TextEncoder();
  const list = [...headers].map(([name, value]): [string, Uint8Array] => [name, encoder.encode(value)]);
  try {
    return Fields.fromList(list);
  } catch (error) {
    // Which of them it was is not told.
    for (const field of list) {
      try {
        Fields.fromList([field])[Symbol.dispose]();
      } catch {
        throw failed(address, `the header ${field[0]} cannot be sent: ${payload(error)?.tag.replaceAll("-", " ") ?? error}`);
      }
    }
    throw error;
  }
}

function timeouts(timeoutMs: number | undefined): RequestOptions | null {
  if (timeoutMs === undefined) return null;
  const options = new RequestOptions();
  const duration = Math.min(timeoutMs, 2 ** 31) * 1e6;
  options.setConnectTimeout(duration);
  options.setFirstByteTimeout(duration);
  options.setBetweenBytesTimeout(duration);
  return options;
}

/** The answer to `outgoing`, or to where it leads. */
function answer(outgoing: Outgoing, sent: FutureIncomingResponse, redirect: FetchInit["redirect"]): Response {
  for (let redirects = 0; ; redirects++) {
    const response = received(outgoing.address, sent);
    const location = response.headers.get("location");
    if (!REDIRECTS.includes(response.status) || location === null || redirect === "manual") return response;
    response.drop();
    if (redirect === "error") throw failed(outgoing.address, `it redirects to ${location}`);
    if (redirects === REDIRECTS_MAX) throw failed(outgoing.address, `it redirects more than ${REDIRECTS_MAX} times`);
    outgoing = redirected(outgoing, response.status, parsed(location, outgoing.address));
    sent = send(outgoing);
  }
}

/** What to ask where an answer of `status` led. */
function redirected({ address: from, method, headers, body, timeoutMs }: Outgoing, status: number, address: Address): Outgoing {
  const asGet = status === 303 ? method !== "GET" && method !== "HEAD" : method === "POST" && (status === 301 || status === 302);
  const kept = new Headers(headers);
  if (asGet) ["content-length", "content-type", "content-encoding"].forEach((name) => kept.delete(name));
  const elsewhere = address.scheme !== from.scheme || address.authority !== from.authority;
  if (elsewhere) ["authorization", "cookie", "proxy-authorization"].forEach((name) => kept.delete(name));
  return { address, method: asGet ? "GET" : method, headers: kept, body: asGet ? new Uint8Array() : body, timeoutMs };
}

/** Wait for what was sent. */
function received(address: Address, future: FutureIncomingResponse): Fetched {
  return asking(address, () => {
    const pollable = future.subscribe();
    pollable.block();
    pollable[Symbol.dispose]();
    // There once; the outer result is whether it was taken before.
    const { val: result } = future.get()!;
    future[Symbol.dispose]();
    if (result.tag === "err") throw { payload: result.val };
    const raw = result.val;
    const fields = raw.headers();
    const decoder = new TextDecoder();
    const headers = fields.entries().map(([name, value]) => [name, decoder.decode(value)] as const);
    fields[Symbol.dispose]();
    const response = new Fetched(address, raw.status(), headers, raw.consume());
    raw[Symbol.dispose]();
    return response;
  });
}

/** An answer whose body is received when it is asked for. */
class Fetched extends Response {
  override readonly url: string;
  private received: Uint8Array | undefined;

  constructor(
    private readonly address: Address,
    status: number,
    headers: (readonly [string, string])[],
    private readonly raw: IncomingBody,
  ) {
    super(null, { status, headers: headers.filter(([name]) => !HOP_BY_HOP.includes(name.toLowerCase())) });
    this.url = `${address.scheme}://${address.authority}${address.path}`;
  }

  /** @internal */
  override get body(): Uint8Array {
    return (this.received ??= this.receive());
  }

  /** Do without the body. */
  drop(): void {
    this.received ??= new Uint8Array();
    this.raw[Symbol.dispose]();
  }

  private receive(): Uint8Array {
    return asking(this.address, () => {
      const stream = this.raw.stream();
      const chunks: Uint8Array[] = [];
      try {
        for (;;) chunks.push(stream.blockingRead(READ_BYTES_MAX));
      } catch (error) {
        const { tag, val } = payload(error) ?? {};
        if (tag === undefined) throw error;
        if (tag !== "closed") throw failed(this.address, `the answer broke off: ${String(val?.toDebugString()).split("\n", 1)[0]}`);
      } finally {
        stream[Symbol.dispose]();
        this.raw[Symbol.dispose]();
      }
      return joined(chunks);
    });
  }
}

/** What a call of the node threw, where it refused. */
function payload(error: unknown): { tag: string; val?: any } | undefined {
  return (error as { payload?: { tag: string } } | null)?.payload;
}

/** Do what asks the node, and throw what it refuses as the standard's `TypeError`. */
function asking<T>(address: Address, ask: () => T): T {
  try {
    return ask();
  } catch (error) {
    if (error instanceof Error && !("payload" in error)) throw error;
    const refused = payload(error);
    if (refused === undefined) throw failed(address, "it is no request that can be sent: see its method and headers");
    if (refused.tag === "HTTP-request-denied") {
      throw failed(address, `the function may not send requests there: outbound_hosts = ["${address.authority}"] in weir.toml grants it`);
    }
    const detail = typeof refused.val === "string" ? `: ${refused.val}` : "";
    throw failed(address, refused.tag.replaceAll("-", " ") + detail);
  }
}

function failed({ scheme, authority, path }: Address, why: string): TypeError {
  return new TypeError(`fetch of ${scheme}://${authority}${path} failed: ${why}`);
}

export { Headers, Response };
