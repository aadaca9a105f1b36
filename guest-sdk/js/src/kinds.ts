/** Descriptions of values in error messages. */

/** The kind of `value` with its article: `a Promise`, `an Array`, `a string`, `null`. */
export function kindOf(value: unknown): string {
  if (value === null || value === undefined) return String(value);
  const name = typeof value === "object" ? (value.constructor?.name || "object") : typeof value;
  return `${/^[aeiou]/i.test(name) && !/^u(int|se)/i.test(name) ? "an" : "a"} ${name}`;
}

/** Whether `value` is a promise. */
export function isPromise(value: unknown): boolean {
  return typeof (value as PromiseLike<unknown> | null | undefined)?.then === "function";
}

/**
 * A handler's result that cannot become a response. The fault is in the function, and its stack
 * trace has no meaning.
 */
export class NoAnswer extends TypeError {}

/**
 * The error for a value that `JSON.stringify` would silently convert to `{}`. `key` is the place
 * of the value, `instead` a suggestion.
 */
export function noJson(key: string, value: unknown, instead: string): TypeError {
  return new TypeError(`${kindOf(value)} cannot be JSON${key === "" ? "" : `, at ${JSON.stringify(key)}`}: ${instead}`);
}
