/**
 * What can go wrong, and how it is answered. An error of these that a function throws becomes its answer: HTTP status `status` with the
 * message, or the error of the tensor function. Anything else that is thrown ends the call, with its stack in the function's log.
 */

/** Why something could not be done. */
export class WeirError extends Error {
  /** The HTTP status that answers for it. */
  readonly status: number = 500;

  override get name(): string {
    return this.constructor.name;
  }
}

/** What was asked for is wrong in itself: a shape that does not fit the data, an unknown input name. */
export class InvalidArgument extends WeirError {
  override readonly status = 400;
}

/** No model of that name, or no such version of it, is deployed. */
export class NotFound extends WeirError {}

/** The model exists, but the function's manifest does not grant it. */
export class NotGranted extends WeirError {}

/** A limit of the function or of the node is used up. */
export class ResourceExhausted extends WeirError {
  override readonly status = 503;
}

/** The deadline of the run, or of the whole invocation, passed first. */
export class DeadlineExceeded extends WeirError {
  override readonly status = 504;
}

/** The run was cancelled, by the function or because the client went away. */
export class Cancelled extends WeirError {
  override readonly status = 503;
}

/** It may work later; safe to try again. */
export class Unavailable extends WeirError {
  override readonly status = 503;
}

/** The model itself failed, or the node has a fault. */
export class InternalError extends WeirError {}

/** The function's own answer: an HTTP status from 400 up, and a text for whoever asked. */
export class StatusError extends WeirError {
  override readonly status: number;

  constructor(status: number, message: string) {
    super(message);
    this.status = status;
  }
}

const KINDS = {
  "invalid-argument": InvalidArgument,
  "not-found": NotFound,
  "not-granted": NotGranted,
  "resource-exhausted": ResourceExhausted,
  "deadline-exceeded": DeadlineExceeded,
  cancelled: Cancelled,
  unavailable: Unavailable,
  internal: InternalError,
};
const TEXTS: Record<string, string> = {
  "deadline-exceeded": "the deadline passed",
  cancelled: "the run was cancelled",
};

/** The contract's `error`. */
export interface RawError {
  tag: string;
  val?: string;
}

/** Do what asks the node, and throw what it refuses as a {@link WeirError}. */
export function asked<T>(ask: () => T): T {
  try {
    return ask();
  } catch (error) {
    throw fromNode(error);
  }
}

function fromNode(error: unknown): unknown {
  const raw = (error as { payload?: RawError } | null)?.payload;
  if (raw === undefined || !(raw.tag in KINDS)) return error;
  return new KINDS[raw.tag as keyof typeof KINDS](raw.val ?? TEXTS[raw.tag]);
}

/** What to end the call with when its exception is in the log: the engine writes what it is thrown into the log as well. */
export function logged(): Error {
  const error = new Error("the call ended with the exception above");
  error.stack = "";
  return error;
}

/** What the caller of a tensor function gets to see. */
export function toNode(error: WeirError): RawError {
  const kind = Object.entries(KINDS).find(([, kind]) => error.constructor === kind)?.[0];
  const tag = kind ?? (error.status >= 400 && error.status < 500 ? "invalid-argument" : "internal");
  return tag in TEXTS ? { tag } : { tag, val: error.message };
}
