/**
 * Named objects: tensors stored under a name, which other functions, inferences and clients can
 * read.
 *
 * The function's manifest lists the names it may read, and the names it may put and delete:
 *
 * ```toml
 * [function.objects]
 * read = ["thresholds"]
 * write = ["session-*"]
 * ```
 *
 * ```ts
 * import { objects, Tensor } from "weir";
 *
 * const thresholds = objects.get("thresholds").values("fp32");
 * objects.put("session-7", Tensor.from([0.5, 0.25]), { ttlMs: 600_000 });
 * ```
 *
 * @module
 */

import { delete as deleteRaw, get as getRaw, put as putRaw } from "weir:inference/objects@0.1.0";
import { asked } from "./errors.ts";
import { Tensor } from "./tensor.ts";

/**
 * Reads the tensor stored under `name`.
 *
 * @throws {NotFound} if the object does not exist or has expired, and {@link NotGranted}.
 */
export function get(name: string): Tensor {
  return new Tensor(asked(() => getRaw(name)));
}

/**
 * Stores a copy of `tensor` under `name`, replacing an existing object. The object is durable when
 * the call returns. Without `ttlMs`, it has the node's default lifetime.
 *
 * @throws {ResourceExhausted} if there is no space for the object.
 */
export function put(name: string, tensor: Tensor, { ttlMs }: { ttlMs?: number } = {}): void {
  asked(() => putRaw(name, tensor.raw, ttlMs ?? null));
}

function remove(name: string): void {
  asked(() => deleteRaw(name));
}
/** Deletes a named object. */
export { remove as delete };
