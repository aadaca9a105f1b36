// The timeline of a call, and lists of recent calls.

import { ns, number, time } from '../format';
import { link } from '../router';
import { type SpanRow, rows } from '../spans';
import type { CallTimeline, RecentCall } from '../types';
import { Badge, Table } from './ui';

export const isFailed = ({ status, error }: RecentCall): boolean => error !== undefined || (status ?? 0) >= 500;

export function CallOutcome({ call }: { call: RecentCall }) {
  const text = call.error ?? (call.status === undefined ? 'ended' : String(call.status));
  return <Badge kind={isFailed(call) ? 'bad' : 'good'}>{text}</Badge>;
}

export const sectionOf = (kind: RecentCall['kind']): string => `${kind}s`;

export function CallList({ calls }: { calls: RecentCall[] }) {
  return (
    <Table label="Recent calls" head={['Started', 'Of', 'Version', 'Outcome', 'Time', 'Request']}>
      {calls.map((call) => (
        <tr key={`${call.request_id} ${call.started_at_ms}`}>
          <td class="number">{time(call.started_at_ms)}</td>
          <td>
            <a href={link(sectionOf(call.kind), call.name)}>{call.name}</a> <span class="note">{call.kind}</span>
          </td>
          <td class="number">{call.version}</td>
          <td>
            <CallOutcome call={call} />
          </td>
          <td class="number">{ns(call.duration_ns)}</td>
          <td>
            <a class="mono" href={link('requests', call.request_id)}>
              {call.request_id}
            </a>
          </td>
        </tr>
      ))}
    </Table>
  );
}

/** The spans of a call, each with a bar at its time. */
export function SpanTable({ timeline }: { timeline: CallTimeline }) {
  const all = rows(timeline);
  const whole = Math.max(1, timeline.duration_ns);
  return (
    <>
      <Table label="Timeline of the call" head={['Phase', 'Start', 'Time', 'Within the call']}>
        <tr>
          <th scope="row">whole call</th>
          <td class="number">0 s</td>
          <td class="number">{ns(timeline.duration_ns)}</td>
          <td class="bar">
            <Bar style="whole" from={0} duration={whole} whole={whole} />
          </td>
        </tr>
        {all.map((row, at) => (
          <tr key={at}>
            <th scope="row">
              <SpanName row={row} />
            </th>
            <td class="number">{ns(row.start_ns)}</td>
            <td class="number">{ns(row.duration_ns)}</td>
            <td class="bar">
              <Bar style={row.style} from={row.start_ns} duration={row.duration_ns} whole={whole} />
            </td>
          </tr>
        ))}
      </Table>
      {timeline.spans_dropped > 0 && <p class="note">{number(timeline.spans_dropped)} further phases were not kept.</p>}
    </>
  );
}

function SpanName({ row }: { row: SpanRow }) {
  return (
    <span class="span-name" style={{ paddingLeft: `${row.depth * 14}px` }}>
      {row.label}
      {row.target !== undefined && <span class="mono dim"> {row.target}</span>}
      {row.error !== undefined && <span class="code bad"> {row.error}</span>}
    </span>
  );
}

function Bar(props: { style: string; from: number; duration: number; whole: number }) {
  const width = Math.max(4, (1000 * props.duration) / props.whole);
  return (
    <svg viewBox="0 0 1000 10" preserveAspectRatio="none" aria-hidden="true">
      <rect class={`span-${props.style}`} x={Math.min(1000 - width, (1000 * props.from) / props.whole)} width={width} height="10" />
    </svg>
  );
}
