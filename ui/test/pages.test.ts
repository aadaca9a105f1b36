import { describe, expect, it } from 'vitest';
import { bytes, seconds } from '../src/format';
import { draft } from '../src/inference';
import { link, parseRoute } from '../src/router';
import { compare, spans, totalNs } from '../src/timeline';

const estimate = { wait_ns: 10, load_time_ns: 20, run_time_ns: 30, missing_bytes: 0 };
const outcome = { wait_ns: 5, load_time_ns: 0, run_time_ns: 60, off_device_ns: 15 };

describe('timeline', () => {
  it('lays phases one after another', () => {
    expect(spans(estimate).map(({ phase, fromNs }) => [phase, fromNs])).toEqual([
      ['wait', 0],
      ['load', 10],
      ['move', 30],
      ['run', 30],
      ['off device', 60],
    ]);
    expect(totalNs(outcome)).toBe(80);
  });
  it('compares estimated and actual times', () => {
    const lines = new Map(compare(estimate, outcome).map((line) => [line.phase, line]));
    expect(lines.get('wait')).toMatchObject({ estimatedNs: 10, actualNs: 5, ratio: 2 });
    expect(lines.get('load')).toMatchObject({ estimatedNs: 20, actualNs: 0, ratio: undefined });
    expect(lines.get('move')).toMatchObject({ actualNs: undefined, ratio: undefined });
    expect(lines.get('total')).toMatchObject({ estimatedNs: 60, actualNs: 80, ratio: 0.75 });
  });
  it('has no actual times before the end of the call', () => {
    expect(compare(estimate, null).every(({ actualNs, ratio }) => actualNs === undefined && ratio === undefined)).toBe(true);
  });
});

describe('draft', () => {
  it('fills inputs with zeros of their type, and variable dimensions with 1', () => {
    const { body, tooLarge } = draft([
      { name: 'image', datatype: 'FP32', shape: [null, 2] },
      { name: 'text', datatype: 'BYTES', shape: [1] },
      { name: 'flag', datatype: 'BOOL', shape: [] },
    ]);
    expect(tooLarge).toEqual([]);
    expect(JSON.parse(body)).toEqual({
      inputs: [
        { name: 'image', datatype: 'FP32', shape: [1, 2], data: [0, 0] },
        { name: 'text', datatype: 'BYTES', shape: [1], data: [''] },
        { name: 'flag', datatype: 'BOOL', shape: [], data: [false] },
      ],
    });
  });
  it('names inputs that are too large to write out', () => {
    const { body, tooLarge } = draft([{ name: 'image', datatype: 'FP32', shape: [null, 3, 224, 224] }]);
    expect(tooLarge).toEqual(['image']);
    expect(JSON.parse(body).inputs[0].data).toEqual([]);
  });
});

describe('format', () => {
  it('chooses units', () => {
    expect([0, 512, 1536, 4 * 1024 ** 3].map(bytes)).toEqual(['0 B', '512 B', '1.50 KiB', '4.00 GiB']);
    expect([0, 2.5e-8, 12e-6, 0.0614, 1.5, 231, 8000, 400_000].map(seconds)).toEqual([
      '0 s',
      '25 ns',
      '12 µs',
      '61.4 ms',
      '1.5 s',
      '3 min 51 s',
      '2 h 13 min',
      '4 d 15 h',
    ]);
  });
});

describe('routes', () => {
  it('keeps ids with any characters', () => {
    for (const id of ['a/b', 'ü ?#%', 'plain']) expect(parseRoute(link('requests', id))).toEqual(['requests', id]);
    expect(parseRoute('')).toEqual([]);
    expect(parseRoute('#/functions/%')).toEqual(['functions', '%']);
  });
});
