// Chromium for the suites: windows whose requests and messages are recorded, and checks that apply
// to every page.
import assert from 'node:assert/strict';
import { mkdirSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { chromium } from 'playwright-core';

export const config = JSON.parse(process.env.WEIR_DASHBOARD);
const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const origin = new URL(config.url).origin;
export const WIDE = { width: 1280, height: 900 };
export const NARROW = { width: 360, height: 780 };
const PATIENCE_MS = 30_000;
mkdirSync(config.screenshots, { recursive: true });

export const browser = await chromium.launch({
  executablePath: config.chromium,
  // Containers and root have no user namespaces for the browser's own sandbox.
  args: ['--no-sandbox', '--disable-dev-shm-usage'],
});

/** Opens a page whose requests and messages are recorded, and runs `work` with it. */
export async function open(scheme, viewport, work) {
  const context = await browser.newContext({ colorScheme: scheme, viewport, reducedMotion: 'reduce' });
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE_MS);
  const foreign = [];
  const messages = [];
  context.on('request', (request) => {
    if (new URL(request.url()).origin !== origin) foreign.push(request.url());
  });
  page.on('console', (message) => {
    // The browser reports each response with an error status, which some calls below ask for.
    if (message.type() === 'error' && !message.text().startsWith('Failed to load resource')) messages.push(message.text());
  });
  page.on('pageerror', (error) => messages.push(String(error)));
  await work(page, context);
  assert.deepEqual(foreign, [], 'requests left the node');
  assert.deepEqual(messages, [], 'the browser reported errors');
  await context.close();
}

/** Opens the page at a fragment and waits for its heading. */
export async function visit(page, fragment, heading) {
  await page.goto(`${config.url}/ui#/${fragment}`);
  await page.getByRole('heading', { level: 1, name: heading }).waitFor();
}

/** Takes a screenshot, and checks the accessibility and the width of the page. */
export async function inspect(page, name) {
  await page.screenshot({ path: join(config.screenshots, `${name}.png`), fullPage: true });
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => globalThis.axe.run());
  const serious = violations
    .filter(({ impact }) => impact === 'serious' || impact === 'critical')
    .map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html).slice(0, 3).join(' | ')}`);
  assert.deepEqual(serious, [], `${name} has accessibility violations`);
  const excess = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  assert.ok(excess <= 0, `${name} is ${excess} px wider than the window`);
}

/** Repeats `check` until it holds; what a node counts after its reply is seen a moment later. */
export async function eventually(expected, check) {
  const deadline = Date.now() + PATIENCE_MS;
  while (!(await check())) {
    assert.ok(Date.now() < deadline, `${expected} was not seen`);
    await new Promise((resolve) => { setTimeout(resolve, 50); });
  }
}

export const card = (page, name) => page.getByRole('region', { name, exact: true });

/**
 * Opens pages in light and dark, wide and narrow. A page is the name of its screenshots, its fragment,
 * its heading, and what it shows when it is complete.
 */
export async function inspectAll(pages) {
  for (const scheme of ['light', 'dark']) {
    for (const [size, viewport] of [['wide', WIDE], ['narrow', NARROW]]) {
      await open(scheme, viewport, async (page) => {
        for (const [name, fragment, heading, content] of pages) {
          await visit(page, fragment, heading);
          await content(page).first().waitFor();
          await inspect(page, `${name}-${scheme}-${size}`);
        }
      });
    }
  }
}
