import { bytes, ms, number, time } from '../format';
import { useJson } from '../hooks';
import { LatestTick, TargetLink, TriggerActions, useTargets } from '../parts/triggers';
import { Badge, Card, Empty, ErrorBox, Facts, Loading, Page, Table } from '../parts/ui';
import { link } from '../router';
import { schedule, timeIn } from '../triggers';
import type { InvocationPage, Trigger, TriggerSpec } from '../types';
import { InvocationList } from './invocations';

/** Invocations of the target that the page shows. */
const INVOCATIONS = 10;

export function TriggerPage({ name }: { name: string }) {
  const { value, error, reload } = useJson<Trigger>(`/v1/triggers/${encodeURIComponent(name)}`, 2000);
  const targets = useTargets();
  if (value === undefined) {
    return <Page title={name}>{error === undefined ? <Loading /> : <ErrorBox error={error} />}</Page>;
  }
  const { spec } = value;
  const toList = (): void => {
    location.hash = link('triggers');
  };
  return (
    <Page title={name} actions={<TriggerActions trigger={value} onChange={reload} onDelete={toList} />}>
      <ErrorBox error={error} />
      <Card title="Settings">
        <Facts
          facts={[
            ['Source', schedule(spec.source)],
            ['State', spec.enabled ? <Badge kind="good">active</Badge> : <Badge kind="plain">paused</Badge>],
            ['Target', <TargetLink target={spec.target} targets={targets} />],
            ['Missed ticks', spec.missed === 'skip' ? 'skip' : `run the latest once, up to ${ms(spec.missed_age_ms_max)} late`],
            ['Overlapping ticks', spec.overlap === 'allow' ? 'run' : 'skip'],
            ['Created', time(value.created_at_ms)],
            ['Changed', time(value.changed_at_ms)],
          ]}
        />
        {value.error !== undefined && <div class="error">{value.error}</div>}
      </Card>
      <Ticks trigger={value} />
      <RequestCard request={spec.request} isFunction={spec.target.function !== undefined} />
      <Invocations target={spec.target.function ?? spec.target.inference ?? ''} />
    </Page>
  );
}

function Ticks({ trigger }: { trigger: Trigger }) {
  const { ticks, last, next_at_ms: next } = trigger;
  const zone = trigger.spec.source.cron === undefined ? undefined : (trigger.spec.source.timezone ?? 'UTC');
  return (
    <Card title="Ticks">
      <Facts
        facts={[
          ['Latest tick', <LatestTick tick={last} />],
          ['Fired', number(ticks.fired)],
          ['Overlapped', number(ticks.overlapped)],
          ['Missed', number(ticks.missed)],
          ['Failed', number(ticks.failed)],
        ]}
      />
      {next.length > 0 && (
        <Table label="Next ticks" head={['Next ticks, in your time', ...(zone === undefined ? [] : [`in ${zone}`])]}>
          {next.map((at) => (
            <tr key={at}>
              <td class="number">{time(at)}</td>
              {zone !== undefined && <td class="number">{timeIn(zone, at) ?? '–'}</td>}
            </tr>
          ))}
        </Table>
      )}
    </Card>
  );
}

function RequestCard({ request, isFunction }: { request: TriggerSpec['request']; isFunction: boolean }) {
  const headers = Object.entries(request.headers ?? {}).map(([name, value]) => `${name}: ${value}`);
  return (
    <Card title="Request">
      <Facts
        facts={[
          ['Request', isFunction ? <span class="mono">{`${request.method} ${request.path}`}</span> : 'inference'],
          ['Body', request.body_base64 === undefined ? undefined : `${bytes(atob(request.body_base64).length)} of binary data`],
        ]}
      />
      {headers.length > 0 && (
        <pre tabIndex={0} aria-label="Headers of the request">
          {headers.join('\n')}
        </pre>
      )}
      {request.body !== undefined && request.body !== '' && (
        <pre tabIndex={0} aria-label="Body of the request">
          {request.body}
        </pre>
      )}
    </Card>
  );
}

function Invocations({ target }: { target: string }) {
  const query = new URLSearchParams({ name: target, limit: String(INVOCATIONS) });
  const { value, error, reload } = useJson<InvocationPage>(`/v1/invocations?${query}`, 2000);
  return (
    <Card
      title={`Asynchronous invocations of ${target}`}
      note="The newest, including those that other triggers and clients started."
    >
      <ErrorBox error={error} />
      {value === undefined ? (
        error === undefined && <Loading />
      ) : value.invocations.length === 0 ? (
        <Empty>No invocation is known.</Empty>
      ) : (
        <InvocationList invocations={value.invocations} reload={reload} />
      )}
    </Card>
  );
}
