import { useState } from 'preact/hooks';
import { ApiError } from '../api';
import { bytes, number, time, us } from '../format';
import { useJson } from '../hooks';
import { Badge, Card, Empty, ErrorBox, Loading, Page, Table } from '../parts/ui';
import { fullest, quotaName, quotaShare, quotaValue } from '../quotas';
import { link } from '../router';
import type { DeviceUsage, QuotaUsage, TenantPage as Tenants, TenantUsage, Usage } from '../types';

/** Used part of a quota from which the page warns. */
const NEARLY_FULL = 0.9;

export function TenantsPage() {
  const { value, error } = useJson<Tenants>('/v1/tenants', 2000);
  const [chosen, setChosen] = useState<string>();
  const tenants = value?.tenants ?? [];
  const shown = tenants.find(({ tenant }) => tenant === chosen) ?? tenants[0];
  return (
    <Page title="Tenants">
      <ErrorBox error={error} />
      {value === undefined && error === undefined && <Loading />}
      {value?.tenants.length === 0 && <Empty>No tenant has a token, quotas or requests on this node.</Empty>}
      {tenants.length > 1 && <List tenants={tenants} shown={shown?.tenant} choose={setChosen} />}
      {shown !== undefined && <Quotas usage={shown} />}
      <Devices />
    </Page>
  );
}

function List(props: { tenants: TenantUsage[]; shown: string | undefined; choose: (tenant: string) => void }) {
  return (
    <Card title="All tenants" note="With the quota of which each tenant uses the largest part.">
      <Table label="Tenants" head={['Tenant', 'Requests per second', 'Fullest quota', 'Used part', 'Action']}>
        {props.tenants.map(({ tenant, quotas }) => {
          const most = fullest(quotas);
          const rate = quotas.find(({ setting }) => setting === 'requests_per_s')?.used;
          return (
            <tr key={tenant}>
              <td>{tenant}</td>
              <td class="number">{rate === undefined ? '–' : number(rate)}</td>
              <td>{most === undefined ? '–' : quotaName(most.quota.setting)}</td>
              <td class="number">{most === undefined ? '–' : <Part share={most.share} />}</td>
              <td>
                {tenant === props.shown ? (
                  <Badge kind="busy">shown</Badge>
                ) : (
                  <button type="button" aria-label={`Show the quotas of ${tenant}`} onClick={() => props.choose(tenant)}>
                    Show
                  </button>
                )}
              </td>
            </tr>
          );
        })}
      </Table>
    </Card>
  );
}

function Quotas({ usage }: { usage: TenantUsage }) {
  return (
    <Card
      title={`Quotas of ${usage.tenant}`}
      note="Quotas of a node count on this node only; quotas of the cluster count on all nodes together. Full quotas refuse requests, or make them wait."
    >
      <Table label={`Use of the quotas of ${usage.tenant}`} head={['Quota', 'Used part', 'Used', 'Limit', 'Counts', 'Setting']}>
        {usage.quotas.map((quota) => (
          <Row key={quota.setting} quota={quota} />
        ))}
      </Table>
    </Card>
  );
}

function Row({ quota }: { quota: QuotaUsage }) {
  const { setting, scope, used, max } = quota;
  const share = quotaShare(quota);
  return (
    <tr>
      <th scope="row">{quotaName(setting)}</th>
      <td class="quota">
        {share === undefined ? (
          '–'
        ) : (
          <>
            <meter aria-label={`${quotaName(setting)}, used part`} min={0} max={1} high={NEARLY_FULL} optimum={0} value={share} />{' '}
            <Part share={share} />
          </>
        )}
      </td>
      <td class="number">{used === undefined ? 'not counted' : quotaValue(setting, used)}</td>
      <td class="number">{max === undefined ? 'none' : quotaValue(setting, max)}</td>
      <td>{scope === 'node' ? 'this node' : 'cluster'}</td>
      <td class="mono">{setting}</td>
    </tr>
  );
}

function Part({ share }: { share: number }) {
  const text = `${number(Math.round(1000 * share) / 10)} %`;
  return share >= NEARLY_FULL ? <Badge kind="bad">{text}</Badge> : <span class="number">{text}</span>;
}

function Devices() {
  const { value, error } = useJson<Usage>('/v1/usage', 5000);
  // The operator's token has no tenant.
  if (error instanceof ApiError && error.status === 403) return null;
  if (value === undefined) return <ErrorBox error={error} />;
  if (value.total.length === 0) {
    return (
      <Card title="Device usage">
        <ErrorBox error={error} />
        <Empty command="weir models push digits digits.onnx">No device of this node was used yet. Push a model and run it:</Empty>
      </Card>
    );
  }
  return (
    <>
      <ErrorBox error={error} />
      <Card
        title="Device usage"
        note={`Of tenant ${value.tenant} on this node since ${time(value.since_ms)}, including functions and models that no longer exist.`}
      >
        <Table label="Usage by device" head={['Device', ...COLUMNS]}>
          {value.total.map((row) => (
            <tr key={row.device}>
              <td>{row.device}</td>
              <Numbers usage={row} />
            </tr>
          ))}
        </Table>
      </Card>
      <Card title="Device usage by function and model">
        {value.rows.length === 0 ? (
          <p class="note">Nothing that is deployed now has used a device.</p>
        ) : (
          <Table label="Usage by function and model" head={['Function', 'Model', 'Version', 'Device', ...COLUMNS]}>
            {value.rows.map((row) => (
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
