import { postJson } from '../api';
import { ns, time } from '../format';
import { useJson } from '../hooks';
import { Graph } from '../parts/graph';
import { InferenceForm, Signature } from '../parts/inference';
import { Badge, Card, ConfirmedButton, ErrorBox, Facts, Loading, Page, Table } from '../parts/ui';
import type { Workflow, WorkflowVersion } from '../types';

export function WorkflowPage({ name }: { name: string }) {
  const path = `/v1/workflows/${encodeURIComponent(name)}`;
  const { value, error, reload } = useJson<Workflow>(path, 5000);
  if (value === undefined) {
    return <Page title={name}>{error === undefined ? <Loading /> : <ErrorBox error={error} />}</Page>;
  }
  return (
    <Page title={name}>
      <ErrorBox error={error} />
      <Card title="Graph">
        {value.description !== '' && <p>{value.description}</p>}
        {value.reason !== undefined && <div class="error">Not ready: {value.reason}</div>}
        <Graph workflow={value} />
        <Steps workflow={value} />
      </Card>
      <Card title="Run">
        <Signature inputs={value.inputs} outputs={value.outputs} />
        <InferenceForm name={name} inputs={value.inputs} />
      </Card>
      <Versions path={path} active={value.version} onChange={reload} />
      <Card title="Document">
        <Facts
          facts={[
            ['Deployed', time(value.deployed_at_ms)],
            ['Latency objective', value.slo_ms === undefined ? undefined : `${value.slo_ms} ms`],
            ['Cost objective', value.cost_slo],
          ]}
        />
        <pre tabIndex={0} aria-label="Document of the workflow">
          {value.document}
        </pre>
      </Card>
    </Page>
  );
}

function Steps({ workflow }: { workflow: WorkflowVersion }) {
  return (
    <Table label="Steps" head={['Step', 'Action', 'Reads', 'When', 'Second copies']}>
      {workflow.steps.map(({ name, action, reads, when, hedge }) => (
        <tr key={name}>
          <td class="mono">{name}</td>
          <td class="mono">{action}</td>
          <td class="mono">{reads.join(', ')}</td>
          <td class="mono">{when ?? 'always'}</td>
          <td>
            {hedge === undefined
              ? '–'
              : `${hedge.started} of ${hedge.runs} runs, ${hedge.won} ended first${hedge.after_ns === null ? '' : `, after ${ns(hedge.after_ns)}`}`}
          </td>
        </tr>
      ))}
    </Table>
  );
}

function Versions(props: { path: string; active: number; onChange: () => void }) {
  const { value, error, reload } = useJson<WorkflowVersion[]>(`${props.path}/versions`, 5000);
  const activate = async (version: number): Promise<void> => {
    await postJson(`${props.path}/rollback`, { version });
    reload();
    props.onChange();
  };
  return (
    <Card title="Versions">
      <ErrorBox error={error} />
      <Table label="Versions" head={['Version', 'Deployed', 'Action']}>
        {[...(value ?? [])].reverse().map(({ version, deployed_at_ms }) => (
          <tr key={version}>
            <td class="number">{version}</td>
            <td class="number">{time(deployed_at_ms)}</td>
            <td>
              {version === props.active ? (
                <Badge kind="good">active</Badge>
              ) : (
                <ConfirmedButton
                  label={`Activate version ${version}`}
                  question={`Send all calls to version ${version}?`}
                  action={() => activate(version)}
                />
              )}
            </td>
          </tr>
        ))}
      </Table>
    </Card>
  );
}
