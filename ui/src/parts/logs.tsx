// The log of a function, as it is written.

import { useEffect, useRef, useState } from 'preact/hooks';
import { follow } from '../api';
import { clock } from '../format';
import { asError } from '../hooks';
import type { LogLine } from '../types';
import { Empty, ErrorBox, RequestLink } from './ui';

/** Lines that the page keeps. */
const LINES_MAX = 1000;
const FIRST_LINES = 100;
/** Time between two updates of the page while lines arrive. */
const UPDATE_MS = 100;

export function Logs({ path }: { path: string }) {
  const [lines, setLines] = useState<LogLine[]>([]);
  const [error, setError] = useState<Error>();
  const [isFollowing, setIsFollowing] = useState(true);
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (!isFollowing) return undefined;
    const abort = new AbortController();
    let fresh: LogLine[] = [];
    setLines([]);
    setError(undefined);
    const update = setInterval(() => {
      if (fresh.length === 0) return;
      const added = fresh;
      fresh = [];
      setLines((last) => [...last, ...added].slice(-LINES_MAX));
    }, UPDATE_MS);
    const read = async (): Promise<void> => {
      try {
        for await (const line of follow<LogLine>(`${path}/logs?lines=${FIRST_LINES}&follow=true`, abort.signal)) {
          fresh.push(line);
          if (fresh.length > LINES_MAX) fresh = fresh.slice(-LINES_MAX);
        }
        if (!abort.signal.aborted) setError(new Error('The log ended: the function was removed or the node stops.'));
      } catch (thrown) {
        if (!abort.signal.aborted) setError(asError(thrown));
      }
    };
    void read();
    return () => {
      abort.abort();
      clearInterval(update);
    };
  }, [path, isFollowing]);
  useEffect(() => {
    const element = box.current;
    if (element !== null) element.scrollTop = element.scrollHeight;
  }, [lines]);
  return (
    <>
      <button type="button" aria-pressed={isFollowing} onClick={() => setIsFollowing(!isFollowing)}>
        {isFollowing ? 'Pause' : 'Follow'}
      </button>
      <ErrorBox error={error} />
      {lines.length === 0 ? (
        <Empty>No lines yet. What the function writes to its standard output and error appears here.</Empty>
      ) : (
        <div class="log" role="log" aria-live="off" aria-label="Log" tabIndex={0} ref={box}>
          {lines.map((line, at) => (
            <div key={at} class={line.stream}>
              <time>{clock(line.at_ms)}</time> <span class="stream">{line.stream}</span>{' '}
              <span class="text">{line.text}</span> <RequestLink id={line.request_id} />
            </div>
          ))}
        </div>
      )}
    </>
  );
}
