// Opens every page of the dashboard in Chromium, as a user would. The tests in `tests/tests/` start
// the nodes, deploy what the pages show, and run this script with `WEIR_DASHBOARD`, a JSON object:
//   url          address of the node
//   chromium     path of the browser
//   screenshots  folder for the screenshots
//   suite        one of `SUITES` below
//   nodes        with `cluster`: ids of the nodes
//   token        with `tokens`, `scopes` and `operator`: a token of the node
import assert from 'node:assert/strict';
import { NARROW, WIDE, browser, card, config, inspect, inspectAll, open, visit } from './browser.mjs';
import * as secrets from './secrets.mjs';
import * as triggers from './triggers.mjs';

/** Device usage of this node. In a cluster, all calls may have run on other nodes. */
function usageOf(page) {
  const used = card(page, 'Device usage').getByText('cpu');
  return config.suite === 'cluster' ? used.or(page.getByText('No device of this node was used yet')) : used;
}

/** Pages of a node with functions, models, a workflow, a trigger of the workflow, and invocations. */
const PAGES = [
  ['overview', 'overview', 'Overview', (page) => page.getByRole('img', { name: /^Memory of cpu: / })],
  ['functions', 'functions', 'Functions', (page) => page.getByRole('link', { name: 'classify-digits' })],
  ['function', 'functions/classify-digits', 'classify-digits', (page) => card(page, 'Versions').first().getByText('active')],
  ['models', 'models', 'Models', (page) => page.getByRole('link', { name: 'digits', exact: true })],
  ['model', 'models/digits', 'digits', (page) => card(page, 'Devices of this node').getByText('Memory')],
  ['workflows', 'workflows', 'Workflows', (page) => page.getByRole('link', { name: 'cascade' })],
  ['workflow', 'workflows/cascade', 'cascade', (page) => page.getByRole('img', { name: /Graph of 4 steps/ })],
  ['triggers', 'triggers', 'Triggers', (page) => page.locator('a[href="#/workflows/cascade"]')],
  ['invocations', 'invocations', 'Invocations', (page) => page.getByText('done', { exact: true }).nth(1)],
  ['events', 'events', 'Events', (page) => card(page, 'Latest events').getByText('deployed', { exact: true }).nth(1)],
  ['tenants', 'tenants', 'Tenants', usageOf],
];

const everyPage = () => inspectAll(PAGES);

async function chartsFollowTheTraffic() {
  await open('light', WIDE, async (page) => {
    await visit(page, 'overview', 'Overview');
    const chart = page.getByRole('img', { name: /^Latency of function calls: p50 [\d.]/ });
    let isSeen = false;
    const seen = chart.waitFor().then(() => (isSeen = true));
    // Each scrape sees the calls since the one before.
    // Several scrapes, so that the screenshot has lines.
    for (let calls = 0; calls < 60 || !isSeen; calls += 1) await Promise.all([page.request.get(`${config.url}/fn/hello/`), page.waitForTimeout(100)]);
    await seen;
    await page.getByRole('img', { name: /^Rate per second: function calls [\d.]/ }).waitFor();
    await inspect(page, 'overview-traffic');
  });
}

async function functionsAreCalled() {
  await open('dark', WIDE, async (page) => {
    await visit(page, 'functions/classify-digits', 'classify-digits');
    const call = card(page, 'Call');
    await call.getByLabel('Method').selectOption('POST');
    await call.getByLabel('Headers').fill('content-type: image/png');
    await call.getByLabel('or a file').setInputFiles(config.digit);
    await call.getByRole('button', { name: 'Send' }).click();
    await call.getByText('200 OK').waitFor();
    assert.match(await call.getByLabel('Body of the response').textContent(), /"digit":\s*7/);
    await call.getByText(/^\d+ headers$/).click();
    assert.match(await call.getByLabel('Headers of the response').textContent(), /^weir-request-id: /m);
    await inspect(page, 'function-called');

    await call.getByRole('link', { name: 'Show its timeline and placement' }).click();
    await page.getByRole('heading', { level: 1, name: 'Call', exact: true }).waitFor();
    const phases = page.getByRole('region', { name: 'Timeline of the call' });
    await phases.getByRole('row', { name: /^whole call 0 s / }).waitFor();
    await page.getByRole('img', { name: /^Estimated: / }).waitFor();
    await page.getByRole('img', { name: /^Actual: .*run / }).waitFor();
    if (config.suite === 'cluster') {
      // The devices of the other two nodes.
      await card(page, 'Alternatives').first().getByRole('row').nth(3).waitFor();
    }
    await inspect(page, 'call');

    await visit(page, 'functions/classify-digits', 'classify-digits');
    await call.getByLabel('Headers').fill('no colon');
    await call.getByRole('button', { name: 'Send' }).click();
    await call.getByText('is not NAME: VALUE').waitFor();

    // A response is shown as text: markup of a function does nothing here.
    await visit(page, 'functions/no-such-function', 'no-such-function');
    await page.getByText('there is no function no-such-function').waitFor();
    await inspect(page, 'function-unknown');
  });
}

