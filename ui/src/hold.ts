// Delays updates of a page while a pointer is pressed. An update can move a button, and a button that
// moves between the press and the release of the pointer gets no click.

/** Longest press that holds values back: some browsers report no release of a scrollbar or a list. */
const PRESS_MS_MAX = 10_000;

/** Number of reasons to hold values back. */
let holds = 0;
let waiting: (() => void)[] = [];

/** Holds new values back until the returned function is called, for at most `maxMs`. */
export function holdUpdates(maxMs: number): () => void {
  let isHeld = true;
  holds += 1;
  const release = (): void => {
    if (!isHeld) return;
    isHeld = false;
    clearTimeout(limit);
    holds -= 1;
    if (holds > 0) return;
    const released = waiting;
    waiting = [];
    released.forEach((release) => release());
  };
  const limit = setTimeout(release, maxMs);
  return release;
}

/** Resolves once nothing holds new values back. */
export async function updatesAllowed(): Promise<void> {
  while (holds > 0) await new Promise<void>((release) => waiting.push(release));
}

/** Holds new values back while a pointer is pressed. */
export function holdWhilePressed(target: EventTarget): void {
  let release: (() => void) | undefined;
  const end = (): void => {
    const ended = release;
    release = undefined;
    // The click follows the release of the pointer.
    if (ended !== undefined) setTimeout(ended, 0);
  };
  target.addEventListener('pointerdown', (event) => {
    // A context menu may take the release of the other buttons.
    if ('button' in event && event.button !== 0) return;
    // The earlier press may have reached its limit.
    release?.();
    release = holdUpdates(PRESS_MS_MAX);
  });
  target.addEventListener('pointerup', end);
  target.addEventListener('pointercancel', end);
}
