import { bytes, shape, time } from '../format';
import { useJson } from '../hooks';
import { Badge, Card, Empty, ErrorBox, Loading, Page, Table } from '../parts/ui';
import { link } from '../router';
import type { Model, Port } from '../types';

export function ModelsPage() {
  const models = useJson<Model[]>('/v1/models', 5000);
  const graphs = useJson<Model[]>('/v1/kernel-graphs', 5000);
  const isEmpty = models.value?.length === 0;
  return (
    <Page title="Models">
      <ErrorBox error={models.error} />
      {models.value === undefined && models.error === undefined && <Loading />}
      {isEmpty && (
        <Empty command="weir models push digits digits.onnx">No model is here. Push an ONNX file under a name:</Empty>
      )}
      {models.value !== undefined && !isEmpty && <List label="Models" collection="models" models={models.value} />}
      {graphs.value !== undefined && graphs.value.length > 0 && (
        <Card title="Kernel graphs">
          <List label="Kernel graphs" collection="kernel-graphs" models={graphs.value} />
        </Card>
      )}
    </Page>
  );
}

function List(props: { label: string; collection: string; models: Model[] }) {
  return (
    <Table label={props.label} head={['Name', 'Version', 'Inputs', 'Outputs', 'Size', 'In memory', 'Pushed']}>
      {props.models.map((model) => (
        <tr key={model.name}>
          <td>
            <a href={link(props.collection, model.name)}>{model.name}</a>
          </td>
          <td class="number">
            {model.version} of {model.versions.length}
          </td>
          <td class="mono">{ports(model.inputs)}</td>
          <td class="mono">{ports(model.outputs)}</td>
          <td class="number">{bytes(model.model_bytes)}</td>
          <td>{model.resident ? <Badge kind="good">resident</Badge> : 'no'}</td>
          <td class="number">{time(model.pushed_at_ms)}</td>
        </tr>
      ))}
    </Table>
  );
}

function ports(all: Port[]): string {
  return all.map((port) => `${port.name} ${port.datatype}${shape(port.shape)}`).join('; ');
}
