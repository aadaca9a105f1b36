/** Tensor functions: functions with the signature of a model. */

import type { Tensor as Raw } from "weir:inference/tensors@0.1.0";
import { InternalError, logged, toNode, WeirError } from "./errors.ts";
import { fromPairs, type NamedTensors, type Tensors, toOutputs } from "./tensor.ts";

/**
 * Makes a component of `handler`, which maps named tensors to named tensors. Export the result
 * as `stage`.
 *
 * A tensor function is synchronous: use `model.infer`, or `pending.wait()` for concurrent runs.
 */
export function tensorFunction(handler: (inputs: Tensors) => NamedTensors) {
  return {
    run(inputs: [string, Raw][]): [string, Raw][] {
      let outputs: NamedTensors;
      try {
        outputs = handler(fromPairs(inputs));
      } catch (error) {
        if (error instanceof WeirError) throw toNode(error);
        console.error(error);
        throw logged();
      }
      try {
        return toOutputs(outputs);
      } catch (error) {
        // The fault is in the function's result, so the stack trace has no meaning.
        const { message } = error as Error;
        console.error("%s", message);
        throw toNode(new InternalError(message));
      }
    },
  };
}