async function logsFollowCalls() {
  await open('light', WIDE, async (page) => {
    await visit(page, 'functions/misbehave', 'misbehave');
    const log = page.getByRole('log');
    await page.request.get(`${config.url}/fn/misbehave/trap`);
    await log.getByText('on purpose').first().waitFor();
    const before = await log.getByText('on purpose').count();
    await page.request.get(`${config.url}/fn/misbehave/trap`);
    await log.getByText('on purpose').nth(before).waitFor();
    await inspect(page, 'function-log');
  });
}

async function versionsAreRolledBack() {
  await open('light', NARROW, async (page) => {
    await visit(page, 'functions/hello', 'hello');
    const active = async () => (await (await page.request.get(`${config.url}/v1/functions/hello`)).json()).version;
    const was = await active();
    const versions = page.getByRole('region', { name: 'Versions' }).first();
    await versions.getByRole('button', { name: 'Activate version 1' }).click();
    assert.equal(await active(), was, 'nothing changes before the confirmation');
    await versions.getByRole('button', { name: 'Yes' }).click();
    await versions.getByRole('button', { name: `Activate version ${was}` }).waitFor();
    assert.equal(await active(), 1);
  });
}

async function modelsAndWorkflowsRun() {
  await open('light', WIDE, async (page) => {
    for (const [fragment, name] of [['models/digits', 'digits'], ['workflows/cascade', 'cascade']]) {
      await visit(page, fragment, name);
      const run = card(page, 'Run');
      await run.getByRole('button', { name: 'Run' }).click();
      await run.getByText('200 OK').waitFor();
      const body = JSON.parse(await run.getByLabel('Body of the response').textContent());
      assert.equal(body.outputs[0].name, 'probabilities');
      await inspect(page, `${name}-run`);
      await run.getByLabel(/^Body of POST/).fill('{');
      await run.getByRole('button', { name: 'Run' }).click();
      await run.getByText('400 Bad Request').waitFor();
    }
  });
}

async function invocationsRunLater() {
  await open('dark', WIDE, async (page) => {
    await visit(page, 'functions/hello', 'hello');
    await page.getByLabel('Run it later').check();
    await page.getByRole('button', { name: 'Send' }).click();
    await page.getByRole('link', { name: 'Show the invocation' }).click();
    const state = card(page, 'State');
    await state.getByText('done', { exact: true }).waitFor();
    await page.getByRole('button', { name: 'Show the result' }).click();
    await card(page, 'Result').getByText('200 OK').waitFor();
    await page.getByRole('region', { name: 'Times of the invocation' }).getByRole('row', { name: /^Attempt / }).waitFor();
    await page.getByRole('region', { name: 'Timeline of the call' }).getByRole('row', { name: /^run the function / }).waitFor();
    await card(page, 'Placement').getByText(/no placement/).waitFor();
    await inspect(page, 'invocation');

    await visit(page, 'invocations', 'Invocations');
    const list = card(page, 'Asynchronous invocations').first();
    await list.getByLabel('Status').selectOption('dead');
    await list.getByText('No invocation matches').waitFor();
    await page.getByLabel('Id', { exact: true }).fill('unknown-id');
    await page.getByRole('button', { name: 'Find' }).click();
    await page.getByText('weir why unknown-id', { exact: true }).waitFor();
    await inspect(page, 'placement-unknown');
  });
}

