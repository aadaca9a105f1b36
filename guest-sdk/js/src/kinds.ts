/** What values are called where they are refused. */

/** What `value` is, with its article: `a Promise`, `an Array`, `a string`, `null`. */
export function kindOf(value: unknown): string {
  if (value === null || value === undefined) return String(value);
  const name = typeof value === "object" ? (value.constructor?.name || "object") : typeof value;
  return `${/^[aeiou]/i.test(name) && !/^u(int|se)/i.test(name) ? "an" : "a"} ${name}`;
}

/** Whether `value` is to be awaited. */
export function isPromise(value: unknown): boolean {
  return typeof (value as PromiseLike<unknown> | null | undefined)?.then === "function";
}

/** The error for what `JSON.stringify` would make `{}` of without a word. `key` is where it was found, `instead` what to give. */
export function noJson(key: string, value: unknown, instead: string): TypeError {
  return new TypeError(`${kindOf(value)} cannot be JSON${key === "" ? "" : `, at ${JSON.stringify(key)}`}: ${instead}`);
}
