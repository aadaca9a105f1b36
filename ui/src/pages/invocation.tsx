import { bytes, ms, time } from '../format';
import { useJson } from '../hooks';
import { AnswerView, useCall } from '../parts/answer';
import { Card, ErrorBox, Facts, Loading, Page, RequestLink, Table } from '../parts/ui';
import { link } from '../router';
import type { Invocation } from '../types';
import { Actions, StatusBadge } from './invocations';
import { CallDetails } from './request';

const optionalTime = (at: number | undefined): string | undefined => (at === undefined ? undefined : time(at));

export function InvocationPage({ id }: { id: string }) {
  const path = `/v1/invocations/${encodeURIComponent(id)}`;
  const { value, error, reload } = useJson<Invocation>(path, 2000);
  const result = useCall();
  if (value === undefined) {
    return <Page title="Invocation">{error === undefined ? <Loading /> : <ErrorBox error={error} />}</Page>;
  }
  const hasEnded = value.ended_at_ms !== undefined;
  return (
    <Page title={`Invocation ${id.slice(0, 12)}…`} actions={<Actions invocation={value} reload={reload} />}>
      <ErrorBox error={error} />
      <Card title="State">
        <Facts
          facts={[
            ['Status', <StatusBadge status={value.status} />],
            ['Of', <a href={link(value.kind === 'function' ? 'functions' : 'models', value.name)}>{value.name}</a>],
            ['Version', value.version],
            ['Id', <span class="mono">{value.id}</span>],
            ['Request', <RequestLink id={value.request_id} />],
            ['Request body', bytes(value.request_bytes)],
            ['Attempts', value.attempts],
            ['Accepted', time(value.accepted_at_ms)],
            ['Latest start', optionalTime(value.started_at_ms)],
            ['Next attempt', optionalTime(value.next_attempt_at_ms)],
            ['Ended', optionalTime(value.ended_at_ms)],
            ['From acceptance to end', value.ended_at_ms === undefined ? undefined : ms(value.ended_at_ms - value.accepted_at_ms)],
            ['Kept until', optionalTime(value.expires_at_ms)],
            ['Response', value.response && `${value.response.status}, ${bytes(value.response.bytes)}`],
            ['Callback', value.callback && `${value.callback.status} after ${value.callback.attempts} attempts`],
            ['Callback error', value.callback?.error],
          ]}
        />
        {value.error !== undefined && (
          <div class="error">
            {value.error.text} <span class="code">{value.error.code}</span>
          </div>
        )}
      </Card>
      {value.started_at_ms !== undefined && <Phases invocation={value} />}
      {hasEnded && (
        <Card title="Result">
          <button type="button" disabled={result.isRunning} onClick={() => void result.call(`${path}/result`, {})}>
            Show the result
          </button>
          <AnswerView answer={result.answer} error={result.error} />
        </Card>
      )}
    </Page>
  );
}

/** The times from the acceptance to the end, and the phases of the latest attempt. */
function Phases({ invocation }: { invocation: Invocation }) {
  const { accepted_at_ms: accepted, started_at_ms: started, ended_at_ms: ended, attempts } = invocation;
  if (started === undefined) return null;
  const end = ended ?? Math.max(started, Date.now());
  const rows: [string, number][] = [
    [attempts > 1 ? 'Queue, and earlier attempts' : 'Queue', Math.max(0, started - accepted)],
    [attempts > 1 ? 'Latest attempt' : 'Attempt', Math.max(0, end - started)],
  ];
  const whole = Math.max(1, end - accepted);
  return (
    <>
      <Card title="From acceptance to end">
        <Table label="Times of the invocation" head={['Phase', 'Time', 'Share']}>
          {rows.map(([name, duration], at) => (
            <tr key={name}>
              <th scope="row">{name}</th>
              <td class="number">{ms(duration)}</td>
              <td class="bar">
                <svg viewBox="0 0 1000 10" preserveAspectRatio="none" aria-hidden="true">
                  <rect
                    class={at === 0 ? 'span-wait' : 'span-run'}
                    x={at === 0 ? 0 : Math.min(996, (1000 * (started - accepted)) / whole)}
                    width={Math.max(4, (1000 * duration) / whole)}
                    height="10"
                  />
                </svg>
              </td>
            </tr>
          ))}
        </Table>
      </Card>
      <CallDetails id={invocation.request_id} />
    </>
  );
}
