/** Streams its response, like ../stream-py: the path selects what. */

import { env, StatusError } from "weir";
import { type Answer, Event, EventStream, httpFunction, type Request, Response } from "weir/http";

const CHUNK = "x".repeat(65_536);

export function handle(request: Request): Answer {
  const count = Number(request.query.get("count") ?? 3);
  switch (request.path) {
    case "/text":
      return text(count);
    case "/events":
      return new EventStream(events(count, Number(request.query.get("pause") ?? 0.3)), { headers: { "x-count": String(count) } });
    case "/async":
      return new EventStream(Array.from({ length: count }, (_, n) => n));
    case "/flood":
      return new Response(flood(count), { headers: { "content-type": "text/plain" } });
    case "/early":
      return late(0);
    case "/late":
      return late(count);
    case "/env":
      return { greeting: env.GREETING, names: Object.keys(env) };
    case "/timers":
      return timers();
  }
  return new Response(`no stream called ${request.path}\n`, { status: 404 });
}

function* text(count: number): Generator<string> {
  for (let n = 0; n < count; n++) yield `${n}\n`;
}

async function* events(count: number, pause: number): AsyncGenerator<Event> {
  for (let n = 0; n < count; n++) {
    // Each event arrives before the next one exists.
    if (n > 0) await slept(pause * 1000);
    yield new Event({ n, text: "one\ntwo" }, { event: "count", id: String(n), retry: 1000 });
  }
  yield new Event("one\ntwo");
}

function* flood(count: number): Generator<string> {
  for (let n = 0; n < count; n++) {
    console.log(`chunk ${n}`);
    yield CHUNK;
  }
}

function* late(count: number): Generator<string> {
  yield* text(count);
  throw new StatusError(404, "nothing more");
}

function slept(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

/** The order in which timers run. One of them is cleared, and one is later than the response. */
async function timers(): Promise<string[]> {
  const ran: string[] = [];
  const started = Date.now();
  setTimeout((name) => ran.push(name), 60, "second");
  setTimeout(() => ran.push("first"), 20);
  clearTimeout(setTimeout(() => ran.push("cleared"), 30));
  setTimeout(() => ran.push("late"), 60_000);
  const interval = setInterval(() => ran.push("interval"), 35);
  await slept(100);
  clearInterval(interval);
  await slept(50);
  ran.push(Date.now() - started >= 150 ? "waited" : "did not wait");
  return ran;
}

export const handler = httpFunction(handle);
