import { Fragment, type RefObject } from 'preact';
import { useRef, useState } from 'preact/hooks';
import { request } from '../api';
import { bytes, time } from '../format';
import { asError, useJson } from '../hooks';
import { Badge, Card, ConfirmedButton, Empty, ErrorBox, Loading, Page, Table } from '../parts/ui';
import { link } from '../router';
import { deleteQuestion, losesLines, valueOf } from '../secrets';
import type { Secret } from '../types';

const pathOf = (name: string): string => `/v1/secrets/${encodeURIComponent(name)}`;

export function SecretsPage() {
  const { value, error, reload } = useJson<Secret[]>('/v1/secrets', 5000);
  const [name, setName] = useState('');
  const field = useRef<HTMLInputElement>(null);
  const replace = (given: string): void => {
    setName(given);
    field.current?.focus();
  };
  return (
    <Page title="Secrets">
      <ErrorBox error={error} />
      {value === undefined ? (
        error === undefined && <Loading />
      ) : (
        <>
          {value.length === 0 ? (
            <Empty command="weir secrets set NAME">No secret is stored. Store one below, or with:</Empty>
          ) : (
            <List secrets={value} onReplace={replace} reload={reload} />
          )}
          {value.some(({ usable }) => !usable) && (
            <p class="note">
              This node lacks the key of some secrets, and functions that get them fail. Restore the key file, or store
              the values again with <code>weir secrets set --force</code>.
            </p>
          )}
          <Card
            title="Set a secret"
            note="A new secret, or a new value of one in the table. Functions get the secrets that their manifests name, as environment variables. The node shows no value again."
          >
            <SecretForm name={name} setName={setName} field={field} onStore={reload} />
          </Card>
        </>
      )}
    </Page>
  );
}

function List(props: { secrets: Secret[]; onReplace: (name: string) => void; reload: () => void }) {
  const remove = async ({ name, functions }: Secret): Promise<void> => {
    // The user has agreed for the functions in the question; the node refuses for others.
    await request(functions.length === 0 ? pathOf(name) : `${pathOf(name)}?force=true`, { method: 'DELETE' });
    props.reload();
  };
  return (
    <Table label="Secrets" head={['Name', 'Functions', 'Version', 'Size', 'Changed', 'Created', 'Action']}>
      {props.secrets.map((one) => (
        <tr key={one.name}>
          <td class="mono">
            {one.name} {!one.usable && <Badge kind="bad">key missing</Badge>}
          </td>
          <td>
            {one.functions.length === 0 && 'none'}
            {one.functions.map((name, at) => (
              <Fragment key={name}>
                {at > 0 && ', '}
                <a href={link('functions', name)}>{name}</a>
              </Fragment>
            ))}
          </td>
          <td class="number">{one.version}</td>
          <td class="number">{bytes(one.value_bytes)}</td>
          <td class="number">{time(one.updated_at_ms)}</td>
          <td class="number">{time(one.created_at_ms)}</td>
          <td>
            <div class="actions">
              <button type="button" aria-label={`New value of ${one.name}`} onClick={() => props.onReplace(one.name)}>
                New value
              </button>
              <ConfirmedButton
                label="Delete"
                name={one.name}
                question={deleteQuestion(one.name, one.functions)}
                action={() => remove(one)}
              />
            </div>
          </td>
        </tr>
      ))}
    </Table>
  );
}

/** The fields keep the value, not the state of the page, and are emptied when it is sent. */
function SecretForm(props: {
  name: string;
  setName: (name: string) => void;
  field: RefObject<HTMLInputElement | null>;
  onStore: () => void;
}) {
  const file = useRef<HTMLInputElement>(null);
  const [error, setError] = useState<Error>();
  const [said, setSaid] = useState('');
  const [isRunning, setIsRunning] = useState(false);
  const store = async (): Promise<void> => {
    setError(undefined);
    setSaid('');
    setIsRunning(true);
    try {
      const { name, version } = await send(props.name, props.field.current, file.current);
      setSaid(`Stored ${name} (version ${version})`);
      props.setName('');
      props.onStore();
    } catch (thrown) {
      setError(asError(thrown));
    }
    setIsRunning(false);
  };
  return (
    <form
      autocomplete="off"
      onSubmit={(event) => {
        event.preventDefault();
        void store();
      }}
    >
      <div class="fields">
        <label>
          Name
          <input
            required
            maxLength={63}
            pattern="[A-Za-z_][A-Za-z0-9_.\-]*"
            title="Letters, digits, '_', '-' and '.', with a letter or '_' first"
            autocomplete="off"
            spellcheck={false}
            value={props.name}
            onInput={(event) => props.setName(event.currentTarget.value)}
          />
        </label>
        <label>
          Value
          <input
            type="password"
            autocomplete="off"
            ref={props.field}
            onPaste={(event) => {
              if (!losesLines(event.clipboardData?.getData('text') ?? '')) return;
              event.preventDefault();
              setError(new Error('The field takes one line. Choose a file for a value with several lines.'));
            }}
          />
        </label>
        <label>
          or a file
          <input type="file" ref={file} />
        </label>
      </div>
      <p>
        <button class="primary" disabled={isRunning}>
          Store
        </button>{' '}
        <span role="status">{said}</span>
      </p>
      <ErrorBox error={error} />
    </form>
  );
}

/** Sends the value of the fields, and empties them. */
async function send(name: string, field: HTMLInputElement | null, file: HTMLInputElement | null): Promise<Secret> {
  const body = valueOf(field?.value ?? '', file?.files?.[0]);
  const headers = { 'content-type': 'application/octet-stream' };
  const answer = request(pathOf(name), { method: 'PUT', headers, body });
  for (const one of [field, file]) if (one !== null) one.value = '';
  return (await (await answer).json()) as Secret;
}
