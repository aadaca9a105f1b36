/**
 * SDK for Weir functions in JavaScript and TypeScript: components that answer HTTP requests or map
 * tensors to tensors, and run models on the node.
 *
 * ```ts
 * import { Model, Tensor } from "weir";
 * import { httpFunction } from "weir/http";
 *
 * export const handler = httpFunction(async (request) => {
 *   const pixels = Float32Array.from(await request.bytes(), (byte) => byte / 255);
 *   const outputs = await Model.open("digits").submit({ image: Tensor.from(pixels, [1, 1, 28, 28]) });
 *   return { scores: outputs.only().values() };
 * });
 * ```
 *
 * A function with the signature of a model, which workflows and other functions can call like a
 * model:
 *
 * ```ts
 * import { Tensor, tensorFunction } from "weir";
 *
 * export const stage = tensorFunction((inputs) => {
 *   const x = inputs.get("x");
 *   return { y: Tensor.from(x.values("fp32").map((value) => 2 * value), x.shape) };
 * });
 * ```
 *
 * `weir new NAME --template ts` creates a project and `weir build` builds it. Every call runs on a
 * fresh copy of the engine after its modules have run: top-level code runs once, when the function
 * is built.
 *
 * @module
 */

import "./prelude.ts";

export { type ElementType, type Values } from "./elements.ts";
export { type Env, env } from "./env.ts";
export {
  Cancelled,
  DeadlineExceeded,
  InternalError,
  InvalidArgument,
  InvalidRun,
  NotFound,
  NotGranted,
  ResourceExhausted,
  StatusError,
  Unavailable,
  WeirError,
} from "./errors.ts";
export * as images from "./images.ts";
export { type Description, Model, Pending, type Port, type RunOptions } from "./model.ts";
export * as objects from "./objects.ts";
export { tensorFunction } from "./stage.ts";
export { type NamedTensors, Tensor, Tensors } from "./tensor.ts";
