/** In-memory models with the interface of componentize-qjs's bindings, provided by tests. */

import { refused, type Tensor } from "./tensors.ts";

type Pairs = [string, Tensor][];

/** Models by name. `weir/testing` registers them. */
export const MODELS = new Map<string, (inputs: Pairs) => Pairs>();

export class Model {
  private constructor(
    private readonly name: string,
    private readonly run: (inputs: Pairs) => Pairs,
  ) {}

  static open(name: string): Model {
    const run = MODELS.get(name.split(":", 1)[0]!);
    if (run === undefined) throw refused("not-found", `there is no model ${name}; model() of weir/testing provides one`);
    return new Model(name, run);
  }

  describe() {
    return { name: this.name, version: "1", inputs: [], outputs: [] };
  }

  infer(inputs: Pairs, options: { outputs: string[] | null } | null): Pairs {
    const outputs = this.run(inputs);
    return options?.outputs?.map((name) => outputs.find(([is]) => is === name)!) ?? outputs;
  }

  submit(inputs: Pairs, options: { outputs: string[] | null } | null): Pending {
    return new Pending(() => this.infer(inputs, options));
  }

  [Symbol.dispose](): void {}
}

/** A run, which executes when the function waits for it. */
export class Pending {
  constructor(private run: () => Pairs) {}

  wait(): Pairs {
    const run = this.run;
    this.run = () => {
      throw refused("invalid-argument", "the outputs were taken before");
    };
    return run();
  }

  cancel(): void {
    this.run = () => {
      throw refused("cancelled");
    };
  }

  [Symbol.dispose](): void {}
}
