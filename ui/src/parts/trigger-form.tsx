// The form that creates a trigger.

import { useId, useMemo, useState } from 'preact/hooks';
import { request } from '../api';
import { asError } from '../hooks';
import { link } from '../router';
import { EMPTY_DRAFT, INTERVAL_UNITS, type TriggerDraft, specOf } from '../triggers';
import { METHODS } from './call';
import type { Targets } from './triggers';
import { ErrorBox } from './ui';

interface FieldsProps {
  draft: TriggerDraft;
  change: (changes: Partial<TriggerDraft>) => void;
}

export function TriggerForm(props: { existing: string[]; targets: Targets | undefined; onCreate: () => void }) {
  const [name, setName] = useState('');
  const [draft, setDraft] = useState(EMPTY_DRAFT);
  const [error, setError] = useState<Error>();
  const [created, setCreated] = useState<string>();
  const [isRunning, setIsRunning] = useState(false);
  const change = (changes: Partial<TriggerDraft>): void => setDraft((last) => ({ ...last, ...changes }));
  const create = async (): Promise<void> => {
    setError(undefined);
    setCreated(undefined);
    setIsRunning(true);
    try {
      // The request would replace it.
      if (props.existing.includes(name)) throw new Error(`There is a trigger ${name} already. Choose another name, or delete it first.`);
      const headers = { 'content-type': 'application/json' };
      await request(`/v1/triggers/${encodeURIComponent(name)}`, { method: 'PUT', headers, body: JSON.stringify(specOf(draft)) });
      setCreated(name);
      setName('');
      setDraft(EMPTY_DRAFT);
      props.onCreate();
    } catch (thrown) {
      setError(asError(thrown));
    }
    setIsRunning(false);
  };
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        void create();
      }}
    >
      <div class="fields">
        <label>
          Name
          <input
            required
            maxLength={63}
            pattern="[a-z0-9][a-z0-9._\-]*"
            title="Lower-case letters, digits, '-', '_' and '.'"
            autocomplete="off"
            value={name}
            onInput={(event) => setName(event.currentTarget.value)}
          />
        </label>
        <Schedule draft={draft} change={change} />
      </div>
      <div class="fields">
        <Target draft={draft} change={change} targets={props.targets} />
      </div>
      <RequestFields draft={draft} change={change} />
      <Policies draft={draft} change={change} />
      <label class="check">
        <input type="checkbox" checked={draft.isPaused} onChange={(event) => change({ isPaused: event.currentTarget.checked })} />
        Create it paused
      </label>
      <p>
        <button class="primary" disabled={isRunning}>
          Create
        </button>{' '}
        <span role="status">
          {created !== undefined && (
            <>
              Created <a href={link('triggers', created)}>{created}</a>
            </>
          )}
        </span>
      </p>
      <ErrorBox error={error} />
    </form>
  );
}

function Schedule({ draft, change }: FieldsProps) {
  const zones = useId();
  const names = useMemo(() => Intl.supportedValuesOf('timeZone'), []);
  return (
    <>
      <label class="short">
        Schedule
        <select value={draft.schedule} onChange={(event) => change({ schedule: event.currentTarget.value as TriggerDraft['schedule'] })}>
          <option value="cron">cron</option>
          <option value="interval">interval</option>
        </select>
      </label>
      {draft.schedule === 'cron' ? (
        <>
          <label>
            Cron: minute, hour, day, month, weekday
            <input
              class="mono"
              required
              placeholder="*/5 * * * *"
              autocomplete="off"
              value={draft.cron}
              onInput={(event) => change({ cron: event.currentTarget.value })}
            />
          </label>
          <label>
            Time zone
            <input
              list={zones}
              placeholder="UTC"
              autocomplete="off"
              value={draft.timezone}
              onInput={(event) => change({ timezone: event.currentTarget.value })}
            />
            <datalist id={zones}>
              {names.map((zone) => (
                <option key={zone} value={zone} />
              ))}
            </datalist>
          </label>
        </>
      ) : (
        <>
          <label class="short">
            Every
            <input
              type="number"
              required
              min={0}
              step="any"
              value={draft.every}
              onInput={(event) => change({ every: event.currentTarget.value })}
            />
          </label>
          <label class="short">
            Unit
            <select value={draft.unit} onChange={(event) => change({ unit: event.currentTarget.value as TriggerDraft['unit'] })}>
              {INTERVAL_UNITS.map((unit) => (
                <option key={unit}>{unit}</option>
              ))}
            </select>
          </label>
        </>
      )}
    </>
  );
}

