/** Types of the prelude's globals, for projects that load neither the DOM's nor Node's types. */

declare var console: import("./console.ts").Console;
declare var TextEncoder: typeof import("./encoding.ts").TextEncoder;
declare var TextDecoder: typeof import("./encoding.ts").TextDecoder;
declare var URLSearchParams: typeof import("./query.ts").URLSearchParams;
declare var URL: {
  new (url: string | URL, base?: string | URL): URL;
  canParse(url: string | URL, base?: string | URL): boolean;
  parse(url: string | URL, base?: string | URL): URL | null;
};
declare var atob: (data: string) => string;
declare var btoa: (data: string) => string;
declare var crypto: {
  getRandomValues: typeof import("./random.ts").getRandomValues;
  randomUUID: typeof import("./random.ts").randomUUID;
};
declare var AbortController: typeof import("./abort.ts").AbortController;
declare var AbortSignal: typeof import("./abort.ts").AbortSignal;
declare var fetch: typeof import("./fetch.ts").fetch;
declare var setTimeout: typeof import("./timers.ts").setTimeout;
declare var clearTimeout: typeof import("./timers.ts").clearTimeout;
declare var setInterval: typeof import("./timers.ts").setInterval;
declare var clearInterval: typeof import("./timers.ts").clearInterval;
declare var performance: { now(): number };
type AbortController = import("./abort.ts").AbortController;
type AbortSignal = import("./abort.ts").AbortSignal;
type URLSearchParams = import("./query.ts").URLSearchParams;

interface URL {
  href: string;
  readonly origin: string;
  protocol: string;
  username: string;
  password: string;
  host: string;
  hostname: string;
  port: string;
  pathname: string;
  search: string;
  readonly searchParams: URLSearchParams;
  hash: string;
  toString(): string;
  toJSON(): string;
}

declare module "core-js-pure/actual/atob" {
  const atob: (data: string) => string;
  export default atob;
}
declare module "core-js-pure/actual/btoa" {
  const btoa: (data: string) => string;
  export default btoa;
}
declare module "core-js-pure/actual/url" {
  const constructor: typeof URL;
  export default constructor;
}
