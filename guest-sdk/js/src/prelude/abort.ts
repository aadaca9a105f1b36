/**
 * `AbortController` and `AbortSignal`, after the DOM standard. Not part of the prelude, because they
 * need timers. The build adds them to HTTP functions that use their names.
 */

import { setTimeout } from "./timers.ts";

/** The parts of an event that listeners of signals use. */
interface AbortEvent {
  readonly type: "abort";
  readonly target: AbortSignal;
}
type Listener = (event: AbortEvent) => void;

/** The error of an aborted operation: its name is `AbortError` or `TimeoutError`. */
class Aborted extends Error {
  constructor(
    message: string,
    override readonly name: string,
  ) {
    super(message);
  }
}

/** Says when to abort an operation, such as a `fetch`. */
export class AbortSignal {
  /** A listener besides those of `addEventListener`. */
  onabort: Listener | null = null;
  private readonly listeners = new Set<Listener>();
  private isAborted = false;
  private why: unknown;

  /** A signal that is aborted already. */
  static abort(reason?: unknown): AbortSignal {
    const signal = new AbortSignal();
    signal.abortWith(reason);
    return signal;
  }

  /** A signal that is aborted after `ms`, with a `TimeoutError`. */
  static timeout(ms: number): AbortSignal {
    const signal = new AbortSignal();
    setTimeout(() => signal.abortWith(new Aborted(`it took longer than ${ms} ms`, "TimeoutError")), ms);
    return signal;
  }

  /** A signal that is aborted with the first of `signals`. */
  static any(signals: Iterable<AbortSignal>): AbortSignal {
    const signal = new AbortSignal();
    const sources = [...signals];
    const abort = ({ target }: { target: AbortSignal }) => {
      // A source may live longer, such as that of the whole function.
      for (const source of sources) source.removeEventListener("abort", abort);
      signal.abortWith(target.reason);
    };
    const aborted = sources.find((source) => source.aborted);
    if (aborted !== undefined) abort({ target: aborted });
    else for (const source of sources) source.addEventListener("abort", abort);
    return signal;
  }

  get aborted(): boolean {
    return this.isAborted;
  }

  /** The reason of the abort: an `AbortError` if none was given. */
  get reason(): any {
    return this.why;
  }

  /** Throws the reason if it is aborted. */
  throwIfAborted(): void {
    if (this.isAborted) throw this.why;
  }

  addEventListener(type: "abort", listener: Listener, _options?: unknown): void {
    // It is aborted once only, so that the option `once` changes nothing.
    if (type === "abort" && !this.isAborted) this.listeners.add(listener);
  }

  removeEventListener(_type: "abort", listener: Listener): void {
    this.listeners.delete(listener);
  }

  /** @internal */
  abortWith(reason: unknown = new Aborted("it was aborted", "AbortError")): void {
    if (this.isAborted) return;
    this.isAborted = true;
    this.why = reason;
    const listeners = [...this.listeners, ...(this.onabort ? [this.onabort] : [])];
    this.listeners.clear();
    for (const listener of listeners) {
      try {
        listener({ type: "abort", target: this });
      } catch (error) {
        // As in browsers, the others run nevertheless.
        console.error(error);
      }
    }
  }
}

/** Aborts an operation that has its signal. */
export class AbortController {
  readonly signal = new AbortSignal();

  abort(reason?: unknown): void {
    this.signal.abortWith(reason);
  }
}
