// Reader of Prometheus' text format, as far as `/metrics` of a node uses it.

export type Labels = Record<string, string>;

export interface Sample {
  labels: Labels;
  value: number;
}

/** Samples by the name of their metric. */
export type Metrics = Map<string, Sample[]>;

export function parseMetrics(text: string): Metrics {
  const metrics: Metrics = new Map();
  for (const line of text.split('\n')) {
    if (line === '' || line.startsWith('#')) continue;
    const parsed = parseLine(line);
    if (parsed === undefined) continue;
    const samples = metrics.get(parsed.name);
    if (samples === undefined) metrics.set(parsed.name, [parsed.sample]);
    else samples.push(parsed.sample);
  }
  return metrics;
}

function parseLine(line: string): { name: string; sample: Sample } | undefined {
  const open = line.search(/[{ ]/);
  if (open < 0) return undefined;
  const name = line.slice(0, open);
  let labels: Labels = {};
  let rest = line.slice(open);
  if (rest.startsWith('{')) {
    const parsed = parseLabels(rest);
    if (parsed === undefined) return undefined;
    labels = parsed.labels;
    rest = parsed.rest;
  }
  const value = number(rest.trim().split(' ')[0] ?? '');
  return value === undefined ? undefined : { name, sample: { labels, value } };
}

/** Reads `{name="value",...}` at the start of `text`; values may contain escapes and braces. */
function parseLabels(text: string): { labels: Labels; rest: string } | undefined {
  const labels: Labels = {};
  let at = 1;
  while (text[at] !== '}') {
    const equals = text.indexOf('="', at);
    if (equals < 0) return undefined;
    const name = text.slice(at, equals).trim();
    let value = '';
    at = equals + 2;
    while (text[at] !== '"') {
      const char = text[at];
      if (char === undefined) return undefined;
      if (char === '\\') {
        const escaped = text[at + 1];
        value += escaped === 'n' ? '\n' : (escaped ?? '');
        at += 2;
      } else {
        value += char;
        at += 1;
      }
    }
    labels[name] = value;
    at += 1;
    if (text[at] === ',') at += 1;
  }
  return { labels, rest: text.slice(at + 1) };
}

function number(text: string): number | undefined {
  if (text === '+Inf') return Infinity;
  if (text === '-Inf') return -Infinity;
  if (text === 'NaN') return NaN;
  const value = Number(text);
  return text === '' || Number.isNaN(value) ? undefined : value;
}

export type Filter = (labels: Labels) => boolean;

/** Sum of the samples of a metric; `undefined` if the node has no such metric. */
export function sum(metrics: Metrics, name: string, filter: Filter = () => true): number | undefined {
  const samples = metrics.get(name);
  if (samples === undefined) return undefined;
  return samples.filter(({ labels }) => filter(labels)).reduce((total, { value }) => total + value, 0);
}

/** Sums of the samples of a metric by the value of a label. */
export function sumBy(metrics: Metrics, name: string, label: string, filter: Filter = () => true): [string, number][] {
  const sums = new Map<string, number>();
  for (const { labels, value } of metrics.get(name) ?? []) {
    if (!filter(labels)) continue;
    const key = labels[label] ?? '';
    sums.set(key, (sums.get(key) ?? 0) + value);
  }
  return [...sums].sort(([one], [other]) => one.localeCompare(other));
}
