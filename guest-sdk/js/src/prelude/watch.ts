/**
 * Records calls for the time or random numbers while the function's modules run, which is at
 * build time. `build.mjs` warns about them.
 */

const scope = globalThis as unknown as { __weirWatched?: () => Asked[]; Date: DateConstructor; crypto: Record<string, unknown> };

/** The called function, and the bundle lines of the callers, innermost first. */
type Asked = [what: string, lines: number[]];
type Call = (this: unknown, ...args: never[]) => unknown;

/** Records calls until the last line of the bundle, which calls `__weirWatched`. */
export function watch(): void {
  const asked: Asked[] = [];
  const note = (what: string) => {
    // Skips the lines of this function and of the replaced function.
    const callers = (new Error().stack ?? "").split("\n").slice(2);
    // A package that draws a random number while it loads is harmless.
    if (callers.some((caller) => /\b__(require|init)/.test(caller))) return;
    const lines = callers.map((caller) => Number(/:(\d+):\d+\)?$/.exec(caller.trimEnd())?.[1]));
    asked.push([what, lines.filter((line) => line > 0)]);
  };
  const undo = [
    replace(Math, "random", (own) => (...args) => (note("Math.random()"), own(...args))),
    replace(scope.crypto, "getRandomValues", (own) => (...args) => (note("crypto.getRandomValues()"), own(...args))),
    replace(scope.crypto, "randomUUID", (own) => (...args) => (note("crypto.randomUUID()"), own(...args))),
    replace(Date, "now", (own) => () => (note("Date.now()"), own())),
  ];
  const OwnDate = scope.Date;
  scope.Date = new Proxy(OwnDate, {
    construct: (own, args, as) => (args.length === 0 && note("new Date()"), Reflect.construct(own, args, as)),
    apply: (own) => (note("Date()"), own()),
  });
  scope.__weirWatched = () => {
    undo.forEach((own) => own());
    scope.Date = OwnDate;
    delete scope.__weirWatched;
    return asked;
  };
}

/** Replaces a function by the result of `made`. The returned function restores it. */
function replace<T extends object, K extends keyof T>(object: T, name: K, made: (own: Call) => Call): () => void {
  const own = object[name];
  object[name] = made((own as Call).bind(object)) as T[K];
  return () => void (object[name] = own);
}
