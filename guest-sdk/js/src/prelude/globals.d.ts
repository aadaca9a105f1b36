/** The types of what the prelude brings, where neither the DOM's nor Node's are loaded. */

declare var console: import("./console.ts").Console;
declare var TextEncoder: typeof import("./encoding.ts").TextEncoder;
declare var TextDecoder: typeof import("./encoding.ts").TextDecoder;
declare var URLSearchParams: typeof import("./query.ts").URLSearchParams;
declare var crypto: {
  getRandomValues: typeof import("./random.ts").getRandomValues;
  randomUUID: typeof import("./random.ts").randomUUID;
};
type URLSearchParams = import("./query.ts").URLSearchParams;
