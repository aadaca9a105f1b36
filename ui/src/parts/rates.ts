// Rates of the node, from successive scrapes of its metrics.

import { useRef } from 'preact/hooks';
import { getText } from '../api';
import { type Bucket, bucketsOf, difference, quantile } from '../histogram';
import { type Loaded, useLoad } from '../hooks';
import { SPAN_S } from './span';
import { type Filter, type Metrics, parseMetrics, sum } from '../prometheus';

export const SCRAPE_MS = 2000;
/** Points that charts show. */
const POINTS_MAX = (SPAN_S * 1000) / SCRAPE_MS;

export interface Scrape {
  atMs: number;
  metrics: Metrics;
}

export interface Point {
  atMs: number;
  callsPerS: number | null;
  inferencesPerS: number | null;
  errorsPerS: number | null;
  callP50: number | null;
  callP99: number | null;
  inferenceP50: number | null;
  inferenceP99: number | null;
}

/** Outcomes that are errors: an error code of Weir, or a status above 499 of a function. */
const isError: Filter = ({ code, status }) => code !== 'ok' || (status ?? '').startsWith('5');

/** Rates between two scrapes. `null` where the node has no such metric, or no call in between. */
export function pointBetween(before: Scrape, now: Scrape): Point {
  const elapsedS = Math.max(1e-3, (now.atMs - before.atMs) / 1000);
  const rate = (name: string, filter?: Filter): number | null => {
    const value = sum(now.metrics, name, filter);
    if (value === undefined) return null;
    const added = value - (sum(before.metrics, name, filter) ?? 0);
    // A counter that went back belongs to a node that was restarted.
    return (added < 0 ? value : added) / elapsedS;
  };
  const added = (name: string): Bucket[] =>
    difference(bucketsOf(now.metrics, name), bucketsOf(before.metrics, name));
  const calls = added('weir_invocation_seconds');
  const inferences = added('weir_inference_seconds');
  const failedCalls = rate('weir_invocations_total', isError);
  const failedInferences = rate('weir_inferences_total', isError);
  return {
    atMs: now.atMs,
    callsPerS: rate('weir_invocations_total'),
    inferencesPerS: rate('weir_inferences_total'),
    errorsPerS:
      failedCalls === null && failedInferences === null ? null : (failedCalls ?? 0) + (failedInferences ?? 0),
    callP50: quantile(calls, 0.5) ?? null,
    callP99: quantile(calls, 0.99) ?? null,
    inferenceP50: quantile(inferences, 0.5) ?? null,
    inferenceP99: quantile(inferences, 0.99) ?? null,
  };
}

export async function scrape(signal: AbortSignal): Promise<Scrape> {
  const text = await getText('/metrics', signal);
  return { atMs: Date.now(), metrics: parseMetrics(text) };
}

/** The metrics of the node, and their latest rates. */
export function useRates(): Loaded<{ metrics: Metrics; points: Point[] }> {
  const last = useRef<Scrape | undefined>(undefined);
  const points = useRef<Point[]>([]);
  return useLoad(
    async (signal) => {
      const now = await scrape(signal);
      if (last.current !== undefined) {
        points.current = [...points.current, pointBetween(last.current, now)].slice(-POINTS_MAX);
      }
      last.current = now;
      return { metrics: now.metrics, points: points.current };
    },
    'rates',
    SCRAPE_MS,
  );
}
