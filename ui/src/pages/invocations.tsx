import { useState } from 'preact/hooks';
import { getJson, request } from '../api';
import { time } from '../format';
import { useJson } from '../hooks';
import { Choice, NameField } from '../parts/filters';
import { CallList } from '../parts/spans';
import { Badge, Card, ConfirmedButton, Empty, ErrorBox, Loading, Page, Table } from '../parts/ui';
import { link } from '../router';
import {
  INVOCATION_STATUSES,
  type Invocation,
  type InvocationPage as Invocations,
  type InvocationStatus,
  type RecentCallPage,
} from '../types';

const PAGE_SIZE = 50;
/** Recent calls that the page lists. */
const RECENT = 20;
const CALL_KINDS = ['function', 'model', 'workflow'];
const CALL_OUTCOMES = ['ok', 'failed'];

export function InvocationsPage() {
  const [status, setStatus] = useState('');
  const [name, setName] = useState('');
  const [after, setAfter] = useState<string[]>([]);
  const query = new URLSearchParams({ limit: String(PAGE_SIZE) });
  if (status !== '') query.set('status', status);
  if (name !== '') query.set('name', name);
  const last = after.at(-1);
  if (last !== undefined) query.set('after', last);
  const { value, error, reload } = useJson<Invocations>(`/v1/invocations?${query}`, 2000);
  const isFiltered = status !== '' || name !== '' || last !== undefined;
  const next = value?.next ?? null;
  const fromTheNewest = (set: (value: string) => void) => (value: string) => {
    set(value);
    setAfter([]);
  };
  return (
    <Page title="Invocations">
      <Search />
      <RecentCalls />
      <Card title="Asynchronous invocations">
        <div class="fields">
          <Choice label="Status" value={status} options={INVOCATION_STATUSES} onChange={fromTheNewest(setStatus)} />
          <NameField label="Function or model" value={name} onChange={fromTheNewest(setName)} />
        </div>
        <ErrorBox error={error} />
        {value === undefined && error === undefined && <Loading />}
        {value?.invocations.length === 0 &&
          (isFiltered ? (
            <Empty>No invocation matches.</Empty>
          ) : (
            <Empty command={`curl -X POST -H 'prefer: respond-async' ${location.origin}/fn/NAME/`}>
              No asynchronous invocation is known. A call with this header runs later, with retries:
            </Empty>
          ))}
        {value !== undefined && value.invocations.length > 0 && <InvocationList invocations={value.invocations} reload={reload} />}
        <p>
          {after.length > 0 && (
            <button type="button" onClick={() => setAfter(after.slice(0, -1))}>
              Newer
            </button>
          )}{' '}
          {next !== null && (
            <button type="button" onClick={() => setAfter([...after, next])}>
              Older
            </button>
          )}
        </p>
      </Card>
    </Page>
  );
}

/** Leads to the asynchronous invocation with an id, or else to the call with this request id. */
function Search() {
  const [id, setId] = useState('');
  const find = async (): Promise<void> => {
    const given = id.trim();
    const invocation = link('invocations', given);
    const isInvocation = await getJson<Invocation>(`/v1/invocations/${encodeURIComponent(given)}`).then(
      () => true,
      () => false,
    );
    location.hash = isInvocation ? invocation : link('requests', given);
  };
  return (
    <Card title="Find a call" note="By its weir-request-id, which responses and log lines contain, or by the id of an asynchronous invocation.">
      <form
        class="fields"
        onSubmit={(event) => {
          event.preventDefault();
          void find();
        }}
      >
        <label>
          Id
          <input class="mono" required value={id} onInput={(event) => setId(event.currentTarget.value)} />
        </label>
        <button>Find</button>
      </form>
    </Card>
  );
}

function RecentCalls() {
  const [kind, setKind] = useState('');
  const [outcome, setOutcome] = useState('');
  const [name, setName] = useState('');
  const query = new URLSearchParams({ limit: String(RECENT) });
  if (kind !== '') query.set('kind', kind);
  if (outcome !== '') query.set('outcome', outcome);
  if (name !== '') query.set('name', name);
  const { value, error } = useJson<RecentCallPage>(`/v1/calls?${query}`, 2000);
  const isFiltered = kind !== '' || outcome !== '' || name !== '';
  return (
    <Card title="Recent calls" note="That this node received. It keeps the timelines of some calls per second, and of calls with the header weir-explain.">
      <div class="fields">
        <Choice label="Kind" value={kind} options={CALL_KINDS} onChange={setKind} />
        <Choice label="Outcome" value={outcome} options={CALL_OUTCOMES} onChange={setOutcome} />
        <NameField label="Name" value={name} onChange={setName} />
      </div>
      <ErrorBox error={error} />
      {value === undefined && error === undefined && <Loading />}
      {value?.calls.length === 0 &&
        (isFiltered ? (
          <Empty>No call matches.</Empty>
        ) : (
          <Empty command={`curl -i -H 'weir-explain: 1' ${location.origin}/fn/NAME/`}>No call has ended yet. Call a function:</Empty>
        ))}
      {value !== undefined && value.calls.length > 0 && <CallList calls={value.calls} />}
    </Card>
  );
}

const KINDS: Record<InvocationStatus, 'good' | 'bad' | 'busy' | 'plain'> = {
  queued: 'plain',
  running: 'busy',
  done: 'good',
  dead: 'bad',
  cancelled: 'plain',
};

export function StatusBadge({ status }: { status: InvocationStatus }) {
  return <Badge kind={KINDS[status]}>{status}</Badge>;
}

export function Actions({ invocation, reload }: { invocation: Invocation; reload: () => void }) {
  const act = (action: 'cancel' | 'retry') => async (): Promise<void> => {
    await request(`/v1/invocations/${invocation.id}/${action}`, { method: 'POST' });
    reload();
  };
  switch (invocation.status) {
    case 'queued':
    case 'running':
      return <ConfirmedButton label="Cancel" question="Cancel it?" action={act('cancel')} />;
    case 'dead':
      return <ConfirmedButton label="Retry" question="Start it again?" action={act('retry')} />;
    default:
      return null;
  }
}

export function InvocationList({ invocations, reload }: { invocations: Invocation[]; reload: () => void }) {
  return (
    <Table label="Asynchronous invocations" head={['Id', 'Of', 'Status', 'Attempts', 'Accepted', 'Result', 'Action']}>
      {invocations.map((one) => (
        <tr key={one.id}>
          <td>
            <a class="mono" href={link('invocations', one.id)} title={one.id}>
              {one.id.slice(0, 12)}…
            </a>
          </td>
          <td>
            <a href={link(one.kind === 'function' ? 'functions' : 'models', one.name)}>{one.name}</a>
          </td>
          <td>
            <StatusBadge status={one.status} />
          </td>
          <td class="number">{one.attempts}</td>
          <td class="number">{time(one.accepted_at_ms)}</td>
          <td>{one.response === undefined ? (one.error?.code ?? '–') : one.response.status}</td>
          <td>
            <Actions invocation={one} reload={reload} />
          </td>
        </tr>
      ))}
    </Table>
  );
}
