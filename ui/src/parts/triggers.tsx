// Parts of the pages of triggers and of their targets.

import { useState } from 'preact/hooks';
import { getJson, postJson, request } from '../api';
import { time } from '../format';
import { useJson, useLoad } from '../hooks';
import { link } from '../router';
import { isTarget, schedule, targetText } from '../triggers';
import type { DeployedFunction, Invocation, TickOutcome, Trigger, TriggerTarget, TriggerTick } from '../types';
import { Badge, Card, ConfirmedButton, ErrorBox, Table } from './ui';

/** Names of possible targets, by the section with their pages. */
export interface Targets {
  /** HTTP functions. */
  functions: string[];
  tensorFunctions: string[];
  models: string[];
  workflows: string[];
  kernelGraphs: string[];
}

interface Named {
  name: string;
}

export function useTargets(): Targets | undefined {
  const load = async (signal: AbortSignal): Promise<Targets> => {
    const [functions, ...others] = await Promise.all([
      getJson<DeployedFunction[]>('/v1/functions', signal),
      getJson<Named[]>('/v1/models', signal),
      getJson<Named[]>('/v1/workflows', signal),
      getJson<Named[]>('/v1/kernel-graphs', signal),
    ]);
    const [models, workflows, kernelGraphs] = others.map((list) => list.map(({ name }) => name));
    const namesOf = (isTensor: boolean): string[] =>
      functions.filter(({ kind }) => (kind === 'tensor') === isTensor).map(({ name }) => name);
    return {
      functions: namesOf(false),
      tensorFunctions: namesOf(true),
      models: models ?? [],
      workflows: workflows ?? [],
      kernelGraphs: kernelGraphs ?? [],
    };
  };
  return useLoad(load, 'targets', 30_000).value;
}

function sectionOf(target: TriggerTarget, targets: Targets | undefined): string {
  const name = target.inference;
  if (name === undefined) return 'functions';
  if (targets?.workflows.includes(name)) return 'workflows';
  if (targets?.kernelGraphs.includes(name)) return 'kernel-graphs';
  return targets?.tensorFunctions.includes(name) ? 'functions' : 'models';
}

export function TargetLink({ target, targets }: { target: TriggerTarget; targets: Targets | undefined }) {
  const name = target.function ?? target.inference ?? '';
  return <a href={link(sectionOf(target, targets), name)}>{targetText(target)}</a>;
}

const OUTCOMES: Record<TickOutcome, 'good' | 'bad' | 'busy' | 'plain'> = {
  fired: 'good',
  overlapped: 'plain',
  missed: 'busy',
  failed: 'bad',
};

/** The latest tick, with a link to the invocation that it started. */
export function LatestTick({ tick }: { tick: TriggerTick | undefined }) {
  if (tick === undefined) return <>–</>;
  return (
    <>
      <Badge kind={OUTCOMES[tick.outcome]}>{tick.outcome}</Badge>{' '}
      <span class="number">{time(tick.scheduled_at_ms ?? tick.at_ms)}</span>
      {tick.scheduled_at_ms === undefined && ' by hand'}
      {tick.invocation !== undefined && (
        <>
          {' – '}
          <a href={link('invocations', tick.invocation)} title={tick.invocation}>
            invocation
          </a>
        </>
      )}
      {tick.status !== undefined && ` (${tick.status})`}
      {tick.error !== undefined && `: ${tick.error}`}
    </>
  );
}

/** The time of the next tick, or the reason why there is none. */
export function NextTick({ trigger }: { trigger: Trigger }) {
  if (trigger.error !== undefined) return <Badge kind="bad">error</Badge>;
  if (!trigger.spec.enabled) return <Badge kind="plain">paused</Badge>;
  const next = trigger.next_at_ms[0];
  return <span class="number">{next === undefined ? '–' : time(next)}</span>;
}

export function TriggerActions(props: { trigger: Trigger; onChange: () => void; onDelete: () => void }) {
  const { name, spec } = props.trigger;
  const [started, setStarted] = useState<string>();
  const path = `/v1/triggers/${encodeURIComponent(name)}`;
  const act = (action: 'pause' | 'resume') => async (): Promise<void> => {
    await postJson(`${path}/${action}`, {});
    props.onChange();
  };
  const run = async (): Promise<void> => {
    setStarted(undefined);
    const { id } = await postJson<Invocation>(`${path}/run`, {});
    setStarted(id);
    props.onChange();
  };
  const remove = async (): Promise<void> => {
    await request(path, { method: 'DELETE' });
    props.onDelete();
  };
  return (
    <div class="actions">
      <ConfirmedButton label="Run now" name={name} question="Send its request now?" action={run} />
      {spec.enabled ? (
        <ConfirmedButton key="pause" label="Pause" name={name} question="Send no requests until it is resumed?" action={act('pause')} />
      ) : (
        <ConfirmedButton key="resume" label="Resume" name={name} question="Continue its schedule?" action={act('resume')} />
      )}
      <ConfirmedButton label="Delete" name={name} question={`Delete the trigger ${name}?`} action={remove} />
      <span role="status">{started !== undefined && <a href={link('invocations', started)}>Show the invocation</a>}</span>
    </div>
  );
}

/** Triggers of a function, if it has some. */
export function TriggersOf({ name }: { name: string }) {
  const { value, error } = useJson<Trigger[]>('/v1/triggers', 5000);
  const triggers = (value ?? []).filter(({ spec }) => isTarget(spec.target, name));
  if (triggers.length === 0 && error === undefined) return null;
  return (
    <Card title="Triggers">
      <ErrorBox error={error} />
      {triggers.length > 0 && (
        <Table label="Triggers" head={['Name', 'Schedule', 'Next tick', 'Latest tick']}>
          {triggers.map((one) => (
            <tr key={one.name}>
              <td>
                <a href={link('triggers', one.name)}>{one.name}</a>
              </td>
              <td>{schedule(one.spec.source)}</td>
              <td>
                <NextTick trigger={one} />
              </td>
              <td>
                <LatestTick tick={one.last} />
              </td>
            </tr>
          ))}
        </Table>
      )}
    </Card>
  );
}
