/**
 * Bindings that componentize-qjs generates for the imports of functions: the interfaces of Weir,
 * of WASI, and of `wit/late.wit`.
 */

declare module "weir:inference/tensors@0.1.0" {
  export class Tensor {
    private constructor();
    static fromBytes(elementType: string, shape: number[], data: Uint8Array): Tensor;
    elementType(): string;
    shape(): number[];
    byteLength(): number;
    read(offset: number, length: number): Uint8Array;
    [Symbol.dispose](): void;
  }
}

declare module "weir:inference/models@0.1.0" {
  import type { Tensor } from "weir:inference/tensors@0.1.0";

  type Pairs = [string, Tensor][];
  interface Port {
    name: string;
    elementType: string;
    shape: (number | null)[];
  }
  interface Description {
    name: string;
    version: string;
    inputs: Port[];
    outputs: Port[];
  }
  interface Options {
    outputs: string[] | null;
    deadlineMs: number | null;
    priority: number | null;
  }
  export class Model {
    private constructor();
    static open(name: string): Model;
    describe(): Description;
    infer(inputs: Pairs, options: Options | null): Pairs;
    submit(inputs: Pairs, options: Options | null): Pending;
    [Symbol.dispose](): void;
  }
  export class Pending {
    private constructor();
    wait(): Pairs;
    cancel(): void;
    [Symbol.dispose](): void;
  }
}

declare module "weir:inference/objects@0.1.0" {
  import type { Tensor } from "weir:inference/tensors@0.1.0";

  export function put(name: string, value: Tensor, ttlMs: number | null): void;
  export function get(name: string): Tensor;
  function remove(name: string): void;
  export { remove as delete };
}

declare module "weir:inference/image@0.1.0" {
  import type { Tensor } from "weir:inference/tensors@0.1.0";

  interface Size {
    width: number;
    height: number;
  }
  export interface Options {
    resize: { to: Size; fit: string; filter: string } | null;
    crop: Size | null;
    channels: string;
    layout: string;
    elementType: string;
    scale: number | null;
    mean: number[];
    std: number[];
    background: { red: number; green: number; blue: number } | null;
    ignoreOrientation: boolean;
  }
  export function inspect(encoded: Tensor): { format: string; width: number; height: number };
  export function decode(encoded: Tensor, options: Options | null): Tensor;
}

declare module "weir:inference/request@0.1.0" {
  import type { Tensor } from "weir:inference/tensors@0.1.0";

  export function takeBodyAsTensor(elementType: string, shape: number[]): Tensor;
  export function replyWithTensor(tensor: Tensor): void;
}

declare module "wasi:http/types@0.3.0" {
  export class Fields {
    static fromList(entries: [string, Uint8Array][]): Fields;
    copyAll(): [string, Uint8Array][];
    [Symbol.dispose](): void;
  }
  export class Request {
    private constructor();
    getMethod(): { tag: string; val?: string };
    getPathWithQuery(): string | null;
    getAuthority(): string | null;
    getHeaders(): Fields;
    static consumeBody(request: Request, done: unknown): [AsyncIterable<Uint8Array> & Droppable, Droppable];
    [Symbol.dispose](): void;
  }
  export class Response {
    private constructor();
    static new(headers: Fields, contents: unknown, trailers: unknown): [Response, Droppable];
    setStatusCode(status: number): void;
  }
  /** One end of a stream or future. */
  interface Droppable {
    drop(): void;
  }
}

declare module "wasi:random/random@0.2.12" {
  export function getRandomBytes(length: number): Uint8Array;
}

declare module "wasi:clocks/monotonic-clock@0.3.0" {
  export function waitFor(nanoseconds: number): Promise<void>;
}

declare module "wasi:cli/environment@0.2.12" {
  export function getEnvironment(): [string, string][];
}

declare module "wasi:cli/stdout@0.2.12" {
  export function getStdout(): OutputStream;
  interface OutputStream {
    blockingWriteAndFlush(bytes: Uint8Array): void;
    [Symbol.dispose](): void;
  }
}

declare module "wasi:cli/stderr@0.2.12" {
  import type { OutputStream } from "wasi:cli/stdout@0.2.12";

  export function getStderr(): OutputStream;
}

declare module "late:io/streams@0.2.11" {
  export interface Pollable {
    ready(): boolean;
    block(): void;
    [Symbol.dispose](): void;
  }
  export interface InputStream {
    subscribe(): Pollable;
    blockingRead(length: number): Uint8Array;
    [Symbol.dispose](): void;
  }
  export interface OutputStream {
    blockingWriteAndFlush(bytes: Uint8Array): void;
    [Symbol.dispose](): void;
  }
}

declare module "late:http/types@0.2.11" {
  import type { InputStream, OutputStream, Pollable } from "late:io/streams@0.2.11";

  type Result<T> = { tag: "ok"; val: T } | { tag: "err"; val: { tag: string; val?: unknown } };
  export class Fields {
    static fromList(entries: [string, Uint8Array][]): Fields;
    entries(): [string, Uint8Array][];
    [Symbol.dispose](): void;
  }
  export class OutgoingRequest {
    constructor(headers: Fields);
    body(): OutgoingBody;
    setMethod(method: { tag: string; val?: string }): void;
    setPathWithQuery(path: string | null): void;
    setScheme(scheme: { tag: string; val?: string } | null): void;
    setAuthority(authority: string | null): void;
  }
  export class OutgoingBody {
    private constructor();
    write(): OutputStream;
    static finish(body: OutgoingBody, trailers: Fields | null): void;
  }
  export class RequestOptions {
    setConnectTimeout(nanoseconds: number | null): void;
    setFirstByteTimeout(nanoseconds: number | null): void;
    setBetweenBytesTimeout(nanoseconds: number | null): void;
  }
  export class FutureIncomingResponse {
    private constructor();
    subscribe(): Pollable;
    get(): { tag: "ok"; val: Result<IncomingResponse> } | null;
    [Symbol.dispose](): void;
  }
  export class IncomingResponse {
    private constructor();
    status(): number;
    headers(): Fields;
    consume(): IncomingBody;
    [Symbol.dispose](): void;
  }
  export class IncomingBody {
    private constructor();
    stream(): InputStream;
    [Symbol.dispose](): void;
  }
}

declare module "late:http/outgoing-handler@0.2.11" {
  import type { FutureIncomingResponse, OutgoingRequest, RequestOptions } from "late:http/types@0.2.11";

  export function handle(request: OutgoingRequest, options: RequestOptions | null): FutureIncomingResponse;
}

/** Additions of the engine: constructors of component-model futures and streams. */
declare const wit: {
  Future: {
    /** Creates a future that is already resolved. */
    from(value: unknown, kind: unknown): { readable: unknown; completion: Promise<unknown> };
    RESULT_VOID_ERROR_CODE: unknown;
    RESULT_OPTION_OTHER_ERROR_CODE: unknown;
  };
};
