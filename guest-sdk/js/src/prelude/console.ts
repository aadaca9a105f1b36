/** Console output to standard output and error, which go to the function's log. */

import { getStderr } from "wasi:cli/stderr@0.2.12";
import { getStdout, type OutputStream } from "wasi:cli/stdout@0.2.12";
import { TextEncoder } from "./encoding.ts";
import { sourced } from "./stacks.ts";

/** Largest write that `blocking-write-and-flush` accepts. */
const WRITE_BYTES_MAX = 4096;
/** Largest depth of displayed objects. */
const DEPTH_MAX = 3;

/**
 * `log`, `info` and `debug` write to standard output; `warn`, `error` and `assert` write to
 * standard error.
 */
export interface Console {
  log(...values: unknown[]): void;
  info(...values: unknown[]): void;
  debug(...values: unknown[]): void;
  warn(...values: unknown[]): void;
  error(...values: unknown[]): void;
  assert(condition: unknown, ...values: unknown[]): void;
}

const out = (...values: unknown[]) => write(getStdout, values);
const err = (...values: unknown[]) => write(getStderr, values);

export const console: Console = {
  log: out,
  info: out,
  debug: out,
  warn: err,
  error: err,
  assert(condition, ...values) {
    if (condition) return;
    const [first, ...rest] = values;
    // The first argument may be a format string for the rest.
    if (typeof first === "string") err(`assertion failed: ${first}`, ...rest);
    else err("assertion failed:", ...values);
  },
};

function write(open: () => OutputStream, values: unknown[]): void {
  const line = new TextEncoder().encode(formatted(values) + "\n");
  const stream = open();
  try {
    for (let at = 0; at < line.length; at += WRITE_BYTES_MAX) stream.blockingWriteAndFlush(line.slice(at, at + WRITE_BYTES_MAX));
  } finally {
    stream[Symbol.dispose]();
  }
}

/**
 * Formats `values` as in the Console standard: `%s`, `%d` and similar in a first string consume
 * the following values.
 */
export function formatted(values: readonly unknown[]): string {
  const [format, ...rest] = values;
  if (typeof format !== "string" || rest.length === 0) return values.map(plain).join(" ");
  const line = format.replace(/%[sdifjoOc%]/g, (mark) => {
    if (mark === "%%") return "%";
    return rest.length === 0 ? mark : put(mark, rest.shift());
  });
  return [line, ...rest.map(plain)].join(" ");
}

function put(mark: string, value: unknown): string {
  switch (mark) {
    case "%s":
      return plain(value);
    case "%d":
      return typeof value === "bigint" ? `${value}n` : String(isObject(value) ? NaN : Number(value));
    case "%i":
      return typeof value === "bigint" ? `${value}n` : String(isObject(value) ? NaN : Number.parseInt(String(value)));
    case "%f":
      return String(Number.parseFloat(String(value)));
    case "%j":
      return JSON.stringify(value) ?? "undefined";
    // CSS has no meaning in a log.
    case "%c":
      return "";
    default:
      return shown(value, 0);
  }
}

function isObject(value: unknown): boolean {
  return (typeof value === "object" && value !== null) || typeof value === "symbol";
}

function plain(value: unknown): string {
  return typeof value === "string" ? value : shown(value, 0);
}

function shown(value: unknown, depth: number): string {
  if (value instanceof Error) return `${value.name}: ${value.message}\n${sourced(value.stack ?? "")}`.trimEnd();
  if (typeof value === "string") return JSON.stringify(value);
  if (typeof value === "bigint") return `${value}n`;
  if (typeof value === "function") return `[function ${value.name}]`;
  if (typeof value !== "object" || value === null) return String(value);
  if (depth > DEPTH_MAX) return "...";
  if (Array.isArray(value) || (ArrayBuffer.isView(value) && Symbol.iterator in value)) {
    const items = Array.from(value as Iterable<unknown>, (item) => shown(item, depth + 1)).join(", ");
    return `${Array.isArray(value) ? "" : value.constructor.name}[${items}]`;
  }
  if (value instanceof Map || value instanceof Set) return `${value.constructor.name}${shown([...value], depth + 1)}`;
  const fields = Object.entries(value).map(([key, item]) => `${key}: ${shown(item, depth + 1)}`);
  return fields.length ? `{ ${fields.join(", ")} }` : "{}";
}
