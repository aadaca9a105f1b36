// Loading of values from the API.

import { useCallback, useEffect, useRef, useState } from 'preact/hooks';
import { getJson } from './api';
import { updatesAllowed } from './hold';

export interface Loaded<T> {
  value: T | undefined;
  error: Error | undefined;
  reload: () => void;
}

export const asError = (error: unknown): Error => (error instanceof Error ? error : new Error(String(error)));

/**
 * Loads a value, and again every `everyMs` while the tab is visible. A slow answer delays the next
 * request. After an error, the last value stays. `key` identifies what `load` loads. Later
 * values that arrive while updates are held back are shown afterwards.
 */
export function useLoad<T>(load: (signal: AbortSignal) => Promise<T>, key: string, everyMs?: number): Loaded<T> {
  const [state, setState] = useState<{ key: string; value?: T; error?: Error }>({ key });
  const [round, setRound] = useState(0);
  const latest = useRef(load);
  latest.current = load;
  const shown = useRef<string | undefined>(undefined);
  useEffect(() => {
    const abort = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const run = async (): Promise<void> => {
      try {
        const value = await latest.current(abort.signal);
        // The first value replaces nothing that the user could point at.
        if (shown.current === key) await updatesAllowed();
        shown.current = key;
        if (!abort.signal.aborted) setState({ key, value });
      } catch (thrown) {
        const error = asError(thrown);
        if (!abort.signal.aborted) setState((last) => (last.key === key ? { ...last, error } : { key, error }));
      }
      if (everyMs !== undefined && !abort.signal.aborted) timer = setTimeout(next, everyMs);
    };
    const next = (): void => {
      timer = undefined;
      // A hidden tab continues when it is shown.
      if (document.visibilityState === 'visible') void run();
    };
    const visible = (): void => {
      if (document.visibilityState === 'visible' && timer === undefined && everyMs !== undefined) {
        timer = setTimeout(next, 0);
      }
    };
    void run();
    document.addEventListener('visibilitychange', visible);
    return () => {
      abort.abort();
      clearTimeout(timer);
      document.removeEventListener('visibilitychange', visible);
    };
  }, [key, everyMs, round]);
  const reload = useCallback(() => setRound((last) => last + 1), []);
  const isCurrent = state.key === key;
  return { value: isCurrent ? state.value : undefined, error: isCurrent ? state.error : undefined, reload };
}

export function useJson<T>(path: string, everyMs?: number): Loaded<T> {
  return useLoad((signal) => getJson<T>(path, signal), path, everyMs);
}
