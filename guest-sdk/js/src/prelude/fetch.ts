/**
 * `fetch`, over `wasi:http` 0.2. Not part of the prelude, because functions that send requests
 * need additional imports. The build adds it to programs that use its name (esbuild's
 * `--inject`).
 *
 * `fetch` sends the request immediately, and awaiting its result waits for the response:
 * concurrent requests take as long as the longest. The node allows only the hosts in
 * `outbound_hosts`.
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
import type { Pollable } from "late:io/streams@0.2.11";
import { Headers, type HeadersInit } from "../headers.ts";
import { kindOf } from "../kinds.ts";
import { Response } from "../response.ts";
import { Chunks } from "../streams.ts";
import type { AbortSignal } from "./abort.ts";
import { type Address, parsed } from "./address.ts";

/** Options of a request. */
export interface FetchInit {
  /** Method. Defaults to `GET`; must be set for a request with a body. */
  method?: string;
  headers?: HeadersInit;
  /** Body. Not allowed for `GET` and `HEAD`. */
  body?: string | Uint8Array | ArrayBuffer | URLSearchParams | null;
  /** Handling of redirects: follow, return the redirect, or fail. The default is `follow`. */
  redirect?: "follow" | "manual" | "error";
  /**
   * Time limit for connecting, for the response, and between its bytes. The invocation's
   * deadline still applies.
   */
  timeoutMs?: number;
  /**
   * Ends the wait for the response and for its body: `AbortSignal.timeout(500)`, or the signal of an
   * `AbortController`.
   */
  signal?: AbortSignal | null;
}

/** Limit of the Fetch standard. */
const REDIRECTS_MAX = 20;
const REDIRECTS = [301, 302, 303, 307, 308];
/** Largest write that a stream accepts. */
const WRITE_BYTES_MAX = 4096;
const READ_BYTES_MAX = 1 << 20;
const METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];
/** Hop-by-hop headers, which are not part of the response. */
const HOP_BY_HOP = ["connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"];

/** One request, as sent. */
interface Outgoing {
  address: Address;
  method: string;
  headers: Headers;
  body: Uint8Array;
  timeoutMs: number | undefined;
}

/**
 * Fetches `url`, which must be absolute, with the scheme `http` or `https`.
 *
 * @throws {TypeError} if the request cannot be sent, or if there is no response. An error status
 * is a response. Throws the reason of `signal` if it is aborted first.
 */
export function fetch(url: string | URL, init?: FetchInit | null): Promise<Response> {
  const { redirect = "follow", signal, ...asked } = init ?? {};
  try {
    if (!["follow", "manual", "error"].includes(redirect)) throw new TypeError(`redirect is follow, manual or error, and not ${redirect}`);
    signal?.throwIfAborted();
    const outgoing = request(url, asked);
    const sent = send(outgoing);
    return new WhenAwaited(() => answer(outgoing, sent, redirect, signal ?? undefined)) as unknown as Promise<Response>;
  } catch (error) {
    return Promise.reject(error);
  }
}

/** A lazy promise: it waits only when it is awaited, and the function continues until then. */
class WhenAwaited<T> implements PromiseLike<T> {
  private kept: Promise<T> | undefined;

  constructor(private readonly keep: () => Promise<T>) {}

  then<A = T, B = never>(done?: ((value: T) => A | PromiseLike<A>) | null, failed?: ((reason: unknown) => B | PromiseLike<B>) | null): Promise<A | B> {
    this.kept ??= this.keep();
    return this.kept.then(done, failed);
  }

  catch<B = never>(failed?: ((reason: unknown) => B | PromiseLike<B>) | null): Promise<T | B> {
    return this.then(null, failed);
  }

  finally(then?: (() => void) | null): Promise<T> {
    return this.then().finally(then);
  }
}

