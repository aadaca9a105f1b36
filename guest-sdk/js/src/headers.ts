/** Headers of requests and responses, after the Fetch standard. */

import { noJson } from "./kinds.ts";

/** Accepted forms of headers. */
export type HeadersInit = Iterable<readonly [string, string]> | Record<string, string>;

/** Case-insensitive headers. */
export class Headers implements Iterable<[string, string]> {
  private readonly pairs: [string, string][] = [];

  constructor(init: HeadersInit = []) {
    for (const [name, value] of Symbol.iterator in init ? init : Object.entries(init)) this.append(name, value);
  }

  /** All values of a header, joined; null if there are none. */
  get(name: string): string | null {
    const values = this.pairs.filter(([key]) => key === name.toLowerCase()).map(([, value]) => value);
    return values.length ? values.join(", ") : null;
  }

  has(name: string): boolean {
    return this.get(name) !== null;
  }

  /** Replaces a header. */
  set(name: string, value: string): void {
    this.delete(name);
    this.append(name, value);
  }

  append(name: string, value: string): void {
    this.pairs.push([name.toLowerCase(), String(value)]);
  }

  delete(name: string): void {
    for (let at = this.pairs.length - 1; at >= 0; at--) {
      if (this.pairs[at]![0] === name.toLowerCase()) this.pairs.splice(at, 1);
    }
  }

  forEach(visit: (value: string, name: string, headers: Headers) => void): void {
    for (const [name, value] of this) visit(value, name, this);
  }

  entries(): IterableIterator<[string, string]> {
    return this.pairs.values();
  }

  keys(): IterableIterator<string> {
    return this.pairs.map(([name]) => name).values();
  }

  values(): IterableIterator<string> {
    return this.pairs.map(([, value]) => value).values();
  }

  /** The Set-Cookie headers of a response, one per cookie. */
  getSetCookie(): string[] {
    return this.pairs.filter(([name]) => name === "set-cookie").map(([, value]) => value);
  }

  /** @internal */
  toJSON(key: string): never {
    throw noJson(key, this, "give Object.fromEntries(headers)");
  }

  [Symbol.iterator](): Iterator<[string, string]> {
    return this.pairs[Symbol.iterator]();
  }
}
