import { useState } from 'preact/hooks';
import { postJson } from '../api';
import { ns, number, time } from '../format';
import { useJson } from '../hooks';
import { Graph } from '../parts/graph';
import { InferenceForm, Signature } from '../parts/inference';
import { isFailed } from '../parts/spans';
import { Badge, Card, ConfirmedButton, ErrorBox, Facts, Loading, Page, Table } from '../parts/ui';
import { link } from '../router';
import { stepTimes } from '../spans';
import type { CallTimeline, RecentCallPage, Workflow, WorkflowVersion } from '../types';

export function WorkflowPage({ name }: { name: string }) {
  const path = `/v1/workflows/${encodeURIComponent(name)}`;
  const { value, error, reload } = useJson<Workflow>(path, 5000);
  if (value === undefined) {
    return <Page title={name}>{error === undefined ? <Loading /> : <ErrorBox error={error} />}</Page>;
  }
  return (
    <Page title={name}>
      <ErrorBox error={error} />
      <GraphAndRuns workflow={value} />
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

/** Runs that can be chosen. */
const RUNS = 20;

function GraphAndRuns({ workflow }: { workflow: WorkflowVersion }) {
  const query = new URLSearchParams({ kind: 'workflow', name: workflow.name, limit: String(RUNS) });
  const runs = useJson<RecentCallPage>(`/v1/calls?${query}`, 2000);
  const [chosen, setChosen] = useState('');
  const calls = runs.value?.calls ?? [];
  return (
    <Card title="Graph">
      {workflow.description !== '' && <p>{workflow.description}</p>}
      {workflow.reason !== undefined && <div class="error">Not ready: {workflow.reason}</div>}
      <ErrorBox error={runs.error} />
      {calls.length > 0 ? (
        <div class="fields">
          <label>
            Times of a recent run
            <select value={chosen} onChange={(event) => setChosen(event.currentTarget.value)}>
              <option value="">none</option>
              {chosen !== '' && calls.every((call) => call.request_id !== chosen) && <option value={chosen}>{chosen}</option>}
              {calls.map((call) => (
                <option key={call.request_id} value={call.request_id}>
                  {`${time(call.started_at_ms)}, version ${call.version}, ${ns(call.duration_ns)}${isFailed(call) ? ', failed' : ''}`}
                </option>
              ))}
            </select>
          </label>
        </div>
      ) : (
        <p class="note">Once the workflow has run on this node, the times of its steps are shown here.</p>
      )}
      {chosen === '' ? (
        <>
          <Graph workflow={workflow} />
          <Steps workflow={workflow} />
        </>
      ) : (
        <Run key={chosen} workflow={workflow} id={chosen} />
      )}
    </Card>
  );
}

/** The graph and the steps with their times in one run. */
function Run({ workflow, id }: { workflow: WorkflowVersion; id: string }) {
  const { value, error } = useJson<CallTimeline>(`/v1/calls/${encodeURIComponent(id)}`);
  if (value === undefined) {
    return (
      <>
        <ErrorBox error={error} />
        <Graph workflow={workflow} />
        <Steps workflow={workflow} />
      </>
    );
  }
  const times = stepTimes(value);
  const total = Math.max(1, value.duration_ns);
  return (
    <>
      {value.version !== workflow.version && <p class="note">This run used version {value.version} of the workflow.</p>}
      <Graph workflow={workflow} times={times} />
      <Table label="Steps of the run" head={['Step', 'Action', 'Start', 'Time', 'Part of the run', 'Within the run']}>
        {workflow.steps.map(({ name, action }) => {
          const step = times.get(name);
          return (
            <tr key={name}>
              <th scope="row" class="mono">
                {name}
              </th>
              <td class="mono">{action}</td>
              <td class="number">{step === undefined ? 'did not run' : ns(step.startNs)}</td>
              <td class="number">{step === undefined ? '–' : ns(step.durationNs)}</td>
              <td class="number">
                {step === undefined ? '–' : `${number((100 * step.durationNs) / total)} %`}
                {step?.error !== undefined && <span class="code bad"> {step.error}</span>}
              </td>
              <td class="bar">
                {step !== undefined && (
                  <svg viewBox="0 0 1000 10" preserveAspectRatio="none" aria-hidden="true">
                    <rect
                      class="span-step"
                      x={Math.min(996, (1000 * step.startNs) / total)}
                      width={Math.max(4, (1000 * step.durationNs) / total)}
                      height="10"
                    />
                  </svg>
                )}
              </td>
            </tr>
          );
        })}
      </Table>
      <p>
        The run took {ns(value.duration_ns)}. <a href={link('requests', id)}>Show its phases and placement</a>
      </p>
    </>
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
