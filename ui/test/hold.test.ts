import { afterEach, describe, expect, it } from 'vitest';
import { holdUpdates, holdWhilePressed, updatesAllowed } from '../src/hold';

const releases: (() => void)[] = [];
const hold = (): (() => void) => {
  const release = holdUpdates(60_000);
  releases.push(release);
  return release;
};
afterEach(() => releases.splice(0).forEach((release) => release()));

const isAllowed = async (): Promise<boolean> => {
  let allowed = false;
  void updatesAllowed().then(() => (allowed = true));
  await new Promise((done) => setTimeout(done, 5));
  return allowed;
};

describe('holdUpdates', () => {
  it('holds updates back until every hold is released, each once', async () => {
    expect(await isAllowed()).toBe(true);
    const first = hold();
    const second = hold();
    const waiting = updatesAllowed();
    first();
    first();
    expect(await isAllowed()).toBe(false);
    second();
    await waiting;
    expect(await isAllowed()).toBe(true);
  });
  it('ends at its limit', async () => {
    releases.push(holdUpdates(20));
    expect(await isAllowed()).toBe(false);
    await updatesAllowed();
  });
  it('holds updates back while a pointer is pressed', async () => {
    const target = new EventTarget();
    holdWhilePressed(target);
    target.dispatchEvent(new Event('pointerdown'));
    target.dispatchEvent(new Event('pointerdown'));
    expect(await isAllowed()).toBe(false);
    target.dispatchEvent(new Event('pointerup'));
    expect(await isAllowed()).toBe(true);
    target.dispatchEvent(new Event('pointerdown'));
    target.dispatchEvent(new Event('pointercancel'));
    expect(await isAllowed()).toBe(true);
  });
});
