// Parts of a device's memory, for the memory map.

import type { Device } from './types';

export type MemoryKind = 'model' | 'rest' | 'other' | 'intermediates' | 'workspaces' | 'free';

export interface MemoryPart {
  kind: MemoryKind;
  label: string;
  bytes: number;
  /** Name of a model with a page. */
  model?: string;
}

/** Models with a part each; the smaller ones share a part. */
const MODELS_MAX = 6;

/** The parts in the order of the map, without empty ones. */
export function memoryParts(device: Device): MemoryPart[] {
  const { memory } = device;
  if (memory === undefined) {
    // A node of an earlier version.
    const free = Math.max(0, device.capacity_bytes - device.used_bytes);
    return shown([
      { kind: 'other', label: 'models', bytes: device.used_bytes },
      { kind: 'free', label: 'free', bytes: free },
    ]);
  }
  const models = memory.models.toSorted((one, other) => other.bytes - one.bytes);
  const rest = models.slice(MODELS_MAX);
  return shown([
    ...models.slice(0, MODELS_MAX).map(
      ({ model, bytes }): MemoryPart => ({ kind: 'model', label: model, bytes, model: model.split(':')[0] ?? model }),
    ),
    { kind: 'rest', label: `${rest.length} more models`, bytes: rest.reduce((total, { bytes }) => total + bytes, 0) },
    { kind: 'other', label: 'other models', bytes: memory.other_models_bytes },
    { kind: 'intermediates', label: 'intermediates', bytes: memory.intermediates_bytes },
    { kind: 'workspaces', label: 'workspaces', bytes: memory.workspace_bytes },
    { kind: 'free', label: 'free for models', bytes: memory.free_bytes },
  ]);
}

const shown = (parts: MemoryPart[]): MemoryPart[] => parts.filter(({ bytes }) => bytes > 0);
