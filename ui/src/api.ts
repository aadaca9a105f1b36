// Requests to the API of the node that serves the page. The token lives in this module only: it is
// never stored, because functions are served from the same origin and could read the storage.

export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    text: string,
  ) {
    super(text);
  }
}

let token: string | undefined;

export function setToken(given: string | undefined): void {
  token = given;
}

export function hasToken(): boolean {
  return token !== undefined;
}

/** Sends a request and returns the response of any status. */
export function send(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  // Not `authorization`, which belongs to the function that is called.
  if (token !== undefined) headers.set('weir-token', token);
  return fetch(path, { ...init, headers, credentials: 'omit', cache: 'no-store' });
}

/** Sends a request, and throws an `ApiError` for a status of 400 or more. */
export async function request(path: string, init: RequestInit = {}): Promise<Response> {
  let response: Response;
  try {
    response = await send(path, init);
  } catch (error) {
    if (error instanceof DOMException && error.name === 'AbortError') throw error;
    throw new ApiError(0, 'unreachable', 'The node does not answer. Is it running?');
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

async function errorOf(response: Response): Promise<ApiError> {
  const code = response.headers.get('weir-error') ?? String(response.status);
  const text = await response.text().catch(() => '');
  try {
    const body: unknown = JSON.parse(text);
    if (typeof body === 'object' && body !== null && 'error' in body && typeof body.error === 'string') {
      return new ApiError(response.status, code, body.error);
    }
  } catch {
    // Not an error of the API, but of a proxy before the node.
  }
  return new ApiError(response.status, code, text || response.statusText);
}

export async function getJson<T>(path: string, signal?: AbortSignal): Promise<T> {
  const response = await request(path, signal ? { signal } : {});
  return (await response.json()) as T;
}

export async function getText(path: string, signal?: AbortSignal): Promise<string> {
  const response = await request(path, signal ? { signal } : {});
  return response.text();
}

export async function postJson<T>(path: string, body: unknown): Promise<T> {
  const headers = { 'content-type': 'application/json' };
  const response = await request(path, { method: 'POST', headers, body: JSON.stringify(body) });
  return (await response.json()) as T;
}

/** Yields the values of newline-delimited JSON until the response or the signal ends. */
export async function* follow<T>(path: string, signal: AbortSignal): AsyncGenerator<T> {
  const response = await request(path, { signal });
  if (response.body === null) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split('\n');
    rest = lines.pop() ?? '';
    for (const line of lines) {
      // Empty lines keep the connection open.
      if (line.trim() !== '') yield JSON.parse(line) as T;
    }
  }
}

/** Body of a response, at most `bytesMax` of it. */
export async function bodyOf(
  response: Response,
  bytesMax: number,
): Promise<{ bytes: Uint8Array; isCut: boolean }> {
  if (response.body === null) return { bytes: new Uint8Array(), isCut: false };
  const reader = response.body.getReader();
  const chunks: Uint8Array[] = [];
  let length = 0;
  let isCut = false;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    const room = bytesMax - length;
    chunks.push(value.subarray(0, room));
    length += Math.min(value.length, room);
    if (value.length > room) {
      isCut = true;
      await reader.cancel();
      break;
    }
  }
  const bytes = new Uint8Array(length);
  let at = 0;
  for (const chunk of chunks) {
    bytes.set(chunk, at);
    at += chunk.length;
  }
  return { bytes, isCut };
}