async function callsAreSearched() {
  await open('light', WIDE, async (page) => {
    const failed = await page.request.get(`${config.url}/fn/misbehave/trap`, { headers: { 'weir-explain': '1' } });
    const id = failed.headers()['weir-request-id'];
    await visit(page, 'invocations', 'Invocations');
    const recent = card(page, 'Recent calls').first();
    await recent.getByRole('link', { name: id }).waitFor();
    await recent.getByLabel('Outcome').selectOption('ok');
    await recent.getByRole('link', { name: 'hello' }).first().waitFor();
    assert.equal(await recent.getByRole('link', { name: id }).count(), 0, 'a failed call is listed as ok');
    await recent.getByLabel('Outcome').selectOption('failed');
    await recent.getByLabel('Name').fill('misbehave');
    await recent.getByRole('row', { name: /misbehave function .*guest-trap/ }).first().waitFor();
    await inspect(page, 'calls-failed');
    await recent.getByLabel('Kind').selectOption('workflow');
    await recent.getByText('No call matches').waitFor();

    const find = async (given) => {
      await page.getByLabel('Id', { exact: true }).fill(given);
      await page.getByRole('button', { name: 'Find' }).click();
    };
    await find(id);
    await page.getByRole('heading', { level: 1, name: 'Call', exact: true }).waitFor();
    await card(page, 'Phases').getByText('guest-trap').first().waitFor();
    const later = await page.request.get(`${config.url}/fn/hello/`, { headers: { prefer: 'respond-async' } });
    await visit(page, 'invocations', 'Invocations');
    await find((await later.json()).id);
    await page.getByRole('heading', { level: 1, name: /^Invocation / }).waitFor();
  });
}

/** The calls of the other checks loaded the component and the model once. */
async function coldStartsHaveCauses() {
  await open('dark', WIDE, async (page) => {
    await visit(page, 'functions/classify-digits', 'classify-digits');
    const starts = page.getByRole('region', { name: 'Cold starts by cause' });
    await starts.getByRole('row', { name: /^model loaded for the first time (disk|host memory) 1/ }).waitFor();
    await visit(page, 'models/digits', 'digits');
    await starts.getByRole('row', { name: /^model loaded for the first time (disk|host memory) 1/ }).waitFor();
    await visit(page, 'overview', 'Overview');
    await page.getByRole('img', { name: /^Memory of cpu: .*digits:1 [\d.]+ KiB.*free for models/ }).waitFor();
  });
}

async function runsOfWorkflowsHaveTimes() {
  for (const [scheme, viewport] of [['light', WIDE], ['dark', NARROW]]) {
    await open(scheme, viewport, async (page) => {
      await visit(page, 'workflows/cascade', 'cascade');
      const run = page.getByLabel('Times of a recent run');
      // The run before sent an invalid body, so that no step ran.
      const complete = run.locator('option', { hasText: /version 1, [\d.]+ [mµ]?s$/ }).first();
      await complete.waitFor({ state: 'attached' });
      await run.selectOption(await complete.getAttribute('value'));
      const steps = page.getByRole('region', { name: 'Steps of the run' });
      await steps.getByRole('row', { name: /^prepare .* [\d.]+ [mµ]?s [\d.]+ %/ }).waitFor();
      await page.getByRole('img', { name: /prepare reads .*, and took [\d.]+ [mµ]?s/ }).waitFor();
      await inspect(page, `workflow-run-${scheme}`);
      await page.getByRole('link', { name: 'Show its phases and placement' }).click();
      const phases = page.getByRole('region', { name: 'Timeline of the call' });
      await phases.getByRole('row', { name: /^step prepare / }).waitFor();
      await inspect(page, `workflow-call-${scheme}`);
    });
  }
}

async function quotasAreShown() {
  await open('light', WIDE, async (page) => {
    await visit(page, 'tenants', 'Tenants');
    const quotas = page.getByRole('region', { name: 'Use of the quotas of default' });
    await quotas.getByRole('row', { name: /^Objects .*0 10,000 / }).waitFor();
    await quotas.getByRole('row', { name: /^Triggers .*1 200 / }).waitFor();
    await quotas.getByRole('meter', { name: 'Triggers, used part', exact: true }).waitFor();
  });
}

async function operator() {
  for (const [scheme, viewport] of [['light', WIDE], ['dark', NARROW]]) {
    await open(scheme, viewport, async (page) => {
      await visit(page, 'overview', 'Token');
      await page.getByLabel('Token', { exact: true }).fill(config.token);
      await page.getByRole('button', { name: 'Use the token' }).click();
      const all = card(page, 'All tenants').first();
      await all.getByRole('row', { name: /^acme / }).waitFor();
      assert.equal(await page.getByRole('link', { name: 'Functions' }).count(), 0, 'the operator has no functions');
      await all.getByRole('button', { name: 'Show the quotas of other' }).click();
      const quotas = page.getByRole('region', { name: 'Use of the quotas of other' });
      await quotas.getByRole('row', { name: /^Functions, models and workflows .*1 2 / }).waitFor();
      await inspect(page, `operator-${scheme}`);
    });
  }
}

