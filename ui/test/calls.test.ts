import { describe, expect, it } from 'vitest';
import { coldStarts } from '../src/cold-starts';
import { memoryParts } from '../src/memory';
import { parseMetrics } from '../src/prometheus';
import { fullest, quotaShare, quotaValue } from '../src/quotas';
import { rows, stepTimes } from '../src/spans';
import type { CallSpan, Device } from '../src/types';

const span = (name: string, parent?: number, start_ns = 0, duration_ns = 1): CallSpan =>
  parent === undefined ? { name, start_ns, duration_ns } : { name, parent, start_ns, duration_ns };

describe('timelines', () => {
  it('puts enclosed spans below their enclosing span', () => {
    const spans = [span('queue'), span('guest'), span('reply'), span('model_load', 1), span('model_run', 1)];
    const shown = rows({ spans }).map(({ label, depth, style }) => [label, depth, style]);
    expect(shown).toEqual([
      ['wait for a turn and a placement', 0, 'wait'],
      ['run the function', 0, 'guest'],
      ['load the model', 1, 'load'],
      ['run the model', 1, 'run'],
      ['send the rest of the response', 0, 'send'],
    ]);
  });
  it('shows spans whose enclosing span was not kept, and survives cycles', () => {
    expect(rows({ spans: [span('queue', 7), span('odd', 1)] }).map(({ depth }) => depth)).toEqual([0, 0]);
    expect(rows({ spans: [span('a', 1), span('b', 0)] })).toEqual([]);
  });
  it('has the times of the steps of a run, without those of enclosed workflows', () => {
    const spans = [span('queue'), span('step first', undefined, 2, 5), span('step inner', 1, 3, 1), span('model_run', 1)];
    const failed = { ...span('step second', undefined, 8, 4), error: 'deadline-exceeded' };
    expect([...stepTimes({ spans: [...spans, failed] })]).toEqual([
      ['first', { startNs: 2, durationNs: 5 }],
      ['second', { startNs: 8, durationNs: 4, error: 'deadline-exceeded' }],
    ]);
  });
});

describe('coldStarts', () => {
  it('adds up versions and sorts by count', () => {
    const metrics = parseMetrics(
      [
        'weir_model_cold_starts_total{model="m",version="1",cause="model",from="disk"} 1',
        'weir_model_cold_starts_total{model="m",version="2",cause="model",from="disk"} 1',
        'weir_model_cold_starts_total{model="m",version="2",cause="model-evicted",from="memory"} 5',
        'weir_model_cold_starts_total{model="n",version="1",cause="model",from="disk"} 9',
      ].join('\n'),
    );
    expect(coldStarts(metrics, 'weir_model_cold_starts_total', ({ model }) => model === 'm')).toEqual([
      { cause: 'model-evicted', from: 'memory', count: 5 },
      { cause: 'model', from: 'disk', count: 2 },
    ]);
  });
});

describe('memoryParts', () => {
  const device = { name: 'cpu', kind: 'cpu', backend: 'b', slots: 1, runs_waiting: 0, capacity_bytes: 100, used_bytes: 60, resident: [] };
  it('lists models by size, and adds up the smallest', () => {
    const models = [3, 9, 1, 7, 5, 2, 8, 4].map((bytes) => ({ model: `m${bytes}:1`, bytes }));
    const memory = { models, other_models_bytes: 0, intermediates_bytes: 6, workspace_bytes: 0, free_bytes: 40 };
    const parts = memoryParts({ ...device, memory } satisfies Device);
    expect(parts.map(({ label, bytes }) => `${label} ${bytes}`)).toEqual([
      'm9:1 9', 'm8:1 8', 'm7:1 7', 'm5:1 5', 'm4:1 4', 'm3:1 3', '2 more models 3', 'intermediates 6', 'free for models 40',
    ]);
    expect(parts[0]?.model).toBe('m9');
  });
  it('shows the totals of a node without a memory map', () => {
    expect(memoryParts(device).map(({ bytes }) => bytes)).toEqual([60, 40]);
  });
});

describe('quotas', () => {
  it('compares use and limit', () => {
    const quota = { setting: 'names_max', scope: 'cluster' as const };
    expect(quotaShare({ ...quota, used: 5, max: 10 })).toBe(0.5);
    expect(quotaShare({ ...quota, used: 50, max: 10 })).toBe(1);
    expect(quotaShare({ ...quota, used: 0, max: 0 })).toBe(0);
    expect(quotaShare({ ...quota, used: 5 })).toBeUndefined();
    expect(fullest([{ ...quota, used: 1, max: 10 }, { ...quota, setting: 'x', used: 9, max: 10 }, quota])?.quota.setting).toBe('x');
    expect(fullest([quota])).toBeUndefined();
    expect([quotaValue('arena_bytes_max', 2048), quotaValue('names_max', 2048)]).toEqual(['2.00 KiB', '2,048']);
  });
});
