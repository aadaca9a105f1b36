/** `wasi:http` 0.2 for tests of `fetch`: {@link SERVER} answers requests immediately. */

/** A sent request, and its answer. */
export interface Sent {
  method: string;
  url: string;
  headers: [string, string][];
  body: string;
}
export interface Given {
  status?: number;
  headers?: [string, string][];
  body?: string;
  /** An error of the node instead of an answer. */
  refused?: { tag: string; val?: unknown };
}
export const SERVER: { answer: (sent: Sent) => Given } = { answer: () => ({ refused: { tag: "destination-not-found" } }) };

/** Resources that were not released. */
export const HELD = new Set<object>();

const text = (bytes: Uint8Array) => new TextDecoder().decode(bytes);
const bytes = (text: string) => new TextEncoder().encode(text);
const refusal = (payload: { tag: string; val?: unknown }) => Object.assign(new Error(payload.tag), { payload });

/** Whether responses are ready at once, or only for a function that blocks. */
export const READY = { now: true };

function pollable() {
  return Object.assign(new Resource(), { ready: () => READY.now, block: () => {} });
}

class Resource {
  constructor() {
    HELD.add(this);
  }
  [Symbol.dispose](): void {
    HELD.delete(this);
  }
}

export class Fields extends Resource {
  constructor(readonly list: [string, Uint8Array][]) {
    super();
  }
  static fromList(list: [string, Uint8Array][]): Fields {
    if (list.some(([name]) => !/^[\w-]+$/.test(name))) throw refusal({ tag: "invalid-syntax" });
    return new Fields(list);
  }
  entries(): [string, Uint8Array][] {
    return this.list;
  }
}

export class OutgoingRequest extends Resource {
  sent: Sent;
  private scheme = "";
  private authority = "";

  constructor(headers: Fields) {
    super();
    headers[Symbol.dispose]();
    this.sent = { method: "GET", url: "", headers: headers.entries().map(([name, value]) => [name, text(value)]), body: "" };
  }
  setMethod({ tag, val }: { tag: string; val?: string }): void {
    this.sent.method = val ?? tag.toUpperCase();
  }
  setScheme({ tag }: { tag: string }): void {
    this.scheme = tag.toLowerCase();
  }
  setAuthority(authority: string): void {
    this.authority = authority;
  }
  setPathWithQuery(path: string): void {
    this.sent.url = `${this.scheme}://${this.authority}${path}`;
  }
  body(): OutgoingBody {
    return new OutgoingBody(this.sent);
  }
}

export class RequestOptions extends Resource {
  static last: unknown[] = [];
  constructor() {
    super();
    RequestOptions.last = [];
  }
  setConnectTimeout(duration: number): void {
    RequestOptions.last.push(duration);
  }
  setFirstByteTimeout(duration: number): void {
    RequestOptions.last.push(duration);
  }
  setBetweenBytesTimeout(duration: number): void {
    RequestOptions.last.push(duration);
  }
}

export class OutgoingBody extends Resource {
  constructor(readonly sent: Sent) {
    super();
  }
  write() {
    const stream = new Resource();
    const blockingWriteAndFlush = (bytes: Uint8Array) => {
      if (bytes.length > 4096) throw new Error("a stream takes 4096 bytes at once");
      this.sent.body += text(bytes);
    };
    return Object.assign(stream, { blockingWriteAndFlush });
  }
  static finish(body: OutgoingBody): void {
    body[Symbol.dispose]();
  }
}

export function handle(request: OutgoingRequest, options: RequestOptions | null): FutureIncomingResponse {
  request[Symbol.dispose]();
  options?.[Symbol.dispose]();
  return new FutureIncomingResponse(request.sent);
}

export class FutureIncomingResponse extends Resource {
  constructor(private readonly sent: Sent) {
    super();
  }
  subscribe() {
    return pollable();
  }
  get() {
    const given = SERVER.answer(this.sent);
    if (given.refused !== undefined) return { tag: "ok", val: { tag: "err", val: given.refused } };
    return { tag: "ok", val: { tag: "ok", val: new IncomingResponse(given) } };
  }
}

class IncomingResponse extends Resource {
  constructor(private readonly given: Given) {
    super();
  }
  status(): number {
    return this.given.status ?? 200;
  }
  headers(): Fields {
    return new Fields((this.given.headers ?? []).map(([name, value]) => [name, bytes(value)]));
  }
  consume() {
    const body = this.given.body ?? "";
    const chunks = [body.slice(0, 5), body.slice(5)].filter((chunk) => chunk !== "");
    const blockingRead = () => {
      const chunk = chunks.shift();
      if (chunk === undefined) throw refusal({ tag: "closed" });
      return bytes(chunk);
    };
    return Object.assign(new Resource(), { stream: () => Object.assign(new Resource(), { subscribe: pollable, blockingRead }) });
  }
}
