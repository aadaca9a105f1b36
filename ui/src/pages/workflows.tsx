import { time } from '../format';
import { useJson } from '../hooks';
import { Badge, Empty, ErrorBox, Loading, Page, Table } from '../parts/ui';
import { link } from '../router';
import type { Workflow } from '../types';

export function WorkflowsPage() {
  const { value, error } = useJson<Workflow[]>('/v1/workflows', 5000);
  return (
    <Page title="Workflows">
      <ErrorBox error={error} />
      {value === undefined ? (
        error === undefined && <Loading />
      ) : value.length === 0 ? (
        <Empty command="weir workflows deploy cascade cascade.toml">
          No workflow is deployed. Write its graph in a TOML file, and deploy it:
        </Empty>
      ) : (
        <Table label="Workflows" head={['Name', 'Version', 'Steps', 'Ready', 'Description', 'Deployed']}>
          {value.map((one) => (
            <tr key={one.name}>
              <td>
                <a href={link('workflows', one.name)}>{one.name}</a>
              </td>
              <td class="number">
                {one.version} of {one.versions.length}
              </td>
              <td class="number">{one.steps.length}</td>
              <td>{one.ready ? <Badge kind="good">ready</Badge> : <Badge kind="bad">not ready</Badge>}</td>
              <td>{one.description}</td>
              <td class="number">{time(one.deployed_at_ms)}</td>
            </tr>
          ))}
        </Table>
      )}
    </Page>
  );
}
