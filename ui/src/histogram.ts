// Histograms with cumulative buckets, as Prometheus has them.

import type { Filter, Metrics } from './prometheus';

export interface Bucket {
  /** Upper bound, inclusive; infinite for the last bucket. */
  upTo: number;
  /** Number of values up to the bound. */
  count: number;
}

/** Buckets of a histogram, summed over the series that pass the filter, by ascending bound. */
export function bucketsOf(metrics: Metrics, name: string, filter: Filter = () => true): Bucket[] {
  const sums = new Map<number, number>();
  for (const { labels, value } of metrics.get(`${name}_bucket`) ?? []) {
    if (!filter(labels)) continue;
    const text = labels['le'] ?? '';
    const bound = text === '+Inf' ? Infinity : Number(text);
    sums.set(bound, (sums.get(bound) ?? 0) + value);
  }
  return [...sums].map(([upTo, count]) => ({ upTo, count })).sort((one, other) => one.upTo - other.upTo);
}

/**
 * Values that were added between two scrapes. A series that went back has been restarted, and
 * counts from zero.
 */
export function difference(now: Bucket[], before: Bucket[]): Bucket[] {
  const earlier = new Map(before.map(({ upTo, count }) => [upTo, count]));
  const added = now.map(({ upTo, count }) => ({ upTo, count: count - (earlier.get(upTo) ?? 0) }));
  return added.some(({ count }) => count < 0) ? now : added;
}

export function countOf(buckets: Bucket[]): number {
  return buckets.at(-1)?.count ?? 0;
}

/**
 * The `q` quantile, by linear interpolation within its bucket as Prometheus' `histogram_quantile`.
 * A quantile in the last bucket is the largest finite bound. `undefined` without values.
 */
export function quantile(buckets: Bucket[], q: number): number | undefined {
  const total = countOf(buckets);
  if (total <= 0) return undefined;
  const rank = q * total;
  const at = buckets.findIndex(({ count }) => count >= rank);
  const bucket = buckets[at];
  if (bucket === undefined) return undefined;
  const previous = buckets[at - 1];
  if (bucket.upTo === Infinity) return previous?.upTo;
  const from = previous?.upTo ?? 0;
  const below = previous?.count ?? 0;
  const within = bucket.count - below;
  return within === 0 ? bucket.upTo : from + ((bucket.upTo - from) * (rank - below)) / within;
}

/** Number of values in each bucket, from the first to the last bucket with values. */
export function shares(buckets: Bucket[]): { from: number; upTo: number; count: number }[] {
  const each = buckets.map(({ upTo, count }, at) => ({
    from: buckets[at - 1]?.upTo ?? 0,
    upTo,
    count: count - (buckets[at - 1]?.count ?? 0),
  }));
  const first = each.findIndex(({ count }) => count > 0);
  const last = each.findLastIndex(({ count }) => count > 0);
  return first < 0 ? [] : each.slice(first, last + 1);
}
