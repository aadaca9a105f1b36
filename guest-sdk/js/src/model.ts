/** Models and inference. */

import { type Options, Model as RawModel, type Pending as RawPending } from "weir:inference/models@0.1.0";
import type { ElementType } from "./elements.ts";
import { asked, askedRun } from "./errors.ts";
import { noJson } from "./kinds.ts";
import { fromPairs, type NamedTensors, type Tensors, toPairs } from "./tensor.ts";

/** One input or output of a model. */
export interface Port {
  name: string;
  type: ElementType;
  /** Size of each dimension, outermost first; null for a variable dimension. */
  shape: (number | null)[];
}

/** Name, version and signature of a model. */
export interface Description {
  name: string;
  version: string;
  inputs: Port[];
  outputs: Port[];
}

/** Options of a run. */
export interface RunOptions {
  /** Outputs to return, in this order. The node need not compute the others. */
  outputs?: readonly string[];
  /** Time limit in milliseconds. The invocation's deadline still applies. */
  timeoutMs?: number;
  /** Priority: 1 is the most urgent; 0 is the model's default. */
  priority?: number;
}

/**
 * A model that the function's manifest grants. Tensor functions, workflows and kernel graphs are
 * opened and run in the same way.
 *
 * The node keeps the model in device memory for the lifetime of this handle. Opening a resident
 * model is cheap.
 */
export class Model {
  private constructor(private readonly raw: RawModel) {}

  /**
   * Opens the newest version of the model `name`, or a specific version with `name:version`.
   *
   * @throws {NotFound}, {@link NotGranted}, or {@link ResourceExhausted} if no device has room for
   * the model.
   */
  static open(name: string): Model {
    return new Model(asked(() => RawModel.open(name)));
  }

  /** Name, version, inputs and outputs of the model. */
  describe(): Description {
    const { name, version, inputs, outputs } = this.raw.describe();
    const ports = (raw: typeof inputs): Port[] =>
      raw.map(({ name, elementType, shape }) => ({ name, type: elementType as ElementType, shape }));
    return { name, version, inputs: ports(inputs), outputs: ports(outputs) };
  }

  /** Runs the model and waits for its outputs. */
  infer(inputs: NamedTensors, options?: RunOptions): Tensors {
    return fromPairs(askedRun(() => this.raw.infer(toPairs(inputs), raw(options))));
  }

  /**
   * Starts a run and returns without waiting for its outputs. The inputs may be disposed of at
   * once.
   */
  submit(inputs: NamedTensors, options?: RunOptions): Pending {
    return new Pending(askedRun(() => this.raw.submit(toPairs(inputs), raw(options))));
  }

  /** Releases the model, so that the node may evict it from device memory. */
  [Symbol.dispose](): void {
    this.raw[Symbol.dispose]();
  }

  /** @internal */
  toJSON(key: string): never {
    throw noJson(key, this, "give its describe()");
  }
}

/**
 * An active run, which can be awaited: `await model.submit(...)`. Disposing of it cancels the
 * run.
 *
 * Runs proceed concurrently while the function computes or waits, so `await Promise.all(runs)`
 * takes as long as the longest run. While the function waits, none of its other code runs.
 */
export class Pending implements PromiseLike<Tensors> {
  /** @internal */
  constructor(private readonly raw: RawPending) {}

  /** Waits for the outputs. A second call fails. */
  wait(): Tensors {
    return fromPairs(askedRun(() => this.raw.wait()));
  }

  /** Cancels the run, unless it is finished; waiting for it then fails with {@link Cancelled}. */
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