function request(url: string | URL, { method = "GET", headers = [], body = null, timeoutMs }: Omit<FetchInit, "redirect" | "signal">): Outgoing {
  if ("__weirWatched" in globalThis) throw new TypeError("nothing can be fetched while the function is built: call fetch in the handler");
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

/** Sends `outgoing` without waiting for its response. */
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
      // The server may respond before it has read the whole body. If it does not respond, the
      // response has the error.
    }
    stream[Symbol.dispose]();
    try {
      OutgoingBody.finish(out, null);
    } catch {
      // Same as above.
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
    // The error does not name the invalid header.
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

/** Waits for the response to `outgoing`, and follows redirects. */
async function answer(outgoing: Outgoing, sent: FutureIncomingResponse, redirect: FetchInit["redirect"], signal?: AbortSignal): Promise<Response> {
  for (let redirects = 0; ; redirects++) {
    const response = await received(outgoing.address, sent, signal);
    const location = response.headers.get("location");
    if (!REDIRECTS.includes(response.status) || location === null || redirect === "manual") return response;
    response.drop();
    if (redirect === "error") throw failed(outgoing.address, `it redirects to ${location}`);
    if (redirects === REDIRECTS_MAX) throw failed(outgoing.address, `it redirects more than ${REDIRECTS_MAX} times`);
    signal?.throwIfAborted();
    outgoing = redirected(outgoing, response.status, parsed(location, outgoing.address));
    sent = send(outgoing);
  }
}

/** The request that follows a redirect with `status` to `address`. */
function redirected({ address: from, method, headers, body, timeoutMs }: Outgoing, status: number, address: Address): Outgoing {
  const asGet = status === 303 ? method !== "GET" && method !== "HEAD" : method === "POST" && (status === 301 || status === 302);
  const kept = new Headers(headers);
  if (asGet) ["content-length", "content-type", "content-encoding"].forEach((name) => kept.delete(name));
  const elsewhere = address.scheme !== from.scheme || address.authority !== from.authority;
  if (elsewhere) ["authorization", "cookie", "proxy-authorization"].forEach((name) => kept.delete(name));
  return { address, method: asGet ? "GET" : method, headers: kept, body: asGet ? new Uint8Array() : body, timeoutMs };
}

/** The clock of `timers.ts`, in functions that use timers. */
interface Clock {
  isNeeded: () => boolean;
  pause: (ms: number) => Promise<void>;
}
/** The longest time between two looks at a response. */
const PAUSE_MS_MAX = 8;

/**
 * Waits until `pollable` is ready, and drops it. Timers run meanwhile, and `signal` ends the wait; without
 * both, the node wakes the function at the right moment.
 */
async function ready(pollable: Pollable, signal: AbortSignal | undefined): Promise<void> {
  const clock = (globalThis as { __weirClock?: Clock }).__weirClock;
  try {
    signal?.throwIfAborted();
    for (let pauseMs = 1; !pollable.ready(); pauseMs = Math.min(2 * pauseMs, PAUSE_MS_MAX)) {
      if (clock === undefined || !(signal !== undefined || clock.isNeeded())) return pollable.block();
      await clock.pause(pauseMs);
      signal?.throwIfAborted();
    }
  } finally {
    pollable[Symbol.dispose]();
  }
}

/** Waits for the response of a sent request. */
async function received(address: Address, future: FutureIncomingResponse, signal?: AbortSignal): Promise<Fetched> {
  try {
    await ready(future.subscribe(), signal);
    return asking(address, () => {
      // Present once it is ready; the outer result reports whether it was taken before.
      const { val: result } = future.get()!;
      if (result.tag === "err") throw { payload: result.val };
      const raw = result.val;
      const fields = raw.headers();
      const decoder = new TextDecoder();
      const headers = fields.entries().map(([name, value]) => [name, decoder.decode(value)] as const);
      fields[Symbol.dispose]();
      const response = new Fetched(address, raw.status(), headers, raw.consume(), signal);
      raw[Symbol.dispose]();
      return response;
    });
  } finally {
    // Ends a request whose response is not wanted any more.
    future[Symbol.dispose]();
  }
}

/** A response whose body is received on demand. A handler that returns it passes it on in chunks. */
class Fetched extends Response {
  override readonly url: string;

  constructor(
    address: Address,
    status: number,
    headers: (readonly [string, string])[],
    private readonly raw: IncomingBody,
    signal: AbortSignal | undefined,
  ) {
    super(chunks(address, raw, signal), { status, headers: headers.filter(([name]) => !HOP_BY_HOP.includes(name.toLowerCase())) });
    this.url = `${address.scheme}://${address.authority}${address.path}`;
  }

  /** Releases the body without reading it. */
  drop(): void {
    this.raw[Symbol.dispose]();
  }

  /** @internal */
  override async start(): Promise<void> {
    // Passed on, the response keeps its type.
    if (this.body instanceof Chunks) await this.body.start();
  }
}

/** The chunks of a body. */
async function* chunks(address: Address, raw: IncomingBody, signal: AbortSignal | undefined): AsyncGenerator<Uint8Array, void, undefined> {
  const stream = asking(address, () => raw.stream());
  try {
    for (;;) {
      await ready(stream.subscribe(), signal);
      yield stream.blockingRead(READ_BYTES_MAX);
    }
  } catch (error) {
    const { tag, val } = payload(error) ?? {};
    if (tag === undefined) throw error;
    if (tag !== "closed") throw failed(address, `the answer broke off: ${String(val?.toDebugString()).split("\n", 1)[0]}`);
  } finally {
    stream[Symbol.dispose]();
    raw[Symbol.dispose]();
  }
}

/** The payload of an error that a node call threw. */
function payload(error: unknown): { tag: string; val?: any } | undefined {
  return (error as { payload?: { tag: string } } | null)?.payload;
}

/** Runs a node call, and converts its error to the `TypeError` of the standard. */
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
