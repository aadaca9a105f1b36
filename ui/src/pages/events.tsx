import { useState } from 'preact/hooks';
import { number, time } from '../format';
import { useJson } from '../hooks';
import { Choice, NameField } from '../parts/filters';
import { Badge, Card, Empty, ErrorBox, Loading, Page, Table } from '../parts/ui';
import { link } from '../router';
import { EVENT_KINDS, type EventKind, type EventPage as Events, type NodeEvent } from '../types';

const LIMIT = 200;

export function EventsPage() {
  const [kind, setKind] = useState('');
  const [name, setName] = useState('');
  const query = new URLSearchParams({ limit: String(LIMIT) });
  if (kind !== '') query.set('kind', kind);
  if (name !== '') query.set('name', name);
  const { value, error } = useJson<Events>(`/v1/events?${query}`, 2000);
  const unreachable = value?.unreachable ?? [];
  return (
    <Page title="Events">
      <Card title="Latest events" note="Of all nodes, newest first. Each node keeps its latest events in memory.">
        <div class="fields">
          <Choice label="Kind" value={kind} options={EVENT_KINDS} onChange={setKind} />
          <NameField label="Name" value={name} onChange={setName} />
        </div>
        <ErrorBox error={error} />
        {unreachable.length > 0 && (
          <p class="note" role="status">
            Events of nodes that do not answer are missing: {unreachable.join(', ')}
          </p>
        )}
        {value === undefined && error === undefined && <Loading />}
        {value?.events.length === 0 && <Empty>No event matches.</Empty>}
        {value !== undefined && value.events.length > 0 && <List events={value.events.toReversed()} />}
      </Card>
    </Page>
  );
}

const KINDS: Record<EventKind, 'good' | 'bad' | 'busy' | 'plain'> = {
  deployed: 'good',
  'rolled-back': 'busy',
  'canary-started': 'busy',
  'canary-promoted': 'good',
  'canary-rolled-back': 'bad',
  'alias-changed': 'plain',
  removed: 'plain',
  fault: 'bad',
  evicted: 'plain',
  quarantined: 'bad',
  released: 'good',
  'device-lost': 'bad',
  'device-recovered': 'good',
  'node-joined': 'good',
  'node-left': 'bad',
  elected: 'plain',
};

function List({ events }: { events: NodeEvent[] }) {
  return (
    <Table label="Events" head={['Time', 'Kind', 'Count', 'Node', 'Resource', 'Description']}>
      {events.map((one) => (
        <tr key={`${one.node ?? 0}-${one.number}`}>
          <td class="number">{time(one.at_ms)}</td>
          <td>
            <Badge kind={KINDS[one.kind]}>{one.kind}</Badge>
          </td>
          <td class="number">{number(one.count)}</td>
          <td class="number">{one.node ?? '–'}</td>
          <td>
            <Resource event={one} />
          </td>
          <td>{one.text}</td>
        </tr>
      ))}
    </Table>
  );
}

function Resource({ event }: { event: NodeEvent }) {
  const label = `${event.resource} ${event.name}`;
  // A removed resource has no page any more.
  if (event.kind === 'removed' || event.resource === 'device' || event.resource === 'node') return <>{label}</>;
  const name = event.name.split(':')[0] ?? event.name;
  return <a href={link(`${event.resource}s`, name)}>{label}</a>;
}
