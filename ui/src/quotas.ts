// Names and values of quotas.

import { bytes, number } from './format';
import type { QuotaUsage } from './types';

const NAMES: Record<string, string> = {
  requests_per_s: 'Requests per second',
  requests_burst: 'Requests of a burst',
  requests_running_max: 'Requests in progress',
  instances_max: 'Live instances of functions',
  guest_memory_bytes_max: 'Memory of instances',
  arena_bytes_max: 'Memory of bodies and tensors',
  names_max: 'Functions, models and workflows',
  stored_bytes_max: 'Stored components and models',
  'gateway.tenant_uploads_max': 'Uploads in progress',
  'sandbox.websockets.tenant_open_max': 'Open WebSockets',
  'gateway.answers.tenant_bytes_max': 'Answers that clients have not read',
  'objects.tenant_len_max': 'Objects',
  'objects.tenant_bytes_max': 'Memory of objects',
  'async.tenant_running_max': 'Running asynchronous invocations',
  'async.tenant_queue_len_max': 'Unfinished asynchronous invocations',
  'async.tenant_kept_max': 'Kept results of invocations',
  'async.tenant_bytes_max': 'Disk space of invocations',
  'async.triggers.tenant_triggers_max': 'Triggers',
  'async.triggers.tenant_streams_max': 'Streams of triggers',
};

export const quotaName = (setting: string): string => NAMES[setting] ?? setting;

export function quotaValue(setting: string, value: number): string {
  return setting.includes('bytes') ? bytes(value) : number(value);
}

/** Used part of a quota, from 0 to 1; `undefined` without a limit or a count. */
export function quotaShare({ used, max }: QuotaUsage): number | undefined {
  if (used === undefined || max === undefined) return undefined;
  return max === 0 ? (used > 0 ? 1 : 0) : Math.min(1, used / max);
}

/** The quota with the largest used part. */
export function fullest(quotas: QuotaUsage[]): { quota: QuotaUsage; share: number } | undefined {
  let most: { quota: QuotaUsage; share: number } | undefined;
  for (const quota of quotas) {
    const share = quotaShare(quota);
    if (share !== undefined && (most === undefined || share > most.share)) most = { quota, share };
  }
  return most;
}
