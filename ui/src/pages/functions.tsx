import { bytes, time } from '../format';
import { useJson } from '../hooks';
import { Empty, ErrorBox, Loading, Page, Table } from '../parts/ui';
import { link } from '../router';
import type { DeployedFunction } from '../types';

export const KINDS = { http02: 'WASI HTTP 0.2', http03: 'WASI HTTP 0.3', tensor: 'tensor function' };

export function FunctionsPage() {
  const { value, error } = useJson<DeployedFunction[]>('/v1/functions', 5000);
  return (
    <Page title="Functions">
      <ErrorBox error={error} />
      {value === undefined ? (
        error === undefined && <Loading />
      ) : value.length === 0 ? (
        <Empty command="weir new greet && cd greet && weir build && weir deploy">
          No function is deployed. Create one, build it and deploy it:
        </Empty>
      ) : (
        <Table label="Functions" head={['Name', 'Kind', 'Version', 'Models', 'Size', 'Deployed']}>
          {value.map((one) => (
            <tr key={one.name}>
              <td>
                <a href={link('functions', one.name)}>{one.name}</a>
              </td>
              <td>{KINDS[one.kind]}</td>
              <td class="number">
                {one.version} of {one.versions.length}
              </td>
              <td>{(one.manifest.models ?? []).join(', ') || '–'}</td>
              <td class="number">{bytes(one.component_bytes)}</td>
              <td class="number">{time(one.deployed_at_ms)}</td>
            </tr>
          ))}
        </Table>
      )}
    </Page>
  );
}