function Target({ draft, change, targets }: FieldsProps & { targets: Targets | undefined }) {
  const known = useId();
  const isFunction = draft.kind === 'function';
  const names = isFunction
    ? targets?.functions
    : targets && [...targets.models, ...targets.workflows, ...targets.tensorFunctions, ...targets.kernelGraphs];
  return (
    <>
      <label class="short">
        Target
        <select value={draft.kind} onChange={(event) => change({ kind: event.currentTarget.value as TriggerDraft['kind'] })}>
          <option value="function">function</option>
          <option value="inference">inference</option>
        </select>
      </label>
      <label>
        {isFunction ? 'Function' : 'Model, workflow or tensor function'}
        <input
          required
          list={known}
          autocomplete="off"
          value={draft.target}
          onInput={(event) => change({ target: event.currentTarget.value })}
        />
        <datalist id={known}>
          {(names ?? []).map((name) => (
            <option key={name} value={name} />
          ))}
        </datalist>
      </label>
      {!isFunction && (
        <label class="short">
          Version
          <input
            type="number"
            min={1}
            placeholder="current"
            value={draft.version}
            onInput={(event) => change({ version: event.currentTarget.value })}
          />
        </label>
      )}
    </>
  );
}

function RequestFields({ draft, change }: FieldsProps) {
  const isFunction = draft.kind === 'function';
  const hasBody = !isFunction || draft.method !== 'GET';
  return (
    <>
      {isFunction && (
        <div class="fields">
          <label class="short">
            Method
            <select value={draft.method} onChange={(event) => change({ method: event.currentTarget.value })}>
              {METHODS.map((one) => (
                <option key={one}>{one}</option>
              ))}
            </select>
          </label>
          <label>
            Path and query, as the function sees them
            <input class="mono" value={draft.path} onInput={(event) => change({ path: event.currentTarget.value })} />
          </label>
        </div>
      )}
      <label>
        Headers, one NAME: VALUE per line
        <textarea class="mono" rows={2} value={draft.headers} onInput={(event) => change({ headers: event.currentTarget.value })} />
      </label>
      {hasBody && (
        <label>
          {isFunction ? 'Body' : 'Body, a request of the Open Inference Protocol'}
          <textarea class="mono" rows={3} value={draft.body} onInput={(event) => change({ body: event.currentTarget.value })} />
        </label>
      )}
    </>
  );
}

function Policies({ draft, change }: FieldsProps) {
  return (
    <div class="fields">
      <label>
        Missed ticks
        <select value={draft.missed} onChange={(event) => change({ missed: event.currentTarget.value as TriggerDraft['missed'] })}>
          <option value="skip">skip</option>
          <option value="run-once">run the latest once</option>
        </select>
      </label>
      {draft.missed === 'run-once' && (
        <label>
          if it is at most this old, in hours
          <input
            type="number"
            required
            min={0}
            step="any"
            value={draft.missedHours}
            onInput={(event) => change({ missedHours: event.currentTarget.value })}
          />
        </label>
      )}
      <label>
        Tick while the invocation before it has not ended
        <select value={draft.overlap} onChange={(event) => change({ overlap: event.currentTarget.value as TriggerDraft['overlap'] })}>
          <option value="allow">run</option>
          <option value="skip">skip</option>
        </select>
      </label>
    </div>
  );
}
