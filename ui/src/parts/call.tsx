// The form that calls an HTTP function.

import { useState } from 'preact/hooks';
import { parseHeaders } from '../headers';
import { asError } from '../hooks';
import { AnswerView, useCall } from './answer';
import { ErrorBox } from './ui';

export const METHODS = ['GET', 'POST', 'PUT', 'PATCH', 'DELETE'];

export function CallForm({ name }: { name: string }) {
  const [method, setMethod] = useState('GET');
  const [path, setPath] = useState('/');
  const [headers, setHeaders] = useState('');
  const [text, setText] = useState('');
  const [file, setFile] = useState<File>();
  const [isLater, setIsLater] = useState(false);
  const [wrong, setWrong] = useState<Error>();
  const { answer, error, isRunning, call } = useCall();
  const hasBody = method !== 'GET';
  const target = `/fn/${encodeURIComponent(name)}${path.startsWith('/') ? '' : '/'}${path}`;
  const send = (): void => {
    const given = new Headers();
    try {
      parseHeaders(headers).forEach(([key, value]) => given.append(key, value));
      setWrong(undefined);
    } catch (thrown) {
      return setWrong(asError(thrown));
    }
    if (isLater) given.set('prefer', 'respond-async');
    void call(target, { method, headers: given, ...(hasBody ? { body: file ?? text } : {}) });
  };
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <div class="fields">
        <label class="short">
          Method
          <select value={method} onChange={(event) => setMethod(event.currentTarget.value)}>
            {METHODS.map((one) => (
              <option key={one}>{one}</option>
            ))}
          </select>
        </label>
        <label>
          Path and query, as the function sees them
          <input class="mono" value={path} onInput={(event) => setPath(event.currentTarget.value)} />
        </label>
      </div>
      <label>
        Headers, one NAME: VALUE per line
        <textarea class="mono" rows={2} value={headers} onInput={(event) => setHeaders(event.currentTarget.value)} />
      </label>
      {hasBody && (
        <div class="fields">
          <label>
            Body
            <textarea
              class="mono"
              rows={4}
              value={text}
              disabled={file !== undefined}
              onInput={(event) => setText(event.currentTarget.value)}
            />
          </label>
          <label>
            or a file
            <input type="file" onChange={(event) => setFile(event.currentTarget.files?.[0])} />
          </label>
        </div>
      )}
      <label class="check">
        <input type="checkbox" checked={isLater} onChange={(event) => setIsLater(event.currentTarget.checked)} />
        Run it later, as an asynchronous invocation
      </label>
      <p>
        <button class="primary" disabled={isRunning}>
          Send
        </button>{' '}
        {!hasBody && (
          <a href={target} target="_blank" rel="noopener noreferrer">
            Open in a new tab
          </a>
        )}
      </p>
      <ErrorBox error={wrong} />
      <AnswerView answer={answer} error={error} />
    </form>
  );
}
