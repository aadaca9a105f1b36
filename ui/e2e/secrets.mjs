// The page of secrets. The node has the secret `HOOK_KEY` with the value `first`, the secret
// `UNUSED`, and the function `stamp`, which answers with `HOOK_KEY`.
import assert from 'node:assert/strict';
import { NARROW, WIDE, card, config, inspect, inspectAll, open, visit } from './browser.mjs';

const row = (page, name) => page.getByRole('row').filter({ has: page.getByText(name, { exact: true }) });

export const pagesShowSecrets = () =>
  inspectAll([
    ['secrets', 'secrets', 'Secrets', (page) => row(page, 'HOOK_KEY').getByRole('link', { name: 'stamp' })],
    ['function-secrets', 'functions/stamp', 'stamp', (page) => card(page, 'Grants and limits').getByRole('link', { name: 'MARK = HOOK_KEY' })],
  ]);

/** The value that a new instance of `stamp` gets. */
async function stamp(page) {
  const answer = await page.request.get(`${config.url}/fn/stamp/`);
  return answer.status() === 200 ? (await answer.text()).split(' ')[0] : answer.status();
}

/** Fills in the form. Returns it. */
async function fillIn(page, name, value) {
  const form = card(page, 'Set a secret');
  await form.getByLabel('Name').fill(name);
  await form.getByLabel('Value').fill(value);
  return form;
}

export async function valuesAreSet() {
  await open('light', WIDE, async (page, context) => {
    const value = 's3cr3t-of-this-test';
    const addresses = [];
    context.on('request', (request) => addresses.push(request.url()));
    await visit(page, 'secrets', 'Secrets');
    const form = await fillIn(page, 'NEW_KEY', value);
    const field = form.getByLabel('Value');
    assert.deepEqual([await field.getAttribute('type'), await field.getAttribute('autocomplete')], ['password', 'off']);
    await form.getByRole('button', { name: 'Store' }).click();
    await form.getByText('Stored NEW_KEY (version 1)').waitFor();
    await row(page, 'NEW_KEY').getByText('none').waitFor();
    assert.equal(await field.inputValue(), '');
    const kept = await page.evaluate(() =>
      JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie, location.href, document.documentElement.outerHTML]),
    );
    assert.ok(![kept, ...addresses].some((text) => text.includes(value)), 'the value was kept');

    await row(page, 'HOOK_KEY').getByRole('button', { name: 'New value of HOOK_KEY' }).click();
    await page.waitForFunction(() => document.activeElement.type === 'password');
    await page.keyboard.type('second');
    await page.keyboard.press('Enter');
    await form.getByText('Stored HOOK_KEY (version 2)').waitFor();
    assert.equal(await stamp(page), 'second');
    await inspect(page, 'secrets-stored');
  });
}

export async function fileIsStored() {
  await open('dark', NARROW, async (page) => {
    await visit(page, 'secrets', 'Secrets');
    const form = card(page, 'Set a secret');
    await form.getByLabel('Name').fill('HOOK_KEY');
    await form.getByRole('button', { name: 'Store' }).click();
    await form.getByText('Enter a value, or choose a file.').waitFor();
    await form.getByLabel('Value').evaluate((field) => {
      const data = new DataTransfer();
      data.setData('text', 'two\nlines');
      field.dispatchEvent(new ClipboardEvent('paste', { clipboardData: data, bubbles: true, cancelable: true }));
    });
    await form.getByText('The field takes one line.').waitFor();
    await inspect(page, 'secrets-lines');
    await form.getByLabel('or a file').setInputFiles({ name: 'key', mimeType: 'text/plain', buffer: Buffer.from('third\nline') });
    await form.getByRole('button', { name: 'Store' }).click();
    await form.getByText('Stored HOOK_KEY (version 3)').waitFor();
    assert.equal(await form.getByLabel('or a file').inputValue(), '');
    assert.equal(await stamp(page), 'third\nline');
  });
}

export async function secretsAreDeleted() {
  await open('light', WIDE, async (page) => {
    await visit(page, 'secrets', 'Secrets');
    await row(page, 'UNUSED').getByRole('button', { name: 'Delete UNUSED' }).click();
    await row(page, 'UNUSED').getByRole('button', { name: 'Yes' }).click();
    await row(page, 'UNUSED').waitFor({ state: 'detached' });
    const used = row(page, 'HOOK_KEY');
    await used.getByRole('button', { name: 'Delete HOOK_KEY' }).click();
    await used.getByText(/Calls of stamp that need a new instance fail/).waitFor();
    await inspect(page, 'secrets-delete');
    await used.getByRole('button', { name: 'No', exact: true }).click();
    assert.equal(await stamp(page), 'third\nline', 'nothing changes before the confirmation');
    await used.getByRole('button', { name: 'Delete HOOK_KEY' }).click();
    await used.getByRole('button', { name: 'Yes' }).click();
    await used.waitFor({ state: 'detached' });
    assert.equal(await stamp(page), 503);
  });
}

/** Enters a token at a page that asks for it. */
async function enter(page, token) {
  await page.getByLabel('Token', { exact: true }).fill(token);
  await page.getByRole('button', { name: 'Use the token' }).click();
}

/** Actions that the scopes of a key do not permit show the error of the node. */
export async function errorsOfScopesAreShown() {
  await open('light', WIDE, async (page) => {
    await visit(page, 'secrets', 'Token');
    await enter(page, config.token);
    const form = await fillIn(page, 'NEW_KEY', 'value');
    await form.getByRole('button', { name: 'Store' }).click();
    await form.getByText(/lacks the scope deploy/).waitFor();
    assert.equal(await form.getByLabel('Value').inputValue(), '');
    await row(page, 'HOOK_KEY').getByRole('button', { name: 'Delete HOOK_KEY' }).click();
    await page.getByRole('button', { name: 'Yes' }).click();
    await row(page, 'HOOK_KEY').getByText(/lacks the scope deploy/).waitFor();
    await inspect(page, 'secrets-scopes');
    await page.getByRole('link', { name: 'Triggers' }).click();
    for (const action of ['Run now', 'Pause', 'Delete']) {
      await page.getByRole('button', { name: `${action} report` }).click();
      await page.getByRole('button', { name: 'Yes' }).click();
      await page.getByText(/lacks the scope deploy/).first().waitFor();
    }
    await inspect(page, 'triggers-scopes');
  });
}
