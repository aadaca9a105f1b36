/**
 * Errors and their responses. A {@link WeirError} thrown from a handler becomes the response:
 * HTTP status `status` with the message, or the error of the tensor function. Any other
 * exception ends the call, with its stack trace in the function's log.
 */

/** Base class of all errors. */
export class WeirError extends Error {
  /** HTTP status of the error response. */
  readonly status: number = 500;

  override get name(): string {
    return this.constructor.name;
  }
}

/** An argument is invalid: a shape that does not match the data, an unknown input name. */
export class InvalidArgument extends WeirError {
  override readonly status: number = 400;
}

/**
 * The arguments of a model run are invalid. The function chose them, so the client sees a failure
 * of the function.
 */
export class InvalidRun extends InvalidArgument {
  override readonly status = 500;
}

/** No model of that name, or no such version of it, is deployed. */
export class NotFound extends WeirError {}

/** The model exists, but the function's manifest does not grant access to it. */
export class NotGranted extends WeirError {}

/** A limit of the function or of the node is exhausted. */
export class ResourceExhausted extends WeirError {
  override readonly status = 503;
}

/** The deadline of the run or of the invocation has passed. */
export class DeadlineExceeded extends WeirError {
  override readonly status = 504;
}

/** The run was cancelled, by the function or because the client disconnected. */
export class Cancelled extends WeirError {
  override readonly status = 503;
}

/** A temporary failure; the call is safe to retry. */
export class Unavailable extends WeirError {
  override readonly status = 503;
}

/** The model failed, or the node has an internal error. */
export class InternalError extends WeirError {}

/**
 * An error response defined by the function: an HTTP status of 400 or higher, and a text for the
 * client.
 */
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

/** The `error` type of the WIT interface. */
export interface RawError {
  tag: string;
  val?: string;
}

/** Runs a call of the node, and converts its error to a {@link WeirError}. */
export function asked<T>(ask: () => T): T {
  try {
    return ask();
  } catch (error) {
    throw fromNode(error);
  }
}

/** Like {@link asked}, for model runs. */
export function askedRun<T>(ask: () => T): T {
  try {
    return asked(ask);
  } catch (error) {
    throw error instanceof InvalidArgument ? new InvalidRun(error.message) : error;
  }
}

function fromNode(error: unknown): unknown {
  const raw = (error as { payload?: RawError } | null)?.payload;
  if (raw === undefined || !(raw.tag in KINDS)) return error;
  return new KINDS[raw.tag as keyof typeof KINDS](raw.val ?? TEXTS[raw.tag]);
}

/**
 * The error that ends the call after its exception was logged. It has no details, because the
 * engine logs it as well.
 */
export function logged(): Error {
  const error = new Error("the call ended with the exception above");
  error.stack = "";
  return error;
}

/** Converts an error to the `error` type for the caller of a tensor function. */
export function toNode(error: WeirError): RawError {
  const kind = Object.entries(KINDS).find(([, kind]) => error.constructor === kind)?.[0];
  const tag = kind ?? (error.status >= 400 && error.status < 500 ? "invalid-argument" : "internal");
  return tag in TEXTS ? { tag } : { tag, val: error.message };
}
