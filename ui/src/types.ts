// Bodies of the API, as docs/reference/openapi.yaml defines them. Only what the pages read.

/** Use of a device's memory. */
export interface MemoryMap {
  models: { model: string; bytes: number }[];
  other_models_bytes: number;
  intermediates_bytes: number;
  workspace_bytes: number;
  free_bytes: number;
}

export interface Device {
  name: string;
  kind: string;
  backend: string;
  slots: number;
  runs_waiting: number;
  capacity_bytes: number;
  used_bytes: number;
  resident: string[];
  memory?: MemoryMap;
  lost?: string;
}

export interface Member {
  node: number;
  address: string;
  version: string;
  running: number;
  queued: number;
  devices: Device[];
}

export interface Cluster {
  node: number;
  address: string;
  dispatcher: number | null;
  asks_dispatcher: boolean;
  linked: number[];
  nodes: Member[];
}

export interface Status {
  version: string;
  state: 'ready' | 'unready' | 'draining';
  uptime_ms: number;
  functions: number;
  models: number;
  running: number;
  queued: number;
  async_queued: number;
  damaged: string[];
  devices: Device[];
  cluster?: Cluster;
}

export interface FunctionManifest {
  models?: string[];
  /** By environment variable. */
  secrets?: Record<string, string>;
  outbound_hosts?: string[];
  objects?: { read?: string[]; write?: string[] };
  idempotent?: boolean;
  cache_ttl_ms?: number;
  reuse?: boolean | Record<string, number>;
  slo_ms?: number;
  cost_slo?: number;
  limits?: Record<string, number>;
}

export interface FunctionVersion {
  name: string;
  version: number;
  active: boolean;
  kind: 'http02' | 'http03' | 'tensor';
  digest: string;
  component_bytes: number;
  deployed_at_ms: number;
  manifest: FunctionManifest;
  env_names: string[];
}

/** A version that gets a share of the calls. */
export interface Canary {
  version: number;
  percent: number;
  started_at_ms: number;
  promote_after_ms?: number;
}

export interface VersionCalls {
  calls: number;
  failed: number;
  p95_ms?: number;
}

export interface CanaryReport extends Canary {
  active: number;
  canary_calls: VersionCalls;
  active_calls: VersionCalls;
  waits_for?: string;
  unreachable?: number[];
}

export type DeployedFunction = FunctionVersion & { versions: number[]; canary?: Canary };

export interface LogLine {
  at_ms: number;
  version: number;
  request_id: string;
  stream: 'stdout' | 'stderr' | 'weir';
  text: string;
}

export interface Port {
  name: string;
  datatype: string;
  shape: (number | null)[];
}

export interface Mean {
  count: number;
  mean: number;
}

export interface Measured {
  threads: number;
  batch: number;
  concurrency: number;
  runs: number;
  latency_p50_ns: number;
  latency_p95_ns: number;
  throughput_per_s: number;
  memory_bytes: number;
}

export interface Profile {
  resident_bytes: number;
  load_time_ns: Record<string, Mean>;
  run_time_ns: Record<string, Mean>;
  measured?: Measured[];
}

export interface ModelOnDevice {
  device: string;
  kind: string;
  why_not?: string;
  resident: boolean;
  runs?: { threads: number; at_once_max: number; sessions: number };
  profile: Profile;
}

export interface ModelVersion {
  name: string;
  version: number;
  digest: string;
  model_bytes: number;
  weight_bytes: number;
  pushed_at_ms: number;
  inputs: Port[];
  outputs: Port[];
  manifest: Record<string, unknown>;
  resident: boolean;
  profile: Profile;
  devices: ModelOnDevice[];
}

export type Model = ModelVersion & { versions: number[]; canary?: Canary };

export interface WorkflowStep {
  name: string;
  action: string;
  reads: string[];
  when?: string;
  hedge?: { after_ns: number | null; runs: number; started: number; won: number };
}

export interface WorkflowVersion {
  name: string;
  version: number;
  active: boolean;
  deployed_at_ms: number;
  description: string;
  slo_ms?: number;
  cost_slo?: number;
  inputs: Port[];
  outputs: Port[];
  steps: WorkflowStep[];
  ready: boolean;
  reason?: string;
  document: string;
}

export type Workflow = WorkflowVersion & { versions: number[] };

export const INVOCATION_STATUSES = ['queued', 'running', 'done', 'dead', 'cancelled'] as const;
export type InvocationStatus = (typeof INVOCATION_STATUSES)[number];

export interface Invocation {
  id: string;
  kind: 'function' | 'inference';
  name: string;
  version?: number;
  status: InvocationStatus;
  attempts: number;
  request_id: string;
  request_bytes: number;
  accepted_at_ms: number;
  started_at_ms?: number;
  next_attempt_at_ms?: number;
  ended_at_ms?: number;
  expires_at_ms?: number;
  error?: { code: string; text: string };
  response?: { status: number; bytes: number };
  callback?: { status: string; attempts: number; error?: string };
}

