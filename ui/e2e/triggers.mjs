// The pages of triggers, and the canary and the triggers on the page of a function. The node has
// the functions `hello`, whose version 2 is a canary, and `dice`, and these triggers: `report`
// calls `hello` at six in the morning in Berlin, `paused` calls it every hour and is paused, and
// `lost` has a target that was removed.
import assert from 'node:assert/strict';
import { WIDE, card, config, eventually, inspect, inspectAll, open, visit } from './browser.mjs';

const row = (page, name) => page.getByRole('row').filter({ has: page.getByRole('link', { name, exact: true }) });

export const pagesShowTriggers = () =>
  inspectAll([
    ['triggers', 'triggers', 'Triggers', (page) => row(page, 'lost').getByText(/there is no function/)],
    ['trigger', 'triggers/report', 'report', (page) => card(page, 'Ticks').getByText(/ 06:00:00$/).nth(4)],
    ['function-release', 'functions/hello', 'hello', (page) => card(page, 'Triggers').first().getByText('0 6 * * mon-fri (Europe/Berlin)')],
  ]);

/** The trigger as the API shows it; undefined if it does not exist. */
async function triggerOf(page, name) {
  const answer = await page.request.get(`${config.url}/v1/triggers/${name}`);
  return answer.status() === 200 ? answer.json() : undefined;
}

export async function triggersAreManaged() {
  await open('light', WIDE, async (page) => {
    await visit(page, 'triggers', 'Triggers');
    const form = card(page, 'Create a trigger');
    const target = form.getByRole('combobox', { name: 'Function', exact: true });
    const create = () => form.getByRole('button', { name: 'Create', exact: true }).click();
    await form.getByRole('textbox', { name: 'Name', exact: true }).fill('ping');
    await form.getByLabel(/^Cron:/).fill('61 * * * *');
    await target.fill('dice');
    await create();
    await form.getByRole('alert').getByText('invalid-trigger').waitFor();
    await form.getByLabel('Schedule').selectOption('interval');
    await form.getByLabel('Every').fill('1');
    await form.getByLabel('Unit').selectOption('seconds');
    await target.fill('no-such-function');
    await create();
    await form.getByText(/there is no function no-such-function/).waitFor();
    await target.fill('dice');
    await form.getByLabel('Method').selectOption('GET');
    await form.getByLabel(/^Tick while/).selectOption('skip');
    await create();
    await form.getByText('Created ping').waitFor();
    const { spec } = await triggerOf(page, 'ping');
    assert.deepEqual([spec.source, spec.target, spec.request.method, spec.overlap], [{ every_ms: 1000 }, { function: 'dice' }, 'GET', 'skip']);

    const ping = row(page, 'ping');
    await ping.getByText('every second').waitFor();
    await ping.getByText('fired').waitFor();
    await form.getByRole('textbox', { name: 'Name', exact: true }).fill('ping');
    await form.getByLabel(/^Cron:/).fill('0 6 * * *');
    await target.fill('dice');
    await create();
    await form.getByText('There is a trigger ping already').waitFor();
    assert.deepEqual((await triggerOf(page, 'ping')).spec.source, { every_ms: 1000 }, 'it was replaced');
    await inspect(page, 'triggers-form');

    await rowsStayUnderThePointer(page, ping);
    await ping.getByRole('button', { name: 'Yes' }).click();
    await ping.getByText('paused', { exact: true }).waitFor();
    assert.equal((await triggerOf(page, 'ping')).spec.enabled, false);
    await ping.getByRole('button', { name: 'Resume ping' }).click();
    await ping.getByRole('button', { name: 'Yes' }).click();
    await ping.getByRole('button', { name: 'Pause ping' }).waitFor();
    assert.equal((await triggerOf(page, 'ping')).spec.enabled, true);
    await ping.getByRole('link', { name: 'invocation' }).click();
    await page.getByRole('heading', { level: 1, name: /^Invocation / }).waitFor();
    await card(page, 'State').getByRole('link', { name: 'dice' }).waitFor();

    await visit(page, 'triggers', 'Triggers');
    await deleteByKeyboard(page, ping, 'ping');
  });
}

