// The response to a call that a form sent.

import { useState } from 'preact/hooks';
import { bodyOf, send } from '../api';
import { bytes, ms } from '../format';
import { asError } from '../hooks';
import { link } from '../router';
import { Badge, ErrorBox } from './ui';

/** Bytes of a body that the page reads. */
const BODY_BYTES_MAX = 256 * 1024;

interface Answer {
  status: number;
  statusText: string;
  elapsedMs: number;
  headers: [string, string][];
  body: string;
  note: string | undefined;
  requestId: string | undefined;
  /** Whether the request was a call, which has a timeline. */
  isCall: boolean;
  isPlaced: boolean;
  invocation: string | undefined;
}

/** Sends a call and keeps its answer. */
export function useCall() {
  const [answer, setAnswer] = useState<Answer>();
  const [error, setError] = useState<Error>();
  const [isRunning, setIsRunning] = useState(false);
  const call = async (path: string, init: RequestInit): Promise<void> => {
    setIsRunning(true);
    setError(undefined);
    try {
      setAnswer(await answerOf(path, init));
    } catch (thrown) {
      setAnswer(undefined);
      setError(asError(thrown));
    }
    setIsRunning(false);
  };
  return { answer, error, isRunning, call };
}

async function answerOf(path: string, init: RequestInit): Promise<Answer> {
  const headers = new Headers(init.headers);
  // Asks the node to keep the timeline, and for the placement.
  headers.set('weir-explain', '1');
  const from = performance.now();
  const response = await send(path, { ...init, headers });
  const { bytes: content, isCut } = await bodyOf(response, BODY_BYTES_MAX);
  const elapsedMs = performance.now() - from;
  const isText = !content.includes(0);
  const cut = isCut ? ` The page shows the first ${bytes(BODY_BYTES_MAX)}.` : '';
  const location = response.headers.get('location') ?? '';
  return {
    status: response.status,
    statusText: response.statusText,
    elapsedMs,
    headers: [...response.headers],
    body: isText ? new TextDecoder().decode(content) : '',
    note: content.length === 0 ? 'The body is empty.' : isText ? cut || undefined : `The body has ${bytes(content.length)} of binary data.${cut}`,
    requestId: response.headers.get('weir-request-id') ?? undefined,
    isCall: /^\/(fn|v2)\//.test(path),
    isPlaced: response.headers.has('weir-placement'),
    invocation: response.headers.has('preference-applied') ? location.match(/^\/v1\/invocations\/(\w+)$/)?.[1] : undefined,
  };
}

export function AnswerView(props: { answer: Answer | undefined; error: Error | undefined }) {
  const { answer } = props;
  return (
    <div aria-live="polite">
      <ErrorBox error={props.error} />
      {answer !== undefined && (
        <div class="answer">
          <p>
            <Badge kind={answer.status < 400 ? 'good' : 'bad'}>
              {answer.status} {answer.statusText}
            </Badge>{' '}
            in {ms(answer.elapsedMs)}, as this browser measured
          </p>
          {answer.requestId !== undefined && (
            <p>
              Request <span class="mono">{answer.requestId}</span>
              {answer.isCall && answer.invocation === undefined && (
                <>
                  {' – '}
                  <a href={link('requests', answer.requestId)}>{answer.isPlaced ? 'Show its timeline and placement' : 'Show its timeline'}</a>
                </>
              )}
            </p>
          )}
          {answer.invocation !== undefined && (
            <p>
              <a href={link('invocations', answer.invocation)}>Show the invocation</a>
            </p>
          )}
          {answer.note !== undefined && <p class="note">{answer.note}</p>}
          {answer.body !== '' && (
            <pre tabIndex={0} aria-label="Body of the response">
              {answer.body}
            </pre>
          )}
          <details>
            <summary>{answer.headers.length} headers</summary>
            <pre tabIndex={0} aria-label="Headers of the response">
              {answer.headers.map(([name, value]) => `${name}: ${value}`).join('\n')}
            </pre>
          </details>
        </div>
      )}
    </div>
  );
}
