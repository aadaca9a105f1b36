/**
 * Standard objects that the engine lacks: `console`, `TextEncoder`, `TextDecoder`,
 * `URLSearchParams`, `crypto.getRandomValues`, `crypto.randomUUID`, and a `Math.random` that
 * differs between instances. Imported before all other modules. `URL`, `atob` and `btoa` are in
 * `prelude/url.ts`, `fetch` is in `prelude/fetch.ts`, timers are in `prelude/timers.ts`.
 */

import { watch } from "./prelude/watch.ts";
import { console } from "./prelude/console.ts";
import { TextDecoder, TextEncoder } from "./prelude/encoding.ts";
import { URLSearchParams } from "./prelude/query.ts";
import { getRandomValues, random, randomUUID } from "./prelude/random.ts";

const scope = globalThis as unknown as Record<string, unknown>;
const lacking = { console, TextEncoder, TextDecoder, URLSearchParams, crypto: { getRandomValues, randomUUID } };
for (const [name, value] of Object.entries(lacking)) scope[name] ??= value;

if ("__cqjs" in scope) {
  // The engine's `Math.random` was seeded when the function was built.
  Math.random = random;
  watch();
}
