/** URLSearchParams of the URL standard, without an associated URL. */
export class URLSearchParams implements Iterable<[string, string]> {
  private pairs: [string, string][];

  constructor(init: string | Iterable<readonly [string, string]> | Record<string, string> = "") {
    if (typeof init === "string") this.pairs = parsed(init.replace(/^\?/, ""));
    else this.pairs = [...(Symbol.iterator in init ? init : Object.entries(init))].map(([name, value]) => [String(name), String(value)]);
  }

  get size(): number {
    return this.pairs.length;
  }

  get(name: string): string | null {
    return this.pairs.find(([key]) => key === name)?.[1] ?? null;
  }

  getAll(name: string): string[] {
    return this.pairs.filter(([key]) => key === name).map(([, value]) => value);
  }

  has(name: string): boolean {
    return this.pairs.some(([key]) => key === name);
  }

  append(name: string, value: string): void {
    this.pairs.push([name, String(value)]);
  }

  set(name: string, value: string): void {
    const at = this.pairs.findIndex(([key]) => key === name);
    this.pairs = this.pairs.filter(([key], index) => key !== name || index === at);
    if (at < 0) this.append(name, value);
    else this.pairs[at] = [name, String(value)];
  }

  delete(name: string): void {
    this.pairs = this.pairs.filter(([key]) => key !== name);
  }

  [Symbol.iterator](): Iterator<[string, string]> {
    return this.pairs.map(([name, value]): [string, string] => [name, value])[Symbol.iterator]();
  }

  toString(): string {
    return this.pairs.map((pair) => pair.map(encoded).join("=")).join("&");
  }
}

function parsed(query: string): [string, string][] {
  return query
    .split("&")
    .filter((part) => part !== "")
    .map((part) => {
      const at = part.indexOf("=");
      return at < 0 ? [decoded(part), ""] : [decoded(part.slice(0, at)), decoded(part.slice(at + 1))];
    });
}

function decoded(text: string): string {
  const plain = text.replaceAll("+", " ");
  if (!plain.includes("%")) return plain;
  // A percent sign that starts no escape stands for itself, and invalid text is replaced: decoding
  // never fails.
  const source = new TextEncoder().encode(plain);
  const bytes: number[] = [];
  for (let at = 0; at < source.length; at++) {
    const hex = source[at] === 0x25 ? /^[0-9a-f]{2}/i.exec(String.fromCharCode(...source.slice(at + 1, at + 3)))?.[0] : undefined;
    bytes.push(hex === undefined ? source[at]! : parseInt(hex, 16));
    if (hex !== undefined) at += 2;
  }
  return new TextDecoder().decode(Uint8Array.from(bytes));
}

function encoded(text: string): string {
  const escaped = encodeURIComponent(text).replace(/[!'()~]/g, (sign) => `%${sign.charCodeAt(0).toString(16).toUpperCase()}`);
  return escaped.replaceAll("%20", "+");
}
