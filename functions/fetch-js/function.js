/**
 * Sends requests, for tests: any number of `?url=...`, concurrently, with the method and body of
 * the incoming request. `?timeout=` and `?abort=` end them after a number of seconds.
 */

import { httpFunction, Response } from "weir/http";

export const handler = httpFunction(async (request) => {
  const body = request.method === "GET" ? null : await request.bytes();
  const urls = request.query.getAll("url");
  const { signal } = stopwatch(request.query);
  const init = { method: request.method, headers: { "x-asked-by": "fetch-js" }, body, signal };
  try {
    const responses = await Promise.all(urls.map((url) => fetch(url, init)));
    // A single response is passed on unchanged; of several, the texts.
    return responses.length === 1 ? responses[0] : await Promise.all(responses.map((response) => response.text()));
  } catch (error) {
    return new Response(`${error}\n`, { status: 502 });
  }
});

/** What ends the requests. */
function stopwatch(query) {
  if (query.has("timeout")) return { signal: AbortSignal.timeout(1000 * query.get("timeout")) };
  const controller = new AbortController();
  if (query.has("abort")) setTimeout(() => controller.abort(), 1000 * query.get("abort"));
  return controller;
}
