// The canary of a function or model beside its active version.

import { ApiError } from '../api';
import { ms, number, time } from '../format';
import { useJson } from '../hooks';
import type { Canary, CanaryReport } from '../types';
import { Card, ErrorBox, Facts, Table } from './ui';

export function CanaryCard({ path, canary }: { path: string; canary: Canary }) {
  const { value, error } = useJson<CanaryReport>(`${path}/canary`, 2000);
  // The canary has ended, which the next answer about the function tells.
  const hasEnded = error instanceof ApiError && error.status === 404;
  const missing = value?.unreachable ?? [];
  const rows = value && [
    { version: value.active, share: 100 - value.percent, ...value.active_calls },
    { version: value.version, share: value.percent, ...value.canary_calls },
  ];
  return (
    <Card
      title="Canary"
      note={`Version ${canary.version} gets ${canary.percent} % of the calls. The node rolls it back if a larger share of its calls fails or is slow.`}
    >
      <ErrorBox error={hasEnded ? undefined : error} />
      <Facts
        facts={[
          ['Started', time(canary.started_at_ms)],
          ['Promotion', canary.promote_after_ms === undefined ? 'by a request' : `after ${ms(canary.promote_after_ms)}`],
          ['Promotion waits for', value?.waits_for],
          ['Nodes that do not answer', missing.join(', ')],
        ]}
      />
      {rows !== undefined && (
        <Table label="Calls since the start of the canary" head={['Version', 'Share', 'Calls', 'Failed', 'Run time (p95)']}>
          {rows.map((row) => (
            <tr key={row.version}>
              <td class="number">{row.version}</td>
              <td class="number">{row.share} %</td>
              <td class="number">{number(row.calls)}</td>
              <td class="number">{number(row.failed)}</td>
              <td class="number">{row.p95_ms === undefined ? '–' : ms(row.p95_ms)}</td>
            </tr>
          ))}
        </Table>
      )}
    </Card>
  );
}
