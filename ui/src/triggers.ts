// Schedules of triggers, and the settings that the form of a new trigger makes.

import { parseHeaders } from './headers';
import type { TriggerSource, TriggerSpec, TriggerTarget } from './types';

/** Units of intervals, in milliseconds, largest first. */
const UNITS = [
  ['days', 86_400_000],
  ['hours', 3_600_000],
  ['minutes', 60_000],
  ['seconds', 1000],
] as const;
const HOUR_MS = 3_600_000;

export const INTERVAL_UNITS = UNITS.map(([unit]) => unit);
export type IntervalUnit = (typeof UNITS)[number][0];

/** Fields of the form. Numbers are texts, as the fields hold them. */
export interface TriggerDraft {
  schedule: 'cron' | 'interval';
  cron: string;
  timezone: string;
  every: string;
  unit: IntervalUnit;
  kind: 'function' | 'inference';
  target: string;
  /** Of an inference; empty for the current version. */
  version: string;
  method: string;
  path: string;
  headers: string;
  body: string;
  missed: TriggerSpec['missed'];
  missedHours: string;
  overlap: TriggerSpec['overlap'];
  isPaused: boolean;
}

/** The defaults of the node. */
export const EMPTY_DRAFT: TriggerDraft = {
  schedule: 'cron',
  cron: '',
  timezone: '',
  every: '5',
  unit: 'minutes',
  kind: 'function',
  target: '',
  version: '',
  method: 'POST',
  path: '/',
  headers: '',
  body: '',
  missed: 'skip',
  missedHours: '24',
  overlap: 'allow',
  isPaused: false,
};

/** The settings of a draft. Throws an error for the user if the headers are invalid. */
export function specOf(draft: TriggerDraft): TriggerSpec {
  const isFunction = draft.kind === 'function';
  const path = draft.path.startsWith('/') ? draft.path : `/${draft.path}`;
  const hasBody = (!isFunction || draft.method !== 'GET') && draft.body !== '';
  return {
    source: sourceOf(draft),
    target: targetOf(draft),
    request: {
      ...(isFunction ? { method: draft.method, path } : { method: 'POST', path: '/' }),
      headers: headersOf(draft.headers, hasBody ? draft.body : undefined),
      ...(hasBody ? { body: draft.body } : {}),
    },
    enabled: !draft.isPaused,
    missed: draft.missed,
    missed_age_ms_max: Math.round(Number(draft.missedHours) * HOUR_MS),
    overlap: draft.overlap,
  };
}

function sourceOf(draft: TriggerDraft): TriggerSource {
  if (draft.schedule === 'interval') {
    const unit = UNITS.find(([name]) => name === draft.unit);
    return { every_ms: Math.round(Number(draft.every) * (unit?.[1] ?? 1000)) };
  }
  const timezone = draft.timezone.trim();
  return { cron: draft.cron.trim(), ...(timezone === '' ? {} : { timezone }) };
}

function targetOf(draft: TriggerDraft): TriggerTarget {
  const name = draft.target.trim();
  if (draft.kind === 'function') return { function: name };
  return { inference: name, ...(draft.version === '' ? {} : { version: Number(draft.version) }) };
}

/** Headers of a request. A body has the content type that the command line gives it. */
function headersOf(text: string, body: string | undefined): Record<string, string> {
  const headers = new Map<string, string>();
  if (body !== undefined) headers.set('content-type', isJson(body) ? 'application/json' : 'text/plain; charset=utf-8');
  const given = parseHeaders(text).map(([name, value]): [string, string] => [name.toLowerCase(), value]);
  const names = given.map(([name]) => name);
  const repeated = names.find((name, at) => names.indexOf(name) !== at);
  if (repeated !== undefined) throw new Error(`The request of a trigger has each header once, and ${repeated} is there twice.`);
  given.forEach(([name, value]) => headers.set(name, value));
  return Object.fromEntries(headers);
}

function isJson(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/** The source as text, such as `0 6 * * * (Europe/Berlin)`, `every 90 seconds` or `events of order.new`. */
export function schedule(source: TriggerSource): string {
  const { nats, events } = source;
  if (nats !== undefined) return `${nats.url} stream ${nats.stream}${nats.subject === undefined ? '' : `, subject ${nats.subject}`}`;
  if (events !== undefined) {
    const types = events.types === undefined ? 'all types' : events.types.join(', ');
    const isLimited = events.subject_prefix !== undefined || events.subject_suffix !== undefined;
    return `events of ${types}${isLimited ? `, subject ${events.subject_prefix ?? ''}*${events.subject_suffix ?? ''}` : ''}`;
  }
  if (source.cron !== undefined) return source.timezone === undefined ? source.cron : `${source.cron} (${source.timezone})`;
  return source.every_ms === undefined ? '' : `every ${interval(source.every_ms)}`;
}

/** An interval in the largest unit that expresses it exactly. */
export function interval(everyMs: number): string {
  const [unit, unitMs] = UNITS.find(([, size]) => everyMs >= size && everyMs % size === 0) ?? ['milliseconds', 1];
  const count = everyMs / unitMs;
  return count === 1 ? unit.slice(0, -1) : `${count} ${unit}`;
}

/** The name of the target, with its version if it is fixed. */
export function targetText(target: TriggerTarget): string {
  const name = target.function ?? target.inference ?? '';
  return target.version === undefined ? name : `${name}:${target.version}`;
}

/** Whether the trigger calls or runs the function, under either kind of target. */
export function isTarget(target: TriggerTarget, functionName: string): boolean {
  return target.function === functionName || target.inference === functionName;
}

/** A time in a time zone; undefined if the browser does not know the zone. */
export function timeIn(timezone: string, unixMs: number): string | undefined {
  try {
    return new Date(unixMs).toLocaleString('sv', { timeZone: timezone, hour12: false });
  } catch {
    return undefined;
  }
}
