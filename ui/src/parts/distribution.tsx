// A histogram of the metrics, with its quantiles.

import { number, seconds } from '../format';
import { bucketsOf, countOf, quantile, shares } from '../histogram';
import type { Filter, Metrics } from '../prometheus';
import { Facts } from './ui';

export function Distribution(props: { metrics: Metrics; name: string; filter: Filter; emptyText: string }) {
  const buckets = bucketsOf(props.metrics, props.name, props.filter);
  const count = countOf(buckets);
  if (count === 0) return <p class="note">{props.emptyText}</p>;
  const at = (q: number): string => seconds(quantile(buckets, q) ?? 0);
  const bars = shares(buckets);
  const most = Math.max(...bars.map((bar) => bar.count));
  return (
    <>
      <Facts
        facts={[
          ['Calls', number(count)],
          ['p50', at(0.5)],
          ['p90', at(0.9)],
          ['p99', at(0.99)],
        ]}
      />
      <ul class="distribution" aria-label="Calls by latency">
        {bars.map((bar) => (
          <li key={bar.upTo}>
            <span>{bar.upTo === Infinity ? `above ${seconds(bar.from)}` : `up to ${seconds(bar.upTo)}`}</span>
            <svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
              <rect width={(100 * bar.count) / most} height="10" rx="1" />
            </svg>
            <span class="number">{number(bar.count)}</span>
          </li>
        ))}
      </ul>
    </>
  );
}