async function keyboardAndColours() {
  await open('light', WIDE, async (page, context) => {
    await visit(page, 'overview', 'Overview');
    await page.getByLabel('Colours').selectOption('dark');
    const back = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const dark = await back();
    await page.reload();
    assert.equal(await back(), dark, 'the choice is kept');
    await page.getByLabel('Colours').selectOption('light');
    assert.notEqual(await back(), dark);

    await page.reload();
    await page.getByRole('heading', { level: 1 }).waitFor();
    await page.evaluate(() => document.activeElement.blur());
    await page.keyboard.press('Tab');
    assert.equal(await page.evaluate(() => document.activeElement.textContent), 'Skip to the content');
    await page.keyboard.press('Tab');
    await page.keyboard.press('Tab');
    await page.keyboard.press('Tab');
    await page.keyboard.press('Enter');
    await page.getByRole('heading', { level: 1, name: 'Functions' }).waitFor();
    // The new page takes the focus, in an effect that may follow the frame that shows the heading.
    await page.waitForFunction(() => document.activeElement.tagName === 'H1');
    assert.deepEqual(await context.cookies(), []);
  });
}

async function tokens() {
  await open('dark', NARROW, async (page, context) => {
    await visit(page, 'functions', 'Token');
    await inspect(page, 'token');
    await page.getByLabel('Token', { exact: true }).fill('0000000000000000');
    await page.getByRole('button', { name: 'Use the token' }).click();
    await page.getByText('does not know the token').waitFor();
    await page.getByLabel('Token', { exact: true }).fill(config.token);
    await page.getByRole('button', { name: 'Use the token' }).click();
    await page.getByRole('link', { name: 'hello' }).waitFor();
    const kept = await page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie, location.href]));
    assert.ok(!kept.includes(config.token), 'the token was stored');
    assert.deepEqual(await context.cookies(), []);
    await page.reload();
    await page.getByRole('heading', { level: 1, name: 'Token' }).waitFor();
  });
}

async function empty() {
  await open('light', NARROW, async (page) => {
    for (const [fragment, heading, command] of [
      ['overview', 'Overview', 'weir new greet'],
      ['functions', 'Functions', 'weir new greet'],
      ['models', 'Models', 'weir models push'],
      ['workflows', 'Workflows', 'weir workflows deploy'],
      ['triggers', 'Triggers', 'weir triggers create'],
      ['invocations', 'Invocations', 'prefer: respond-async'],
      ['secrets', 'Secrets', 'weir secrets set'],
      ['tenants', 'Tenants', 'weir models push'],
    ]) {
      await visit(page, fragment, heading);
      await page.locator('.command code', { hasText: command }).waitFor();
      await inspect(page, `${fragment}-empty`);
    }
  });
}

async function cluster() {
  for (const scheme of ['light', 'dark']) {
    await open(scheme, WIDE, async (page) => {
      await visit(page, 'overview', 'Overview');
      const nodes = card(page, 'Cluster').first();
      await nodes.getByText('dispatcher', { exact: true }).waitFor();
      await nodes.getByText('this node', { exact: true }).waitFor();
      for (const node of config.nodes) {
        await page.getByRole('img', { name: /^Memory of cpu: / }).first().waitFor();
        await card(page, `Devices of node ${node}`).waitFor();
      }
      await inspect(page, `cluster-${scheme}`);
    });
  }
  await everyPage();
}

const SUITES = {
  node: [
    everyPage,
    chartsFollowTheTraffic,
    functionsAreCalled,
    logsFollowCalls,
    modelsAndWorkflowsRun,
    runsOfWorkflowsHaveTimes,
    coldStartsHaveCauses,
    callsAreSearched,
    quotasAreShown,
    invocationsRunLater,
    keyboardAndColours,
    versionsAreRolledBack,
  ],
  triggers: [triggers.pagesShowTriggers, triggers.triggersAreManaged, triggers.requestsAreSentByHand, triggers.canaryIsCompared],
  secrets: [secrets.pagesShowSecrets, secrets.valuesAreSet, secrets.fileIsStored, secrets.secretsAreDeleted],
  scopes: [secrets.errorsOfScopesAreShown],
  tokens: [tokens],
  operator: [operator],
  empty: [empty],
  cluster: [cluster, functionsAreCalled],
};

try {
  for (const check of SUITES[config.suite]) {
    console.log(check.name);
    await check();
  }
} finally {
  await browser.close();
}
