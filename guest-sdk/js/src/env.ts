/** Environment variables: the settings in `env` of the manifest, and its secrets. */

import { getEnvironment } from "wasi:cli/environment@0.2.12";
import "./prelude.ts";

/**
 * The types of the variables. A project can declare those that its manifest sets:
 *
 * ```ts
 * declare module "weir" {
 *   interface Env {
 *     API_KEY: string;
 *   }
 * }
 * ```
 */
export interface Env {
  readonly [name: string]: string | undefined;
}

/** The variables, read once per instance. */
let known: Record<string, string> | undefined;

/**
 * The environment variables by name: `env.API_KEY`. Read them in the handler: code of modules runs
 * when the function is built, without variables.
 */
export const env: Env = /* @__PURE__ */ new Proxy({} as Record<string, string>, {
  get: (_, name) => (typeof name === "string" && Object.hasOwn(variables(), name) ? variables()[name] : undefined),
  has: (_, name) => Object.hasOwn(variables(), name),
  ownKeys: () => Object.keys(variables()),
  getOwnPropertyDescriptor: (_, name) => {
    const descriptor = Object.getOwnPropertyDescriptor(variables(), name);
    // A property of a proxy has to be configurable unless its target has it.
    return descriptor && { ...descriptor, writable: false, configurable: true };
  },
  set: () => false,
  deleteProperty: () => false,
  defineProperty: () => false,
});

function variables(): Record<string, string> {
  if ("__weirWatched" in globalThis) throw new TypeError("there are no variables while the function is built: read env in the handler");
  return (known ??= Object.fromEntries(getEnvironment()));
}
