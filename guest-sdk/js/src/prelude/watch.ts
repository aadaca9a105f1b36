/** Notes what a function's modules ask of the moment at which they run, which is when the function is built. `build.mjs` warns of it. */

const scope = globalThis as unknown as { __weirWatched?: () => Asked[]; Date: DateConstructor; crypto: Record<string, unknown> };

/** What was called, and by which lines of the bundle, the innermost first. */
type Asked = [what: string, lines: number[]];
type Call = (this: unknown, ...args: never[]) => unknown;

/** Watch until the bundle's last line, which calls `__weirWatched`. */
export function watch(): void {
  const asked: Asked[] = [];
  const note = (what: string) => {
    // The lines of this function, of the one that watches, and of whoever called that.
    const callers = (new Error().stack ?? "").split("\n").slice(2);
    // A package that is being loaded gives itself a number, and means no harm by it.
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

/** Put what `made` makes in place of a function. What is returned puts it back. */
function replace<T extends object, K extends keyof T>(object: T, name: K, made: (own: Call) => Call): () => void {
  const own = object[name];
  object[name] = made((own as Call).bind(object)) as T[K];
  return () => void (object[name] = own);
}
