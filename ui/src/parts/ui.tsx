// Small parts of all pages.

import type { ComponentChildren } from 'preact';
import { useEffect, useId, useRef, useState } from 'preact/hooks';
import { ApiError } from '../api';
import { holdUpdates } from '../hold';
import { asError } from '../hooks';
import { link } from '../router';

/** Whether a page was shown before. The first page leaves the focus at the start of the document. */
let hasPage = false;

export function Page(props: { title: string; actions?: ComponentChildren; children: ComponentChildren }) {
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => {
    document.title = `${props.title} · Weir`;
    // Screen readers continue at the new page.
    if (hasPage) heading.current?.focus({ preventScroll: true });
    hasPage = true;
  }, [props.title]);
  return (
    <>
      <header class="page">
        <h1 tabIndex={-1} ref={heading}>
          {props.title}
        </h1>
        {props.actions}
      </header>
      {props.children}
    </>
  );
}

export function Card(props: { title: string; note?: string; children: ComponentChildren }) {
  return (
    <section class="card" aria-label={props.title}>
      <h2>{props.title}</h2>
      {props.note !== undefined && <p class="note">{props.note}</p>}
      {props.children}
    </section>
  );
}

export function ErrorBox({ error }: { error: Error | undefined }) {
  if (error === undefined) return null;
  return (
    <div class="error" role="alert">
      {error.message}
      {error instanceof ApiError && <span class="code"> {error.code}</span>}
    </div>
  );
}

/** What to do next where there is nothing to show. */
export function Empty(props: { children: ComponentChildren; command?: string }) {
  return (
    <div class="empty">
      <p>{props.children}</p>
      {props.command !== undefined && <CopyableCommand text={props.command} />}
    </div>
  );
}

export function CopyableCommand({ text }: { text: string }) {
  const [said, setSaid] = useState('');
  const copy = async (): Promise<void> => {
    try {
      await navigator.clipboard.writeText(text);
      setSaid('Copied');
    } catch {
      // Browsers have no clipboard for pages over plain HTTP from other machines.
      setSaid('Select the text to copy it');
    }
  };
  return (
    <div class="command">
      <code tabIndex={0}>{text}</code>
      <button type="button" onClick={() => void copy()} aria-label={`Copy the command ${text}`}>
        Copy
      </button>
      <span role="status">{said}</span>
    </div>
  );
}

export function Loading() {
  return (
    <p class="note" role="status">
      Loading…
    </p>
  );
}

export function Table(props: { label: string; head: string[]; children: ComponentChildren }) {
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={props.label}>
      <table>
        <thead>
          <tr>
            {props.head.map((name) => (
              <th scope="col" key={name}>
                {name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>{props.children}</tbody>
      </table>
    </div>
  );
}

/** Pairs of a name and a value; absent values are left out. */
export function Facts(props: { facts: [string, ComponentChildren][] }) {
  const shown = props.facts.filter(([, value]) => value !== undefined && value !== null && value !== '');
  return (
    <dl class="facts">
      {shown.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

export function Badge(props: { kind: 'good' | 'bad' | 'busy' | 'plain'; children: ComponentChildren }) {
  return <span class={`badge ${props.kind}`}>{props.children}</span>;
}

/** Longest time for which a question holds values back. */
const QUESTION_MS_MAX = 30_000;

/**
 * Button whose action needs a second click. Shows the error of the action. `name` is the object of the
 * action, for screen readers where several buttons have the same label.
 */
export function ConfirmedButton(props: { label: string; name?: string; question: string; action: () => Promise<void> }) {
  const [state, setState] = useState<'idle' | 'asking' | 'running'>('idle');
  const [error, setError] = useState<Error>();
  const no = useRef<HTMLButtonElement>(null);
  const first = useRef<HTMLButtonElement>(null);
  const wasAsked = useRef(false);
  const question = useId();
  // The buttons replace each other, and the focus follows them, unless it is elsewhere.
  useEffect(() => {
    if (state === 'asking') no.current?.focus();
    else if (wasAsked.current && document.activeElement === document.body) first.current?.focus();
    wasAsked.current = state !== 'idle';
    // The question stays where it is while the user reads it.
    return state === 'asking' ? holdUpdates(QUESTION_MS_MAX) : undefined;
  }, [state]);
  const run = async (): Promise<void> => {
    setState('running');
    setError(undefined);
    try {
      await props.action();
    } catch (thrown) {
      setError(asError(thrown));
    }
    setState('idle');
  };
  return (
    <span class="confirmed">
      {state === 'asking' ? (
        <>
          <span id={question}>{props.question}</span>
          <button type="button" class="primary" aria-describedby={question} onClick={() => void run()}>
            Yes
          </button>
          <button type="button" aria-describedby={question} ref={no} onClick={() => setState('idle')}>
            No
          </button>
        </>
      ) : (
        <button
          type="button"
          ref={first}
          disabled={state === 'running'}
          aria-label={props.name === undefined ? undefined : `${props.label} ${props.name}`}
          onClick={() => {
            setError(undefined);
            setState('asking');
          }}
        >
          {props.label}
        </button>
      )}
      <ErrorBox error={error} />
    </span>
  );
}

export function RequestLink({ id }: { id: string }) {
  return (
    <a href={link('requests', id)} class="mono">
      {id}
    </a>
  );
}
