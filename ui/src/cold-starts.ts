// Cold starts of functions and models, from the metrics of the node.

import type { Filter, Metrics } from './prometheus';

export interface ColdStart {
  cause: string;
  /** Where a model came from; empty for other causes. */
  from: string;
  count: number;
}

const CAUSES: Record<string, string> = {
  compile: 'component compiled',
  component: 'component read from disk',
  instance: 'first instance',
  'scaled-out': 'further instance: all were busy',
  model: 'model loaded for the first time',
  'model-evicted': 'model loaded again after its eviction',
  'model-scaled-out': 'model loaded onto a further device',
};

const SOURCES: Record<string, string> = {
  memory: 'host memory',
  disk: 'disk',
  'object-store': 'object store',
};

export const causeText = (cause: string): string => CAUSES[cause] ?? cause;
export const sourceText = (from: string): string => (from === '' ? '–' : (SOURCES[from] ?? from));

/** Cold starts by cause and source, over all versions, the most frequent first. */
export function coldStarts(metrics: Metrics, name: string, filter: Filter): ColdStart[] {
  const sums = new Map<string, ColdStart>();
  for (const { labels, value } of metrics.get(name) ?? []) {
    if (!filter(labels) || value === 0) continue;
    const cause = labels['cause'] ?? '';
    const from = labels['from'] ?? '';
    const key = `${cause} ${from}`;
    sums.set(key, { cause, from, count: (sums.get(key)?.count ?? 0) + value });
  }
  return [...sums.values()].sort((one, other) => other.count - one.count || one.cause.localeCompare(other.cause));
}
