import { describe, expect, it } from 'vitest';
import { parseHeaders } from '../src/headers';
import { EMPTY_DRAFT, interval, isTarget, schedule, specOf, targetText, timeIn } from '../src/triggers';

const draft = { ...EMPTY_DRAFT, cron: '*/5 * * * *', target: 'hello' };

describe('schedules', () => {
  it('are written with their time zone', () => {
    expect(schedule({ cron: '0 6 * * *', timezone: 'Europe/Berlin' })).toBe('0 6 * * * (Europe/Berlin)');
    expect(schedule({ cron: '0 6 * * *' })).toBe('0 6 * * *');
  });
  it('write intervals in the largest exact unit', () => {
    expect([1, 1000, 1500, 90_000, 60_000, 7_200_000, 86_400_000].map(interval)).toEqual([
      'millisecond',
      'second',
      '1500 milliseconds',
      '90 seconds',
      'minute',
      '2 hours',
      'day',
    ]);
    expect(schedule({ every_ms: 2000 })).toBe('every 2 seconds');
  });
  it('write streams and events as the command line does', () => {
    expect(schedule({ nats: { url: 'nats://h', stream: 'S', subject: 'a.*' } })).toBe('nats://h stream S, subject a.*');
    expect(schedule({ events: {} })).toBe('events of all types');
    expect(schedule({ events: { types: ['a', 'b'], subject_suffix: '.png' } })).toBe('events of a, b, subject *.png');
  });
  it('show times in a time zone that the browser knows', () => {
    expect(timeIn('Europe/Berlin', Date.UTC(2026, 6, 1, 4))).toBe('2026-07-01 06:00:00');
    expect(timeIn('Nowhere/City', 0)).toBeUndefined();
  });
});

describe('settings of a trigger', () => {
  it('have the defaults of the node', () => {
    expect(specOf(draft)).toEqual({
      source: { cron: '*/5 * * * *' },
      target: { function: 'hello' },
      request: { method: 'POST', path: '/', headers: {} },
      enabled: true,
      missed: 'skip',
      missed_age_ms_max: 86_400_000,
      overlap: 'allow',
    });
  });
  it('have an interval instead of a cron expression', () => {
    expect(specOf({ ...draft, schedule: 'interval', every: '1.5', unit: 'hours' }).source).toEqual({ every_ms: 5_400_000 });
    expect(specOf({ ...draft, timezone: ' Europe/Berlin ' }).source).toEqual({ cron: '*/5 * * * *', timezone: 'Europe/Berlin' });
  });
  it('describe bodies by a content type that headers replace', () => {
    expect(specOf({ ...draft, body: '{"a": 1}', headers: 'X-Kind: daily' }).request).toEqual({
      method: 'POST',
      path: '/',
      headers: { 'content-type': 'application/json', 'x-kind': 'daily' },
      body: '{"a": 1}',
    });
    expect(specOf({ ...draft, body: 'a' }).request.headers).toEqual({ 'content-type': 'text/plain; charset=utf-8' });
    expect(specOf({ ...draft, body: 'a', headers: 'Content-Type: a/b' }).request.headers).toEqual({ 'content-type': 'a/b' });
  });
  it('have no body with GET, and a path below the function', () => {
    expect(specOf({ ...draft, method: 'GET', path: 'reports?kind=daily', body: 'a' }).request).toEqual({
      method: 'GET',
      path: '/reports?kind=daily',
      headers: {},
    });
  });
  it('run inferences with POST and an optional version', () => {
    const inference = { ...draft, kind: 'inference', target: 'digits', method: 'GET', path: '/x', body: '{}' } as const;
    expect(specOf(inference)).toMatchObject({ target: { inference: 'digits' }, request: { method: 'POST', path: '/', body: '{}' } });
    expect(specOf({ ...inference, version: '3' }).target).toEqual({ inference: 'digits', version: 3 });
    expect(targetText({ inference: 'digits', version: 3 })).toBe('digits:3');
  });
  it('refuse headers that are invalid or there twice', () => {
    expect(() => specOf({ ...draft, headers: 'no colon' })).toThrow('NAME: VALUE');
    expect(() => specOf({ ...draft, headers: 'a: 1\nA: 2' })).toThrow('a is there twice');
    expect(parseHeaders('\n a : b:c \n')).toEqual([['a', 'b:c']]);
  });
  it('belong to the function that they call or run', () => {
    expect(isTarget({ function: 'hello' }, 'hello')).toBe(true);
    expect(isTarget({ inference: 'tensors' }, 'tensors')).toBe(true);
    expect(isTarget({ function: 'other' }, 'hello')).toBe(false);
  });
});