/**
 * Presses the button that pauses a trigger which ticks every second. New ticks must not move the
 * button before its release, nor the buttons of the question afterwards.
 */
async function rowsStayUnderThePointer(page, ping) {
  const refreshes = async (count) => {
    for (let at = 0; at < count; at += 1) await page.waitForResponse((response) => response.url().endsWith('/v1/triggers'));
  };
  await ping.getByRole('button', { name: 'Pause ping' }).hover();
  await page.mouse.down();
  await page.waitForTimeout(100);
  const pressed = await ping.innerText();
  // A value that arrives is held back, and with it the next request.
  await refreshes(1);
  await page.waitForTimeout(1500);
  assert.equal(await ping.innerText(), pressed, 'the row changed while the pointer was pressed');
  await page.mouse.up();
  await ping.getByRole('button', { name: 'Yes' }).waitFor();
  await page.waitForTimeout(100);
  const asked = await ping.innerText();
  await refreshes(1);
  await page.waitForTimeout(1500);
  assert.equal(await ping.innerText(), asked, 'the row changed while it asked');
}

/** The focus is at the harmless button while a button asks, and at the button itself afterwards. */
async function deleteByKeyboard(page, ping, name) {
  const focused = (label) => page.waitForFunction((text) => document.activeElement.textContent === text, label);
  await ping.getByRole('button', { name: `Delete ${name}` }).focus();
  await page.keyboard.press('Enter');
  await focused('No');
  await inspect(page, 'triggers-delete');
  await page.keyboard.press('Enter');
  await focused('Delete');
  assert.notEqual(await triggerOf(page, name), undefined, 'nothing changes before the confirmation');
  await page.keyboard.press('Enter');
  await focused('No');
  await page.keyboard.press('Shift+Tab');
  await page.keyboard.press('Enter');
  await ping.waitFor({ state: 'detached' });
  assert.equal(await triggerOf(page, name), undefined);
}

export async function requestsAreSentByHand() {
  await open('dark', WIDE, async (page) => {
    await visit(page, 'triggers/paused', 'paused');
    await card(page, 'Request').getByText('POST /reports?kind=daily').waitFor();
    assert.match(await page.getByLabel('Headers of the request').textContent(), /^x-kind: daily$/m);
    assert.equal(await page.getByLabel('Body of the request').textContent(), '{"day": "yesterday"}');
    await page.getByRole('button', { name: 'Run now' }).click();
    await page.getByRole('button', { name: 'Yes' }).click();
    await card(page, 'Ticks').getByText(/by hand.*\(done\)/).waitFor();
    await card(page, 'Asynchronous invocations of hello').first().getByText('done').first().waitFor();
    await inspect(page, 'trigger-run');
    await page.getByRole('link', { name: 'Show the invocation' }).click();
    await card(page, 'State').getByText('done', { exact: true }).waitFor();

    await visit(page, 'triggers/no-such-trigger', 'no-such-trigger');
    await page.getByText(/there is no trigger no-such-trigger/).waitFor();
  });
}

export async function canaryIsCompared() {
  await open('dark', WIDE, async (page) => {
    await visit(page, 'functions/hello', 'hello');
    const calls = async () => {
      const { canary_calls, active_calls } = await (await page.request.get(`${config.url}/v1/functions/hello/canary`)).json();
      return canary_calls.calls + active_calls.calls;
    };
    const before = await calls();
    for (let call = 0; call < 100; call += 1) await page.request.get(`${config.url}/fn/hello/`);
    await eventually('the count of 100 calls', async () => (await calls()) >= before + 100);
    const canary = card(page, 'Canary');
    await canary.getByRole('row').filter({ hasText: '75 %' }).filter({ hasText: / [mµ]s$/ }).waitFor();
    await canary.getByRole('row').filter({ hasText: '25 %' }).filter({ hasText: / [mµ]s$/ }).waitFor();
    await canary.scrollIntoViewIfNeeded();
    await inspect(page, 'canary');
    await page.getByRole('button', { name: 'Promote version 2' }).click();
    await page.getByRole('button', { name: 'Yes' }).click();
    await canary.waitFor({ state: 'detached' });
  });
}
