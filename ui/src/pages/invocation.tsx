import { bytes, ms, time } from '../format';
import { useJson } from '../hooks';
import { AnswerView, useCall } from '../parts/answer';
import { Card, ErrorBox, Facts, Loading, Page, RequestLink } from '../parts/ui';
import { link } from '../router';
import type { Invocation } from '../types';
import { Actions, StatusBadge } from './invocations';

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
