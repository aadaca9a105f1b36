/**
 * Tensors that are kept under names, for other functions, inferences and clients to read.
 *
 * The function's manifest says which names it may read, and which it may put and delete:
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
 * The tensor that is kept under `name`, as it was put.
 *
 * @throws {NotFound} where there is none, or it has expired, and {@link NotGranted}.
 */
export function get(name: string): Tensor {
  return new Tensor(asked(() => getRaw(name)));
}

/**
 * Keep a copy of `tensor` under `name`, in the place of what was there. It is durable when this returns. Without `ttlMs` it is kept for as
 * long as the node's settings say.
 *
 * @throws {ResourceExhausted} where there is no room for it.
 */
export function put(name: string, tensor: Tensor, { ttlMs }: { ttlMs?: number } = {}): void {
  asked(() => putRaw(name, tensor.raw, ttlMs ?? null));
}

function remove(name: string): void {
  asked(() => deleteRaw(name));
}
/** Let nobody find a name any more. */
export { remove as delete };
