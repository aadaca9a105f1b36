/** Stubs for the imports of WASI and of the current request. Tests create their own requests. */

export class Fields {}
export class Request {}
export class Response {}

export function takeBodyAsTensor(): never {
  throw new Error("there is no request under way");
}

export const replyWithTensor = takeBodyAsTensor;

export function getRandomBytes(length: number): Uint8Array {
  return globalThis.crypto.getRandomValues(new Uint8Array(length));
}

export function getStdout(): never {
  throw new Error("Node.js has a console of its own");
}

export const getStderr = getStdout;
