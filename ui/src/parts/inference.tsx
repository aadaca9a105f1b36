// The form that runs a model, a tensor function or a workflow.

import { useMemo, useState } from 'preact/hooks';
import { shape } from '../format';
import { draft } from '../inference';
import type { Port } from '../types';
import { AnswerView, useCall } from './answer';
import { Table } from './ui';

export function InferenceForm({ name, inputs }: { name: string; inputs: Port[] }) {
  const signature = JSON.stringify(inputs);
  const prefilled = useMemo(() => draft(inputs), [signature]);
  const [body, setBody] = useState(prefilled.body);
  const { answer, error, isRunning, call } = useCall();
  const target = `/v2/models/${encodeURIComponent(name)}/infer`;
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        void call(target, { method: 'POST', headers: { 'content-type': 'application/json' }, body });
      }}
    >
      {prefilled.tooLarge.length > 0 && (
        <p class="note">Too large to prefill, so without data: {prefilled.tooLarge.join(', ')}.</p>
      )}
      <label>
        Body of <code>POST {target}</code>
        <textarea class="mono" rows={6} value={body} onInput={(event) => setBody(event.currentTarget.value)} />
      </label>
      <p>
        <button class="primary" disabled={isRunning}>
          Run
        </button>
      </p>
      <AnswerView answer={answer} error={error} />
    </form>
  );
}

export function Signature({ inputs, outputs }: { inputs: Port[]; outputs: Port[] }) {
  const rows = [...inputs.map((port) => ['input', port] as const), ...outputs.map((port) => ['output', port] as const)];
  return (
    <Table label="Signature" head={['', 'Name', 'Type', 'Shape']}>
      {rows.map(([side, port]) => (
        <tr key={`${side} ${port.name}`}>
          <td>{side}</td>
          <td class="mono">{port.name}</td>
          <td class="mono">{port.datatype}</td>
          <td class="mono">{shape(port.shape)}</td>
        </tr>
      ))}
    </Table>
  );
}
