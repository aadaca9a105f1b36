import { bytes, ns, number, time } from '../format';
import { useJson } from '../hooks';
import { CallOutcome, SpanTable, sectionOf } from '../parts/spans';
import { Badge, Card, Empty, ErrorBox, Facts, Loading, Page, Table } from '../parts/ui';
import { PHASES, type Span, compare, spans, totalNs } from '../timeline';
import { ApiError } from '../api';
import { link } from '../router';
import type { CallTimeline, DeviceId, Estimate, Placement } from '../types';

const device = ({ node, ordinal }: DeviceId): string => `node ${node}, device ${ordinal}`;

export function RequestPage({ id }: { id: string }) {
  return (
    <Page title="Call">
      <p class="note mono">{id}</p>
      <CallDetails id={id} />
    </Page>
  );
}

const isMissing = (error: Error | undefined): boolean => error instanceof ApiError && error.status === 404;

/** The timeline and the placement of a call, as far as this node has them. */
export function CallDetails({ id }: { id: string }) {
  const call = useJson<CallTimeline>(`/v1/calls/${encodeURIComponent(id)}`, 2000);
  const placed = useJson<Placement>(`/v1/placements/${encodeURIComponent(id)}`, 2000);
  const isKnown = call.value !== undefined || placed.value !== undefined;
  if (!isKnown && isMissing(call.error) && isMissing(placed.error)) {
    return (
      <Empty command={`weir why ${id}`}>
        Only the node that received a call knows it, after the end of the call, and only until newer calls displace it. On that node:
      </Empty>
    );
  }
  return (
    <>
      {!isMissing(call.error) && <ErrorBox error={call.error} />}
      {!isMissing(placed.error) && <ErrorBox error={placed.error} />}
      {!isKnown && <Loading />}
      {call.value !== undefined && <CallCard call={call.value} />}
      {placed.value !== undefined && <PlacementView placement={placed.value} />}
      {call.value !== undefined && isMissing(placed.error) && (
        <Card title="Placement">
          <p class="note">Calls without models are not placed by the scheduler, so this call has no placement.</p>
        </Card>
      )}
    </>
  );
}

function CallCard({ call }: { call: CallTimeline }) {
  return (
    <Card title="Phases">
      <Facts
        facts={[
          ['Of', <a href={link(sectionOf(call.kind), call.name)}>{call.name}</a>],
          ['Kind', call.kind],
          ['Version', call.version],
          ['Outcome', <CallOutcome call={call} />],
          ['Started', time(call.started_at_ms)],
          ['Time', ns(call.duration_ns)],
        ]}
      />
      <SpanTable timeline={call} />
    </Card>
  );
}

function PlacementView({ placement }: { placement: Placement }) {
  const { estimate, alternatives, queued_ns } = placement.why;
  return (
    <>
      <Card title="Placement">
        <Facts
          facts={[
            ['Ran on', placement.device === null ? undefined : device(placement.device)],
            ['Rejected', placement.rejection === null ? undefined : <Badge kind="bad">{placement.rejection}</Badge>],
            ['In the scheduler’s queue', ns(queued_ns)],
            ['Bytes of missing models', bytes(estimate.missing_bytes)],
            ['Estimated cost', estimate.cost],
          ]}
        />
      </Card>
      <Card title="Estimated against actual">
        <Timeline placement={placement} />
        <Table label="Phases" head={['Phase', 'Estimated', 'Actual', 'Estimated / actual']}>
          {compare(estimate, placement.outcome).map((line) => (
            <tr key={line.phase}>
              <th scope="row">{line.phase}</th>
              <td class="number">{ns(line.estimatedNs)}</td>
              <td class="number">{line.actualNs === undefined ? '–' : ns(line.actualNs)}</td>
              <td class="number">{line.ratio === undefined ? '–' : number(line.ratio)}</td>
            </tr>
          ))}
        </Table>
        {placement.outcome === null && <p class="note">The call has not ended, so there are no actual times.</p>}
      </Card>
      <Alternatives chosen={placement} alternatives={alternatives} />
    </>
  );
}

function Timeline({ placement }: { placement: Placement }) {
  const { estimate } = placement.why;
  const { outcome } = placement;
  const whole = Math.max(1, totalNs(estimate), outcome === null ? 0 : totalNs(outcome));
  return (
    <div class="timeline">
      <Row label="Estimated" parts={spans(estimate)} whole={whole} />
      {outcome !== null && <Row label="Actual" parts={spans(outcome)} whole={whole} />}
      <p class="keys" aria-hidden="true">
        {PHASES.map((phase) => (
          <span key={phase} class={`key phase-${phase.replace(' ', '-')}`}>
            {phase}
          </span>
        ))}
      </p>
    </div>
  );
}

function Row({ label, parts, whole }: { label: string; parts: Span[]; whole: number }) {
  const shown = parts.filter(({ durationNs }) => durationNs > 0);
  const spoken = shown.map(({ phase, durationNs }) => `${phase} ${ns(durationNs)}`).join(', ');
  return (
    <div class="row">
      <span>{label}</span>
      <svg viewBox="0 0 1000 24" preserveAspectRatio="none" role="img" aria-label={`${label}: ${spoken || 'no time'}`}>
        {shown.map(({ phase, fromNs, durationNs }) => (
          <rect
            key={phase}
            class={`phase-${phase.replace(' ', '-')}`}
            x={(1000 * fromNs) / whole}
            width={Math.max(1, (1000 * durationNs) / whole)}
            height={24}
          />
        ))}
      </svg>
    </div>
  );
}

function Alternatives(props: { chosen: Placement; alternatives: { device: DeviceId; estimate: Estimate }[] }) {
  if (props.alternatives.length === 0) {
    return (
      <Card title="Alternatives">
        <p class="note">No other device was considered.</p>
      </Card>
    );
  }
  const rows = props.chosen.device === null ? [] : [{ device: props.chosen.device, estimate: props.chosen.why.estimate }];
  return (
    <Card title="Alternatives" note="Estimates of the devices that were considered, the chosen one first.">
      <Table label="Alternatives" head={['Device', 'Wait', 'Load', 'Move', 'Run', 'Total']}>
        {[...rows, ...props.alternatives].map(({ device: id, estimate }) => (
          <tr key={device(id)}>
            <td>{device(id)}</td>
            <td class="number">{ns(estimate.wait_ns)}</td>
            <td class="number">{ns(estimate.load_time_ns)}</td>
            <td class="number">{ns(estimate.move_time_ns ?? 0)}</td>
            <td class="number">{ns(estimate.run_time_ns)}</td>
            <td class="number">{ns(totalNs(estimate))}</td>
          </tr>
        ))}
      </Table>
    </Card>
  );
}
