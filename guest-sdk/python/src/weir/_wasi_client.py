"""Requests to other servers over ``wasi:http`` 0.2."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from componentize_py_types import Err
from wit_world.imports import outgoing_handler, streams, types

from weir._headers import Headers
from weir.errors import DeadlineExceeded, NotGranted

if TYPE_CHECKING:
    from weir.client import Outgoing

READ_BYTES = 1 << 20
# Largest write that `blocking-write-and-flush` accepts.
WRITE_BYTES = 4096
_NANOSECONDS = 1_000_000_000
#: A longest time in seconds, a century. Longer ones, such as infinity, have no number of nanoseconds.
_TIMEOUT_MAX = 3_155_760_000
_METHODS = {name: getattr(types, f"Method_{name.title()}") for name in "GET HEAD POST PUT DELETE CONNECT OPTIONS TRACE PATCH".split()}
_TIMEOUTS = (types.ErrorCode_ConnectionTimeout, types.ErrorCode_ConnectionReadTimeout, types.ErrorCode_HttpResponseTimeout)


def send(outgoing: Outgoing) -> types.FutureIncomingResponse:
    """Sends a request without waiting for its response."""
    parts = urlsplit(outgoing.url)
    with _failing(outgoing):
        raw = types.OutgoingRequest(_fields(outgoing))
        raw.set_method(_METHODS[outgoing.method]() if outgoing.method in _METHODS else types.Method_Other(outgoing.method))
        raw.set_scheme(types.Scheme_Https() if parts.scheme == "https" else types.Scheme_Http())
        raw.set_authority(parts.netloc)
        raw.set_path_with_query((parts.path or "/") + (f"?{parts.query}" if parts.query else ""))
        body = raw.body()
        sent = outgoing_handler.handle(raw, _options(outgoing.timeout))
    try:
        with body.write() as stream:
            for at in range(0, len(outgoing.body), WRITE_BYTES):
                stream.blocking_write_and_flush(outgoing.body[at : at + WRITE_BYTES])
        types.OutgoingBody.finish(body, None)
    except Err:
        # The server may respond before it has read the whole body. If it does not respond, the
        # response has the error.
        pass
    return sent


def receive(
    outgoing: Outgoing, sent: types.FutureIncomingResponse, is_wanted: Callable[[int, Headers], bool]
) -> tuple[int, list[tuple[str, str]], bytes]:
    """Waits for the response. Reads its body only if ``is_wanted``."""
    with sent.subscribe() as ready:
        ready.block()
    with _failing(outgoing), sent:
        # The outer result is an error only for a response that was taken before.
        result = sent.get().value
        if isinstance(result, Err):
            raise result
        with result.value as response:
            with response.headers() as fields:
                headers = [(name, value.decode("utf-8", "replace")) for name, value in fields.entries()]
            status = response.status()
            body = _body(outgoing, response.consume()) if is_wanted(status, Headers(headers)) else b""
    return status, headers, body


def _fields(outgoing: Outgoing) -> types.Fields:
    try:
        return types.Fields.from_list([(name, str(value).encode()) for name, value in outgoing.headers])
    except Err as refusal:
        why = _words(refusal.value)
        raise outgoing.failed(f"a header cannot be sent ({why}): {', '.join(name for name, _ in outgoing.headers)}") from None


def _options(timeout: float | None) -> types.RequestOptions | None:
    if timeout is None:
        return None
    options = types.RequestOptions()
    duration = int(min(timeout, _TIMEOUT_MAX) * _NANOSECONDS)
    options.set_connect_timeout(duration)
    options.set_first_byte_timeout(duration)
    options.set_between_bytes_timeout(duration)
    return options


def _body(outgoing: Outgoing, body: types.IncomingBody) -> bytes:
    chunks = []
    with body, body.stream() as stream:
        while True:
            try:
                chunks.append(stream.blocking_read(READ_BYTES))
            except Err as end:
                if isinstance(end.value, streams.StreamError_Closed):
                    return b"".join(chunks)
                why = end.value.value.to_debug_string().split("\n", 1)[0]
                raise outgoing.failed(f"the response broke off: {why}") from None


@contextmanager
def _failing(outgoing: Outgoing) -> Iterator[None]:
    """Converts errors of the node."""
    try:
        yield
    except Err as refusal:
        code = refusal.value
        if isinstance(code, types.ErrorCode_HttpRequestDenied):
            host = urlsplit(outgoing.url).netloc
            raise NotGranted(
                f"the function may not send requests to {host}: outbound_hosts = [\"{host}\"] in weir.toml grants it"
            ) from None
        if isinstance(code, _TIMEOUTS):
            raise DeadlineExceeded(f"{outgoing.method} {outgoing.url} had no response in time: {_words(code)}") from None
        raise outgoing.failed(_words(code)) from None


def _words(code: object) -> str:
    """``connection refused`` for ``ErrorCode_ConnectionRefused``, with its detail if there is one."""
    name = type(code).__name__.partition("_")[2] or "the request is invalid"
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()
    detail = getattr(code, "value", None)
    return f"{words}: {detail}" if isinstance(detail, str) else words
