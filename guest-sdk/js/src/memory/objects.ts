/**
 * In-memory named objects with the interface of componentize-qjs's bindings. They do not expire.
 */

import { refused, type Tensor } from "./tensors.ts";

const OBJECTS = new Map<string, Tensor>();

export function put(name: string, value: Tensor, ttlMs: number | null): void {
  if (ttlMs === 0) throw refused("invalid-argument", "an object is kept for 1 ms at least");
  OBJECTS.set(name, value);
}

export function get(name: string): Tensor {
  const found = OBJECTS.get(name);
  if (found === undefined) throw refused("not-found", `there is no object ${name}`);
  return found;
}

function remove(name: string): void {
  get(name);
  OBJECTS.delete(name);
}
export { remove as delete };
