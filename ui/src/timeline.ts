// Timeline of a placed call: its phases, as estimated and as measured.

import type { Estimate, Outcome } from './types';

export const PHASES = ['wait', 'load', 'move', 'run', 'off device'] as const;
export type Phase = (typeof PHASES)[number];

export interface Span {
  phase: Phase;
  fromNs: number;
  durationNs: number;
}

type Times = Pick<Estimate, 'wait_ns' | 'load_time_ns' | 'move_time_ns' | 'run_time_ns' | 'off_device_ns'>;

const KEYS: Record<Phase, keyof Times> = {
  wait: 'wait_ns',
  load: 'load_time_ns',
  move: 'move_time_ns',
  run: 'run_time_ns',
  'off device': 'off_device_ns',
};

/** The phases one after another. Absent times are 0. */
export function spans(times: Estimate | Outcome): Span[] {
  let fromNs = 0;
  return PHASES.map((phase) => {
    const durationNs = (times as Times)[KEYS[phase]] ?? 0;
    const span = { phase, fromNs, durationNs };
    fromNs += durationNs;
    return span;
  });
}

export function totalNs(times: Estimate | Outcome): number {
  return spans(times).reduce((total, { durationNs }) => total + durationNs, 0);
}

export interface Comparison {
  phase: Phase | 'total';
  estimatedNs: number;
  actualNs: number | undefined;
  /** Estimate over measurement; `undefined` without a measurement, or if it is zero. */
  ratio: number | undefined;
}

export function compare(estimate: Estimate, outcome: Outcome | null): Comparison[] {
  const line = (phase: Phase | 'total', estimatedNs: number, actualNs: number | undefined): Comparison => ({
    phase,
    estimatedNs,
    actualNs,
    ratio: actualNs ? estimatedNs / actualNs : undefined,
  });
  const measured = outcome as Times | null;
  const phases = spans(estimate).map(({ phase, durationNs }) => line(phase, durationNs, measured?.[KEYS[phase]]));
  return [...phases, line('total', totalNs(estimate), outcome === null ? undefined : totalNs(outcome))];
}
