import { bytes, number, time, us } from '../format';
import { useJson } from '../hooks';
import { Card, Empty, ErrorBox, Loading, Page, Table } from '../parts/ui';
import { link } from '../router';
import type { DeviceUsage, Usage } from '../types';

export function UsagePage() {
  const { value, error } = useJson<Usage>('/v1/usage', 5000);
  return (
    <Page title="Usage">
      <ErrorBox error={error} />
      {value === undefined ? error === undefined && <Loading /> : <UsageView usage={value} />}
    </Page>
  );
}

function UsageView({ usage }: { usage: Usage }) {
  if (usage.total.length === 0) {
    return <Empty command="weir models push digits digits.onnx">No device of this node was used yet. Push a model and run it:</Empty>;
  }
  return (
    <>
      <p class="note">
        Device usage of tenant {usage.tenant} on this node since {time(usage.since_ms)}.
      </p>
      <Card title="By device" note="Including functions and models that no longer exist.">
        <Table label="Usage by device" head={['Device', ...COLUMNS]}>
          {usage.total.map((row) => (
            <tr key={row.device}>
              <td>{row.device}</td>
              <Numbers usage={row} />
            </tr>
          ))}
        </Table>
      </Card>
      <Card title="By function and model">
        {usage.rows.length === 0 ? (
          <p class="note">Nothing that is deployed now has used a device.</p>
        ) : (
          <Table label="Usage by function and model" head={['Function', 'Model', 'Version', 'Device', ...COLUMNS]}>
            {usage.rows.map((row) => (
              <tr key={[row.function, row.model, row.version, row.device].join(' ')}>
                <td>{row.function === undefined ? '–' : <a href={link('functions', row.function)}>{row.function}</a>}</td>
                <td>{row.model === undefined ? '–' : <a href={link('models', row.model)}>{row.model}</a>}</td>
                <td class="number">{row.version ?? '–'}</td>
                <td>{row.device}</td>
                <Numbers usage={row} />
              </tr>
            ))}
          </Table>
        )}
      </Card>
    </>
  );
}

const COLUMNS = ['Runs', 'Device time', 'Loads', 'Load time', 'Memory × time'];

function Numbers({ usage }: { usage: DeviceUsage }) {
  return (
    <>
      <td class="number">{number(usage.runs)}</td>
      <td class="number">{us(usage.device_time_us)}</td>
      <td class="number">{number(usage.loads)}</td>
      <td class="number">{us(usage.load_time_us)}</td>
      <td class="number">{bytes(Math.round(usage.byte_seconds))}·s</td>
    </>
  );
}
