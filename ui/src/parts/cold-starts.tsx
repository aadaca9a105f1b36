// Cold starts by cause, as a table with bars.

import { causeText, coldStarts, sourceText } from '../cold-starts';
import { number } from '../format';
import type { Filter, Metrics } from '../prometheus';
import { Table } from './ui';

export function ColdStarts(props: { metrics: Metrics; name: string; filter: Filter; noun: string }) {
  const starts = coldStarts(props.metrics, props.name, props.filter);
  const most = Math.max(...starts.map(({ count }) => count));
  return (
    <>
      <h3>Cold starts</h3>
      {starts.length === 0 ? (
        <p class="note">No {props.noun} had to wait for a part since the node’s start.</p>
      ) : (
        <Table label="Cold starts by cause" head={['Cause', 'From', 'Count', 'Share']}>
          {starts.map(({ cause, from, count }) => (
            <tr key={`${cause} ${from}`}>
              <td>{causeText(cause)}</td>
              <td>{sourceText(from)}</td>
              <td class="number">{number(count)}</td>
              <td class="bar">
                <svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
                  <rect width={(100 * count) / most} height="10" rx="1" />
                </svg>
              </td>
            </tr>
          ))}
        </Table>
      )}
    </>
  );
}
