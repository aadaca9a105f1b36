/** Models, and runs of them. */

import { type Options, Model as RawModel, type Pending as RawPending } from "weir:inference/models@0.1.0";
import type { ElementType } from "./elements.ts";
import { asked } from "./errors.ts";
import { noJson } from "./kinds.ts";
import { fromPairs, type NamedTensors, type Tensors, toPairs } from "./tensor.ts";

/** One input or output of a model. */
export interface Port {
  name: string;
  type: ElementType;
  /** The size of each dimension, outermost first; null where it may differ from run to run. */
  shape: (number | null)[];
}

/** What a model is, and what it takes and gives. */
export interface Description {
  name: string;
  version: string;
  inputs: Port[];
  outputs: Port[];
}

/** How to run a model. */
export interface RunOptions {
  /** The outputs to return, in this order. The others need not be computed. */
  outputs?: readonly string[];
  /** Give up when this many milliseconds have passed. The invocation's own deadline holds in any case. */
  timeoutMs?: number;
  /** 1 is the most urgent; 0 is the model's default. */
  priority?: number;
}

/**
 * A model that the function's manifest grants it; or a tensor function, a workflow, or a kernel graph, which run like one.
 *
 * The node keeps it in device memory while this handle lives. Opening one that is there already costs little.
 */
export class Model {
  private constructor(private readonly raw: RawModel) {}

  /**
   * Open the newest version of the model `name`, or one version of it with `name:version`.
   *
   * @throws {NotFound}, {@link NotGranted}, or {@link ResourceExhausted} where no device has room for it.
   */
  static open(name: string): Model {
    return new Model(asked(() => RawModel.open(name)));
  }

  /** Its name, version, inputs and outputs. */
  describe(): Description {
    const { name, version, inputs, outputs } = this.raw.describe();
    const ports = (raw: typeof inputs): Port[] =>
      raw.map(({ name, elementType, shape }) => ({ name, type: elementType as ElementType, shape }));
    return { name, version, inputs: ports(inputs), outputs: ports(outputs) };
  }

  /** Run it, and wait for its outputs. */
  infer(inputs: NamedTensors, options?: RunOptions): Tensors {
    return fromPairs(asked(() => this.raw.infer(toPairs(inputs), raw(options))));
  }

  /** Start a run, and do something else until it is done. The inputs may be disposed of at once. */
  submit(inputs: NamedTensors, options?: RunOptions): Pending {
    return new Pending(asked(() => this.raw.submit(toPairs(inputs), raw(options))));
  }

  /** Let the node move it out of device memory. */
  [Symbol.dispose](): void {
    this.raw[Symbol.dispose]();
  }

  /** @internal */
  toJSON(key: string): never {
    throw noJson(key, this, "give its describe()");
  }
}

/**
 * A run under way, which can be awaited: `await model.submit(...)`. Disposing of it cancels the run.
 *
 * Runs go on while the function computes or waits for another, so `await Promise.all(runs)` takes no longer than the longest of them. Other
 * code of the function does not go on meanwhile.
 */
export class Pending implements PromiseLike<Tensors> {
  /** @internal */
  constructor(private readonly raw: RawPending) {}

  /** Wait for the outputs. They are handed over once. */
  wait(): Tensors {
    return fromPairs(asked(() => this.raw.wait()));
  }

  /** Stop the run, unless it is done; waiting for it then fails with {@link Cancelled}. */
  cancel(): void {
    this.raw.cancel();
  }

  then<T = Tensors, F = never>(
    done?: ((outputs: Tensors) => T | PromiseLike<T>) | null,
    failed?: ((reason: unknown) => F | PromiseLike<F>) | null,
  ): Promise<T | F> {
    return new Promise<Tensors>((resolve) => resolve(this.wait())).then(done, failed);
  }

  [Symbol.dispose](): void {
    this.raw[Symbol.dispose]();
  }

  /** @internal */
  toJSON(key: string): never {
    throw noJson(key, this, "await it, and give the values() of its tensors");
  }
}

function raw(options: RunOptions | undefined): Options | null {
  if (options === undefined) return null;
  const { outputs, timeoutMs, priority } = options;
  const whole = (value: number | undefined) => (value === undefined ? null : Math.min(Math.max(Math.trunc(value), 0), 2 ** 32 - 1));
  return { outputs: outputs === undefined ? null : [...outputs], deadlineMs: whole(timeoutMs), priority: whole(priority) };
}
