/** Stubs for the imports of WASI and of the current request. Tests create their own requests. */

export class Fields {}
export class Request {}
export class Response {}

export function takeBodyAsTensor(): never {
  throw new Error("there is no request under way");
}

export const replyWithTensor = takeBodyAsTensor;

/** Resolved after the time, by Node.js's own timers. */
export function waitFor(nanoseconds: number): Promise<void> {
  const { setTimeout } = globalThis as unknown as { setTimeout: (run: () => void, ms: number) => void };
  return new Promise((resolve) => setTimeout(resolve, nanoseconds / 1e6));
}

export function getRandomBytes(length: number): Uint8Array {
  return globalThis.crypto.getRandomValues(new Uint8Array(length));
}

/** The variables of the test. */
export function getEnvironment(): [string, string][] {
  const { process } = globalThis as unknown as { process: { env: Record<string, string> } };
  return Object.entries(process.env);
}

export function getStdout(): never {
  throw new Error("Node.js has a console of its own");
}

export const getStderr = getStdout;
