import { postJson } from '../api';
import { bytes, ns, number, time } from '../format';
import { useJson, useLoad } from '../hooks';
import { CanaryCard } from '../parts/canary';
import { ColdStarts } from '../parts/cold-starts';
import { Distribution } from '../parts/distribution';
import { InferenceForm, Signature } from '../parts/inference';
import { scrape } from '../parts/rates';
import { Badge, Card, ConfirmedButton, Empty, ErrorBox, Facts, Loading, Page, Table } from '../parts/ui';
import type { Mean, Measured, Model, ModelOnDevice, Profile } from '../types';

export function ModelPage({ collection, name }: { collection: 'models' | 'kernel-graphs'; name: string }) {
  const path = `/v1/${collection}/${encodeURIComponent(name)}`;
  const { value, error, reload } = useJson<Model>(path, 5000);
  if (value === undefined) {
    return <Page title={name}>{error === undefined ? <Loading /> : <ErrorBox error={error} />}</Page>;
  }
  return (
    <Page title={name}>
      <ErrorBox error={error} />
      <Card title="Active version">
        <Facts
          facts={[
            ['Version', value.version],
            ['Pushed', time(value.pushed_at_ms)],
            ['File', bytes(value.model_bytes)],
            ['Weights', bytes(value.weight_bytes)],
            ['Digest', <span class="mono">{value.digest.slice(0, 16)}…</span>],
            ...settings(value.manifest),
          ]}
        />
        <Signature inputs={value.inputs} outputs={value.outputs} />
      </Card>
      {value.canary !== undefined && <CanaryCard path={path} canary={value.canary} />}
      <Card title="Run">
        <InferenceForm name={name} inputs={value.inputs} />
      </Card>
      <Latency name={name} />
      <Card title="Devices of this node">
        {value.devices.map((device) => (
          <OnDevice key={device.device} device={device} />
        ))}
        {value.devices.every(({ profile }) => (profile.measured ?? []).length === 0) && collection === 'models' && (
          <Empty command={`weir models profile ${name}`}>
            To know how fast the model runs with more threads and larger batches, measure it:
          </Empty>
        )}
      </Card>
      <Versions path={path} model={value} onChange={reload} />
    </Page>
  );
}

/** Settings with a value, as `batching.mode`. */
function settings(manifest: Record<string, unknown>, prefix = ''): [string, string][] {
  return Object.entries(manifest).flatMap(([name, value]): [string, string][] => {
    if (value === null || (Array.isArray(value) && value.length === 0)) return [];
    if (typeof value === 'object' && !Array.isArray(value)) {
      return settings(value as Record<string, unknown>, `${prefix}${name}.`);
    }
    return [[`${prefix}${name}`, String(value)]];
  });
}

function Latency({ name }: { name: string }) {
  const { value, error } = useLoad(scrape, `latency ${name}`, 5000);
  const isOwn = (labels: Record<string, string>): boolean => labels['model'] === name;
  return (
    <Card title="Latency and cold starts on this node" note="Of all versions, since the node’s start. Runs by functions count like direct inferences.">
      <ErrorBox error={error} />
      {value !== undefined && (
        <>
          <Distribution metrics={value.metrics} name="weir_inference_seconds" filter={isOwn} emptyText="No inference yet." />
          <ColdStarts metrics={value.metrics} name="weir_model_cold_starts_total" filter={isOwn} noun="inference" />
        </>
      )}
    </Card>
  );
}

function OnDevice({ device }: { device: ModelOnDevice }) {
  return (
    <div class="device">
      <h3>
        {device.device} <span class="note">{device.kind === device.device ? '' : device.kind}</span>{' '}
        {device.resident && <Badge kind="good">resident</Badge>}
      </h3>
      {device.why_not !== undefined ? (
        <p class="note">It cannot run here: {device.why_not}</p>
      ) : (
        <>
          <Facts
            facts={[
              ['Memory', bytes(device.profile.resident_bytes)],
              ['Threads of a run', device.runs?.threads],
              ['Runs at once, at most', device.runs?.at_once_max],
              ['Sessions', device.runs?.sessions],
            ]}
          />
          <Means profile={device.profile} />
          <MeasuredTable measured={device.profile.measured ?? []} />
        </>
      )}
    </div>
  );
}

function Means({ profile }: { profile: Profile }) {
  const rows = [
    ...Object.entries(profile.load_time_ns).map(([from, mean]): [string, Mean] => [`load from ${from}`, mean]),
    ...Object.entries(profile.run_time_ns).map(([size, mean]): [string, Mean] => [`run of ${size}`, mean]),
  ].filter(([, mean]) => mean.count > 0);
  if (rows.length === 0) return <p class="note">Neither loads nor runs are measured yet.</p>;
  return (
    <Table label="Measured times" head={['Measured', 'Mean', 'Samples']}>
      {rows.map(([what, mean]) => (
        <tr key={what}>
          <td>{what}</td>
          <td class="number">{ns(mean.mean)}</td>
          <td class="number">{number(mean.count)}</td>
        </tr>
      ))}
    </Table>
  );
}

function MeasuredTable({ measured }: { measured: Measured[] }) {
  if (measured.length === 0) return null;
  return (
    <Table label="Profile" head={['Threads', 'Batch', 'At once', 'p50', 'p95', 'Items per second', 'Memory']}>
      {measured.map((one) => (
        <tr key={`${one.threads} ${one.batch} ${one.concurrency}`}>
          <td class="number">{one.threads}</td>
          <td class="number">{one.batch}</td>
          <td class="number">{one.concurrency}</td>
          <td class="number">{ns(one.latency_p50_ns)}</td>
          <td class="number">{ns(one.latency_p95_ns)}</td>
          <td class="number">{number(one.throughput_per_s)}</td>
          <td class="number">{bytes(one.memory_bytes)}</td>
        </tr>
      ))}
    </Table>
  );
}

function Versions(props: { path: string; model: Model; onChange: () => void }) {
  const { versions, version: active, canary } = props.model;
  const change = async (action: string, body: object): Promise<void> => {
    await postJson(`${props.path}/${action}`, body);
    props.onChange();
  };
  return (
    <Card title="Versions" note="A rollback pushes an earlier version again, as the newest version.">
      <Table label="Versions" head={['Version', 'Action']}>
        {[...versions].reverse().map((version) => (
          <tr key={version}>
            <td class="number">{version}</td>
            <td>
              <div class="actions">
                {version === active && <Badge kind="good">active</Badge>}
                {version === active && canary !== undefined && (
                  <ConfirmedButton
                    label={`End canary ${canary.version}`}
                    question={`Send all runs to version ${version}?`}
                    action={() => change('rollback', {})}
                  />
                )}
                {version === canary?.version && (
                  <>
                    <Badge kind="busy">{`canary, ${canary.percent} %`}</Badge>
                    <ConfirmedButton
                      label={`Promote version ${version}`}
                      question={`Send all runs to version ${version}?`}
                      action={() => change('promote', {})}
                    />
                  </>
                )}
                {version !== active && version !== canary?.version && (
                  <ConfirmedButton
                    label={`Roll back to version ${version}`}
                    question={`Push version ${version} again, as the newest?`}
                    action={() => change('rollback', { version })}
                  />
                )}
              </div>
            </td>
          </tr>
        ))}
      </Table>
    </Card>
  );
}