export interface InvocationPage {
  invocations: Invocation[];
  next: string | null;
}

export interface TriggerSource {
  cron?: string;
  timezone?: string;
  every_ms?: number;
  nats?: { url: string; stream: string; subject?: string };
  events?: { types?: string[]; subject_prefix?: string; subject_suffix?: string };
}

export interface TriggerTarget {
  function?: string;
  inference?: string;
  version?: number;
}

export interface TriggerSpec {
  source: TriggerSource;
  target: TriggerTarget;
  request: {
    method: string;
    path: string;
    headers?: Record<string, string>;
    body?: string;
    body_base64?: string;
  };
  enabled: boolean;
  missed: 'skip' | 'run-once';
  missed_age_ms_max: number;
  overlap: 'allow' | 'skip';
}

export type TickOutcome = 'fired' | 'overlapped' | 'missed' | 'failed';

export interface TriggerTick {
  scheduled_at_ms?: number;
  at_ms: number;
  outcome: TickOutcome;
  invocation?: string;
  status?: InvocationStatus;
  error?: string;
}

export interface Trigger {
  name: string;
  spec: TriggerSpec;
  created_at_ms: number;
  changed_at_ms: number;
  next_at_ms: number[];
  last?: TriggerTick;
  ticks: Record<TickOutcome, number>;
  error?: string;
}

export interface Secret {
  name: string;
  version: number;
  value_bytes: number;
  created_at_ms: number;
  updated_at_ms: number;
  key_id: string;
  usable: boolean;
  functions: string[];
}

export interface DeviceId {
  node: number;
  ordinal: number;
}

export interface Estimate {
  wait_ns: number;
  load_time_ns: number;
  move_time_ns?: number;
  run_time_ns: number;
  off_device_ns?: number;
  missing_bytes: number;
  cost?: number;
}

export interface Outcome {
  wait_ns: number;
  load_time_ns: number;
  /** Absent if it was not measured. */
  move_time_ns?: number;
  run_time_ns: number;
  off_device_ns: number;
}

export interface Placement {
  request_id: string;
  invocation: string;
  node: number | null;
  device: DeviceId | null;
  rejection: string | null;
  why: {
    estimate: Estimate;
    alternatives: { device: DeviceId; estimate: Estimate }[];
    queued_ns: number;
  };
  outcome: Outcome | null;
  ratio: Record<'total' | 'wait' | 'load' | 'move' | 'run', number | null> | null;
}

export const EVENT_KINDS = [
  'deployed',
  'rolled-back',
  'canary-started',
  'canary-promoted',
  'canary-rolled-back',
  'alias-changed',
  'removed',
  'fault',
  'evicted',
  'quarantined',
  'released',
  'device-lost',
  'device-recovered',
  'node-joined',
  'node-left',
  'elected',
] as const;

export type EventKind = (typeof EVENT_KINDS)[number];

/** Not `Event`, which is the browser's. */
export interface NodeEvent {
  number: number;
  at_ms: number;
  first_at_ms: number;
  count: number;
  node?: number;
  tenant?: string;
  kind: EventKind;
  resource: 'function' | 'model' | 'kernel-graph' | 'workflow' | 'trigger' | 'device' | 'node';
  name: string;
  text: string;
}

export interface EventPage {
  events: NodeEvent[];
  unreachable?: number[];
}

export interface DeviceUsage {
  device: string;
  kind: string;
  runs: number;
  device_time_us: number;
  loads: number;
  load_time_us: number;
  byte_seconds: number;
}

export interface Usage {
  tenant: string;
  since_ms: number;
  total: DeviceUsage[];
  rows: (DeviceUsage & { function?: string; model?: string; version?: number })[];
}

export type CallKind = 'function' | 'model' | 'workflow';

/** A call that has ended on the node. */
export interface RecentCall {
  request_id: string;
  kind: CallKind;
  name: string;
  version: number;
  started_at_ms: number;
  duration_ns: number;
  status?: number;
  error?: string;
}

export interface RecentCallPage {
  calls: RecentCall[];
}

/** A phase, a step of a workflow, or a sent request. */
export interface CallSpan {
  name: string;
  /** Index of the enclosing span. */
  parent?: number;
  start_ns: number;
  duration_ns: number;
  target?: string;
  error?: string;
}

export interface CallTimeline extends RecentCall {
  spans: CallSpan[];
  spans_dropped: number;
}

export interface QuotaUsage {
  setting: string;
  scope: 'node' | 'cluster';
  /** Absent if the node does not count the use. */
  used?: number;
  /** Absent if there is no limit. */
  max?: number;
}

export interface TenantUsage {
  tenant: string;
  quotas: QuotaUsage[];
}

export interface TenantPage {
  tenants: TenantUsage[];
}
