/**
 * Timers, over the clock of WASI 0.3. Not part of the prelude, because functions that use timers
 * need an additional import. The build adds them to HTTP functions that use their names.
 *
 * Timers end with the call: once the response is complete, the remaining ones do not run.
 */

import { waitFor } from "wasi:clocks/monotonic-clock@0.3.0";
import { kindOf } from "../kinds.ts";

/** Limit of a delay, as in browsers and Node.js: longer delays become 1 ms. */
const DELAY_MS_MAX = 2 ** 31 - 1;
/**
 * The longest wait of the node's clock. A wait cannot be cancelled: the call ends at most this much
 * later than its last timer was cleared.
 */
const WAIT_MS_MAX = 50;

interface Timer {
  dueMs: number;
  run: () => void;
  /** Time between two runs of an interval. */
  everyMs: number | undefined;
}

const timers = new Map<number, Timer>();
let lastId = 0;
let isWaiting = false;

/** Runs `callback` once, after `delayMs`. Returns the number of the timer. */
export function setTimeout(callback: (...args: any[]) => void, delayMs?: number, ...args: unknown[]): number {
  return started(callback, delayMs, args, false);
}

/** Runs `callback` every `delayMs`. Returns the number of the timer. */
export function setInterval(callback: (...args: any[]) => void, delayMs?: number, ...args: unknown[]): number {
  return started(callback, delayMs, args, true);
}

/** Ends a timer. */
export function clearTimeout(id?: number | null): void {
  timers.delete(id ?? 0);
}

export { clearTimeout as clearInterval };

/** For `fetch`, and for the end of a call. */
(globalThis as { __weirClock?: object }).__weirClock = {
  /** Whether timers wait. */
  isNeeded: () => timers.size > 0,
  pause: (ms: number) => waitFor(ms * 1e6),
  /** Ends all timers. */
  end: () => timers.clear(),
};

function started(callback: (...args: any[]) => void, delayMs: unknown, args: unknown[], repeats: boolean): number {
  if ("__weirWatched" in globalThis) throw new TypeError("no time passes while the function is built: start timers in the handler");
  if (typeof callback !== "function") throw new TypeError(`a timer runs a function, and this is ${kindOf(callback)}`);
  const asked = Math.trunc(Number(delayMs ?? 0));
  // At least one millisecond, so that an interval lets time pass.
  const delay = asked >= 1 && asked <= DELAY_MS_MAX ? asked : 1;
  timers.set(++lastId, { dueMs: performance.now() + delay, run: () => callback(...args), everyMs: repeats ? delay : undefined });
  if (!isWaiting) void runAll();
  return lastId;
}

/** Runs the timers when they are due, until there are none. */
async function runAll(): Promise<void> {
  isWaiting = true;
  while (timers.size > 0) {
    // Equal times are in the order of the calls.
    const [id, timer] = [...timers].reduce((first, other) => (other[1].dueMs < first[1].dueMs ? other : first));
    const leftMs = timer.dueMs - performance.now();
    if (leftMs > 0) {
      // Whole nanoseconds.
      await waitFor(Math.ceil(Math.min(leftMs, WAIT_MS_MAX) * 1e6));
      continue;
    }
    if (timer.everyMs === undefined) timers.delete(id);
    else timer.dueMs = Math.max(timer.dueMs + timer.everyMs, performance.now());
    try {
      timer.run();
    } catch (error) {
      // As in browsers, the others run nevertheless.
      console.error(error);
    }
    // The promises that the timer resolved come before the next timer.
    await null;
  }
  isWaiting = false;
}
