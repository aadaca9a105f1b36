import { describe, expect, it } from 'vitest';
import { bucketsOf, countOf, difference, quantile, shares } from '../src/histogram';
import { pointBetween } from '../src/parts/rates';
import { parseMetrics, sum, sumBy } from '../src/prometheus';

const text = `# HELP weir_invocations_total Invocations that ended.
# TYPE weir_invocations_total counter
weir_invocations_total{tenant="default",function="f",code="ok",status="200"} 7
weir_invocations_total{tenant="default",function="g",code="ok",status="503"} 2
weir_invocations_total{tenant="default",function="g",code="trap",status="500"} 1
weir_odd{text="a \\"quoted\\" {brace}, a \\\\ and a\\nline",empty=""} 1.5e3
weir_invocations_running 3
weir_infinite +Inf
not a sample
weir_broken{label="x
# EOF
`;

describe('parseMetrics', () => {
  const metrics = parseMetrics(text);
  it('reads names, labels and values', () => {
    expect(sum(metrics, 'weir_invocations_total')).toBe(10);
    expect(sum(metrics, 'weir_invocations_total', ({ function: name }) => name === 'g')).toBe(3);
    expect(sum(metrics, 'weir_invocations_running')).toBe(3);
    expect(sum(metrics, 'weir_infinite')).toBe(Infinity);
  });
  it('reads escapes and braces within labels', () => {
    expect(metrics.get('weir_odd')).toEqual([
      { labels: { text: 'a "quoted" {brace}, a \\ and a\nline', empty: '' }, value: 1500 },
    ]);
  });
  it('skips lines that are no samples, and knows no values of absent metrics', () => {
    expect(metrics.has('weir_broken')).toBe(false);
    expect(metrics.has('not')).toBe(false);
    expect(sum(metrics, 'weir_absent')).toBeUndefined();
  });
  it('sums by a label', () => {
    expect(sumBy(metrics, 'weir_invocations_total', 'function')).toEqual([['f', 7], ['g', 3]]);
  });
});

const buckets = (...counts: number[]) => counts.map((count, at) => ({ upTo: [1, 2, 4, Infinity][at] ?? Infinity, count }));

describe('histograms', () => {
  it('sums the buckets of series, by bound', () => {
    const metrics = parseMetrics('h_bucket{f="a",le="2"} 3\nh_bucket{f="a",le="+Inf"} 4\nh_bucket{f="b",le="2"} 1\nh_bucket{f="b",le="+Inf"} 1\n');
    expect(bucketsOf(metrics, 'h')).toEqual([{ upTo: 2, count: 4 }, { upTo: Infinity, count: 5 }]);
    expect(countOf(bucketsOf(metrics, 'h', ({ f }) => f === 'b'))).toBe(1);
  });
  it('interpolates quantiles within buckets', () => {
    expect(quantile(buckets(0, 10, 10, 10), 0.5)).toBe(1.5);
    expect(quantile(buckets(5, 10, 10, 10), 0.25)).toBe(0.5);
    expect(quantile(buckets(5, 10, 10, 10), 0.75)).toBe(1.5);
    expect(quantile(buckets(0, 0, 100, 100), 0.99)).toBeCloseTo(3.98);
  });
  it('gives the largest finite bound for values above it', () => {
    expect(quantile(buckets(0, 0, 0, 5), 0.5)).toBe(4);
  });
  it('has no quantile without values', () => {
    expect(quantile(buckets(0, 0, 0, 0), 0.5)).toBeUndefined();
    expect(quantile([], 0.5)).toBeUndefined();
  });
  it('counts what was added, and a restarted series from zero', () => {
    expect(difference(buckets(1, 3, 3, 4), buckets(1, 2, 2, 2))).toEqual(buckets(0, 1, 1, 2));
    expect(difference(buckets(1, 1, 1, 1), buckets(5, 5, 5, 5))).toEqual(buckets(1, 1, 1, 1));
  });
  it('lists buckets from the first to the last with values', () => {
    expect(shares(buckets(0, 2, 2, 3))).toEqual([
      { from: 1, upTo: 2, count: 2 },
      { from: 2, upTo: 4, count: 0 },
      { from: 4, upTo: Infinity, count: 1 },
    ]);
    expect(shares(buckets(0, 0, 0, 0))).toEqual([]);
  });
});

describe('pointBetween', () => {
  const at = (atMs: number, body: string) => ({ atMs, metrics: parseMetrics(body) });
  it('counts errors of Weir, and 5xx of functions', () => {
    const before = at(0, 'weir_invocations_total{code="ok",status="200"} 1\n');
    const point = pointBetween(before, at(2000, text));
    expect(point.callsPerS).toBe(4.5);
    expect(point.errorsPerS).toBe(1.5);
  });
  it('has no numbers that the node does not give', () => {
    const point = pointBetween(at(0, ''), at(2000, ''));
    expect(point).toEqual({
      atMs: 2000,
      callsPerS: null,
      inferencesPerS: null,
      errorsPerS: null,
      callP50: null,
      callP99: null,
      inferenceP50: null,
      inferenceP99: null,
    });
  });
  it('survives a restart of the node', () => {
    const point = pointBetween(at(0, 'weir_invocations_total 100\n'), at(1000, 'weir_invocations_total 3\n'));
    expect(point.callsPerS).toBe(3);
  });
});
