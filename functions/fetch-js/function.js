/** Sends requests, for tests: `?url=...`, any number of them, at once, with the method and the body of the one that it answers. */

import { httpFunction, Response } from "weir/http";

export const handler = httpFunction(async (request) => {
  const body = request.method === "GET" ? null : await request.bytes();
  const urls = request.query.getAll("url");
  const init = { method: request.method, headers: { "x-asked-by": "fetch-js" }, body };
  try {
    const responses = await Promise.all(urls.map((url) => fetch(url, init)));
    // One is passed on as it is; of more, the texts are.
    return responses.length === 1 ? responses[0] : await Promise.all(responses.map((response) => response.text()));
  } catch (error) {
    return new Response(`${error}\n`, { status: 502 });
  }
});
