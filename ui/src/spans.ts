// Timelines of calls: spans as rows below each other.

import type { CallSpan, CallTimeline } from './types';

/** Kind of a span, which selects its colour. */
export type SpanStyle = 'wait' | 'load' | 'run' | 'guest' | 'step' | 'send';

export interface SpanRow extends CallSpan {
  /** Number of enclosing spans. */
  depth: number;
  style: SpanStyle;
  /** The name as the page shows it. */
  label: string;
}

const NAMES: Record<string, [string, SpanStyle]> = {
  queue: ['wait for a turn and a placement', 'wait'],
  fetch: ['read the component', 'load'],
  compile: ['compile the component', 'load'],
  instantiate: ['create the sandbox', 'load'],
  guest: ['run the function', 'guest'],
  model_load: ['load the model', 'load'],
  model_run: ['run the model', 'run'],
  image_decode: ['decode an image', 'run'],
  reply: ['send the rest of the response', 'send'],
  forward: ['run on another node', 'send'],
};

const STEP = 'step ';

/** The spans with enclosed spans below their enclosing span, each level in the order of the starts. */
export function rows(timeline: Pick<CallTimeline, 'spans'>): SpanRow[] {
  const children = new Map<number | undefined, number[]>();
  timeline.spans.forEach(({ parent }, at) => {
    // An enclosing span comes before its parts; anything else is shown at the top.
    const under = parent !== undefined && parent < timeline.spans.length && parent !== at ? parent : undefined;
    children.set(under, [...(children.get(under) ?? []), at]);
  });
  const all: SpanRow[] = [];
  const seen = new Set<number>();
  const add = (parent: number | undefined, depth: number): void => {
    for (const at of children.get(parent) ?? []) {
      const span = timeline.spans[at];
      if (span === undefined || seen.has(at)) continue;
      seen.add(at);
      all.push({ ...span, depth, ...described(span.name) });
      add(at, depth + 1);
    }
  };
  add(undefined, 0);
  return all;
}

function described(name: string): { label: string; style: SpanStyle } {
  if (name.startsWith(STEP)) return { label: name, style: 'step' };
  const [label, style] = NAMES[name] ?? [name, 'send'];
  return { label, style };
}

export interface StepTime {
  startNs: number;
  durationNs: number;
  error?: string;
}

/** Times of the steps of a workflow's run, by name. Steps of enclosed workflows are left out. */
export function stepTimes(timeline: Pick<CallTimeline, 'spans'>): Map<string, StepTime> {
  const isStep = (at: number | undefined): boolean => {
    const span = at === undefined ? undefined : timeline.spans[at];
    return span !== undefined && (span.name.startsWith(STEP) || isStep(span.parent));
  };
  const times = new Map<string, StepTime>();
  for (const { name, parent, start_ns, duration_ns, error } of timeline.spans) {
    if (!name.startsWith(STEP) || isStep(parent)) continue;
    const time: StepTime = { startNs: start_ns, durationNs: duration_ns };
    if (error !== undefined) time.error = error;
    times.set(name.slice(STEP.length), time);
  }
  return times;
}
