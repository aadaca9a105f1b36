import { ms, bytes, number, seconds } from '../format';
import { Chart } from '../parts/chart';
import { useRates } from '../parts/rates';
import { MemoryMap } from '../parts/memory-map';
import { Badge, Card, Empty, ErrorBox, Facts, Page, Table } from '../parts/ui';
import { type Metrics, sumBy } from '../prometheus';
import { link } from '../router';
import type { Cluster, Device, Status } from '../types';

export function OverviewPage({ status }: { status: Status }) {
  const isEmpty = status.functions === 0 && status.models === 0;
  return (
    <Page title="Overview">
      <Card title="This node">
        <Facts
          facts={[
            ['State', <Badge kind={status.state === 'ready' ? 'good' : 'bad'}>{status.state}</Badge>],
            ['Version', status.version],
            ['Up for', ms(status.uptime_ms)],
            ['Functions', <a href={link('functions')}>{status.functions}</a>],
            ['Models', <a href={link('models')}>{status.models}</a>],
            ['Running', status.running],
            ['Waiting', status.queued],
            ['Asynchronous', <a href={link('invocations')}>{status.async_queued}</a>],
          ]}
        />
        {status.damaged.map((text) => (
          <div class="error" key={text}>
            {text}
          </div>
        ))}
        {isEmpty && (
          <Empty command="weir new greet && cd greet && weir build && weir deploy">
            Nothing is deployed yet. Create a function, build it and deploy it:
          </Empty>
        )}
      </Card>
      <Rates />
      {status.cluster === undefined ? (
        <Devices title="Devices" devices={status.devices} />
      ) : (
        <ClusterCard cluster={status.cluster} />
      )}
    </Page>
  );
}

function Rates() {
  const { value, error } = useRates();
  if (value === undefined) return <ErrorBox error={error} />;
  const { points } = value;
  const times = points.map(({ atMs }) => atMs / 1000);
  return (
    <Card title="Traffic of this node" note="From /metrics, every 2 seconds while this tab is visible. Quantiles are interpolated within the buckets of the histograms.">
      <ErrorBox error={error} />
      <div class="charts">
        <Chart
          label="Rate per second"
          times={times}
          format={number}
          series={[
            { label: 'function calls', colour: 'first', values: points.map(({ callsPerS }) => callsPerS) },
            { label: 'inferences', colour: 'second', values: points.map(({ inferencesPerS }) => inferencesPerS) },
          ]}
        />
        <Chart
          label="Errors per second"
          times={times}
          format={number}
          series={[{ label: 'errors', colour: 'bad', values: points.map(({ errorsPerS }) => errorsPerS) }]}
        />
        <Chart
          label="Latency of function calls"
          times={times}
          format={seconds}
          series={[
            { label: 'p50', colour: 'first', values: points.map(({ callP50 }) => callP50) },
            { label: 'p99', colour: 'second', values: points.map(({ callP99 }) => callP99) },
          ]}
        />
        <Chart
          label="Latency of inferences"
          times={times}
          format={seconds}
          series={[
            { label: 'p50', colour: 'first', values: points.map(({ inferenceP50 }) => inferenceP50) },
            { label: 'p99', colour: 'second', values: points.map(({ inferenceP99 }) => inferenceP99) },
          ]}
        />
      </div>
      <ColdStarts metrics={value.metrics} />
    </Card>
  );
}

const CAUSES: Record<string, string> = {
  component: 'components loaded',
  compile: 'components compiled',
  model: 'models loaded',
};

function ColdStarts({ metrics }: { metrics: Metrics }) {
  const causes = sumBy(metrics, 'weir_cold_starts_total', 'cause');
  if (causes.length === 0) return null;
  const text = causes.map(([cause, count]) => `${CAUSES[cause] ?? cause} ${number(count)}`).join(', ');
  return <p class="note">Cold starts since the node’s start: {text}.</p>;
}

function ClusterCard({ cluster }: { cluster: Cluster }) {
  return (
    <>
      <Card title="Cluster">
        <Table label="Nodes of the cluster" head={['Node', 'Address', 'Role', 'Version', 'Running', 'Waiting']}>
          {cluster.nodes.map((member) => (
            <tr key={member.node}>
              <td class="mono">{member.node}</td>
              <td class="mono">{member.address}</td>
              <td>
                {member.node === cluster.node && <Badge kind="plain">this node</Badge>}{' '}
                {member.node === cluster.dispatcher && <Badge kind="busy">dispatcher</Badge>}
              </td>
              <td>{member.version}</td>
              <td class="number">{member.running}</td>
              <td class="number">{member.queued}</td>
            </tr>
          ))}
        </Table>
        {cluster.dispatcher === null && <p class="note">The cluster has no dispatcher now.</p>}
      </Card>
      {cluster.nodes.map((member) => (
        <Devices key={member.node} title={`Devices of node ${member.node}`} devices={member.devices} />
      ))}
    </>
  );
}

function Devices({ title, devices }: { title: string; devices: Device[] }) {
  return (
    <Card title={title}>
      {devices.length === 0 && <p class="note">No device runs models.</p>}
      {devices.map((device) => (
        <div class="device" key={device.name}>
          <h3>
            {device.name} <span class="note">{[device.kind, device.backend].filter((text) => text !== device.name).join(', ')}</span>{' '}
            {device.lost !== undefined && <Badge kind="bad">lost</Badge>}
          </h3>
          {device.lost !== undefined && <div class="error">{device.lost}</div>}
          <MemoryMap device={device} />
          <Facts
            facts={[
              ['Memory of models', `${bytes(device.used_bytes)} of ${bytes(device.capacity_bytes)}`],
              ['Runs at once, at most', device.slots],
              ['Runs waiting', device.runs_waiting],
              ['Resident models', device.resident.length === 0 ? 'none' : <Resident names={device.resident} />],
            ]}
          />
        </div>
      ))}
    </Card>
  );
}

function Resident({ names }: { names: string[] }) {
  return (
    <>
      {names.map((name) => (
        <a key={name} class="chip mono" href={link('models', name.split(':')[0] ?? name)}>
          {name}
        </a>
      ))}
    </>
  );
}
