import { useJson } from '../hooks';
import { TriggerForm } from '../parts/trigger-form';
import { LatestTick, NextTick, TargetLink, type Targets, TriggerActions, useTargets } from '../parts/triggers';
import { Card, Empty, ErrorBox, Loading, Page, Table } from '../parts/ui';
import { link } from '../router';
import { schedule } from '../triggers';
import type { Trigger } from '../types';

export function TriggersPage() {
  const { value, error, reload } = useJson<Trigger[]>('/v1/triggers', 2000);
  const targets = useTargets();
  return (
    <Page title="Triggers">
      <ErrorBox error={error} />
      {value === undefined ? (
        error === undefined && <Loading />
      ) : (
        <>
          {value.length === 0 ? (
            <Empty command="weir triggers create ping --every 30s --function NAME --method GET">
              No trigger exists. A trigger calls a function, model or workflow on a schedule, for messages or for events. Create one below, or with:
            </Empty>
          ) : (
            <List triggers={value} targets={targets} reload={reload} />
          )}
          <Card title="Create a trigger">
            <TriggerForm existing={value.map(({ name }) => name)} targets={targets} onCreate={reload} />
          </Card>
        </>
      )}
    </Page>
  );
}

function List(props: { triggers: Trigger[]; targets: Targets | undefined; reload: () => void }) {
  return (
    <Table label="Triggers" head={['Name', 'Target', 'Source', 'Next tick', 'Latest tick', 'Missed', 'Overlap', 'Action']}>
      {props.triggers.map((one) => (
        <tr key={one.name}>
          <td>
            <a href={link('triggers', one.name)}>{one.name}</a>
          </td>
          <td>
            <TargetLink target={one.spec.target} targets={props.targets} />
          </td>
          <td>{schedule(one.spec.source)}</td>
          <td>
            <NextTick trigger={one} />
          </td>
          <td>
            <LatestTick tick={one.last} />
          </td>
          <td>{one.spec.missed}</td>
          <td>{one.spec.overlap}</td>
          <td>
            <TriggerActions trigger={one} onChange={props.reload} onDelete={props.reload} />
          </td>
        </tr>
      ))}
    </Table>
  );
}
