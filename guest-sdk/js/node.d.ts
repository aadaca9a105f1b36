/**
 * The subset of Node's types that tests of functions need. The full types (`@types/node`) would
 * also allow functions to use APIs that no component has, such as `fetch` and `setTimeout`.
 */

declare module "node:test" {
  type Run = (context: any) => unknown;
  export function test(name: string, run?: Run): Promise<void>;
  export function describe(name: string, run: Run): Promise<void>;
  export function it(name: string, run?: Run): Promise<void>;
  export function before(run: Run): void;
  export function after(run: Run): void;
  export function beforeEach(run: Run): void;
  export function afterEach(run: Run): void;
  export const mock: any;
  export default test;
}

declare module "node:assert/strict" {
  type Expected = RegExp | object | ((error: any) => boolean);
  function assert(value: unknown, message?: string): asserts value;
  namespace assert {
    function ok(value: unknown, message?: string): asserts value;
    function equal(actual: unknown, expected: unknown, message?: string): void;
    function notEqual(actual: unknown, expected: unknown, message?: string): void;
    function deepEqual(actual: unknown, expected: unknown, message?: string): void;
    function notDeepEqual(actual: unknown, expected: unknown, message?: string): void;
    function match(actual: string, expected: RegExp, message?: string): void;
    function doesNotMatch(actual: string, expected: RegExp, message?: string): void;
    function throws(run: () => unknown, expected?: Expected | string, message?: string): void;
    function doesNotThrow(run: () => unknown, message?: string): void;
    function rejects(run: Promise<unknown> | (() => Promise<unknown>), expected?: Expected | string, message?: string): Promise<void>;
    function fail(message?: string): never;
  }
  export default assert;
}

/** All other modules of Node, untyped. */
declare module "node:*";
