import { postJson } from '../api';
import { bytes, number, time } from '../format';
import { useJson, useLoad } from '../hooks';
import { CallForm } from '../parts/call';
import { CanaryCard } from '../parts/canary';
import { ColdStarts } from '../parts/cold-starts';
import { Distribution } from '../parts/distribution';
import { InferenceForm } from '../parts/inference';
import { Logs } from '../parts/logs';
import { scrape } from '../parts/rates';
import { TriggersOf } from '../parts/triggers';
import { Badge, Card, ConfirmedButton, ErrorBox, Facts, Loading, Page, Table } from '../parts/ui';
import { sumBy } from '../prometheus';
import { link } from '../router';
import type { Canary, DeployedFunction, FunctionManifest, FunctionVersion } from '../types';
import { KINDS } from './functions';

export function FunctionPage({ name }: { name: string }) {
  const path = `/v1/functions/${encodeURIComponent(name)}`;
  const { value, error, reload } = useJson<DeployedFunction>(path, 5000);
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
            ['Kind', KINDS[value.kind]],
            ['Size', bytes(value.component_bytes)],
            ['Deployed', time(value.deployed_at_ms)],
            ['Digest', <span class="mono">{value.digest.slice(0, 16)}…</span>],
            ['Environment variables', value.env_names.join(', ')],
          ]}
        />
      </Card>
      {value.canary !== undefined && <CanaryCard path={path} canary={value.canary} />}
      <Card title="Call">
        {value.kind === 'tensor' ? <InferenceForm name={name} inputs={[]} /> : <CallForm name={name} />}
      </Card>
      <Latency name={name} isTensor={value.kind === 'tensor'} />
      <Card title="Log">
        <Logs path={path} />
      </Card>
      <Versions path={path} active={value.version} canary={value.canary} onChange={reload} />
      <TriggersOf name={name} />
      <Grants manifest={value.manifest} />
    </Page>
  );
}

function Latency({ name, isTensor }: { name: string; isTensor: boolean }) {
  const { value, error } = useLoad(scrape, `latency ${name}`, 5000);
  const isOwn = (labels: Record<string, string>): boolean => labels['function'] === name;
  const metrics = value?.metrics;
  return (
    <Card title="Latency and cold starts on this node" note="Since the node’s start.">
      <ErrorBox error={error} />
      {metrics !== undefined && (
        <>
          <Distribution
            metrics={metrics}
            name="weir_invocation_seconds"
            filter={isOwn}
            emptyText={isTensor ? 'No call through /fn yet.' : 'No call yet.'}
          />
          <Facts
            facts={[
              ['Outcomes', counts(sumBy(metrics, 'weir_invocations_total', 'code', isOwn))],
              ['Statuses', counts(sumBy(metrics, 'weir_invocations_total', 'status', isOwn))],
              ['Instances', counts(sumBy(metrics, 'weir_function_instances_total', 'instance', isOwn))],
            ]}
          />
          <ColdStarts metrics={metrics} name="weir_function_cold_starts_total" filter={isOwn} noun="call" />
        </>
      )}
    </Card>
  );
}

function counts(pairs: [string, number][]): string {
  return pairs.filter(([, count]) => count > 0).map(([name, count]) => `${name}: ${number(count)}`).join(', ');
}

function Versions(props: { path: string; active: number; canary?: Canary | undefined; onChange: () => void }) {
  const { value, error, reload } = useJson<FunctionVersion[]>(`${props.path}/versions`, 5000);
  const change = async (action: string, body: object): Promise<void> => {
    await postJson(`${props.path}/${action}`, body);
    reload();
    props.onChange();
  };
  return (
    <Card title="Versions">
      <ErrorBox error={error} />
      <Table label="Versions" head={['Version', 'Deployed', 'Size', 'Action']}>
        {[...(value ?? [])].reverse().map(({ version, deployed_at_ms, component_bytes }) => (
          <tr key={version}>
            <td class="number">{version}</td>
            <td class="number">{time(deployed_at_ms)}</td>
            <td class="number">{bytes(component_bytes)}</td>
            <td>
              <div class="actions">
                {version === props.active && <Badge kind="good">active</Badge>}
                {version === props.active && props.canary !== undefined && (
                  <ConfirmedButton
                    label={`End canary ${props.canary.version}`}
                    question={`Send all calls to version ${version}?`}
                    action={() => change('rollback', {})}
                  />
                )}
                {version === props.canary?.version && (
                  <>
                    <Badge kind="busy">{`canary, ${props.canary.percent} %`}</Badge>
                    <ConfirmedButton
                      label={`Promote version ${version}`}
                      question={`Send all calls to version ${version}?`}
                      action={() => change('promote', {})}
                    />
                  </>
                )}
                {version !== props.active && version !== props.canary?.version && (
                  <ConfirmedButton
                    label={`Activate version ${version}`}
                    question={`Send all calls to version ${version}?`}
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

function Grants({ manifest }: { manifest: FunctionManifest }) {
  const models = manifest.models ?? [];
  const secrets = Object.entries(manifest.secrets ?? {});
  const limits = Object.entries(manifest.limits ?? {}).sort(([one], [other]) => one.localeCompare(other));
  return (
    <Card title="Grants and limits">
      <Facts
        facts={[
          [
            'Models',
            models.length === 0
              ? 'none'
              : models.map((model) => (
                  <a key={model} class="chip mono" href={link('models', model.split(':')[0] ?? model)}>
                    {model}
                  </a>
                )),
          ],
          [
            'Secrets',
            secrets.length === 0
              ? 'none'
              : secrets.map(([variable, secret]) => (
                  <a key={variable} class="chip mono" href={link('secrets')}>
                    {variable === secret ? secret : `${variable} = ${secret}`}
                  </a>
                )),
          ],
          ['Outbound hosts', (manifest.outbound_hosts ?? []).join(', ') || 'none'],
          ['Objects to read', (manifest.objects?.read ?? []).join(', ') || 'none'],
          ['Objects to write', (manifest.objects?.write ?? []).join(', ') || 'none'],
          ['Idempotent', manifest.idempotent === undefined ? undefined : String(manifest.idempotent)],
          ['Latency objective', manifest.slo_ms === undefined ? undefined : `${manifest.slo_ms} ms`],
          ['Cost objective', manifest.cost_slo],
          ['Responses cached for', manifest.cache_ttl_ms === undefined ? undefined : `${manifest.cache_ttl_ms} ms`],
          ['Instance reuse', manifest.reuse === undefined ? undefined : JSON.stringify(manifest.reuse)],
          ...limits.map(([name, value]): [string, string] => [
            `limits.${name}`,
            name.endsWith('_bytes') ? bytes(value) : value.toLocaleString('en'),
          ]),
        ]}
      />
    </Card>
  );
}
