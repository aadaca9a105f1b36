/** Minimal URL parsing for `fetch`. The node validates URLs strictly. */

/** Target of a request. */
export interface Address {
  scheme: "http" | "https";
  /** Host, and port unless it is the default. */
  authority: string;
  /** Path with its leading slash, and query. */
  path: string;
}

/** Parses `url`, which may be relative to `base`. */
export function parsed(url: string, base?: Address): Address {
  const text = url.trim().replace(/#.*$/s, "");
  const [, scheme, authority, rest] = /^(?:([a-z][a-z0-9+.-]*):)?(?:\/\/([^/?]*))?(.*)$/is.exec(text)!;
  const known = (scheme ?? base?.scheme)?.toLowerCase();
  if (known !== "http" && known !== "https") {
    throw new TypeError(`${JSON.stringify(url)} cannot be fetched: an address begins with http:// or https://`);
  }
  const host = authority ?? (scheme === undefined ? base?.authority : undefined);
  if (!host) throw new TypeError(`${JSON.stringify(url)} cannot be fetched: it names no host`);
  if (host.includes("@")) throw new TypeError("an address with a password in it cannot be fetched: send it as a header, `authorization`");
  const path = authority === undefined && base !== undefined ? resolved(rest!, base.path) : rest!;
  return { scheme: known, authority: host, path: escaped(path.startsWith("/") ? path : `/${path}`) };
}

/** Resolves `path` relative to `base`. */
function resolved(path: string, base: string): string {
  const at = base.split("?", 1)[0]!;
  if (path === "") return base;
  if (path.startsWith("?")) return at + path;
  const [relative, ...query] = path.split("?");
  const from = relative!.startsWith("/") ? [] : at.split("/").slice(1, -1);
  const steps = relative!.replace(/^\//, "").split("/");
  const whole: string[] = [];
  for (const [index, step] of [...from, ...steps].entries()) {
    if (step === "..") whole.pop();
    else if (step !== ".") whole.push(step);
    // A last segment of dots refers to a folder and leaves a trailing slash.
    if (index === from.length + steps.length - 1 && (step === ".." || step === ".")) whole.push("");
  }
  return ["/" + whole.join("/"), ...query].join("?");
}

/** Percent-encodes characters that are not allowed in a path or query. */
function escaped(path: string): string {
  return path.replace(/[^\x21-\x7e]+|["<>`{}\\^|]/g, encodeURIComponent);
}
