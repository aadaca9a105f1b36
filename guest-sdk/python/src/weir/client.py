"""Requests to other servers.

The node sends them, and allows only the hosts in ``outbound_hosts`` of the manifest. This package's
:mod:`weir.http` has the functions.
"""

from __future__ import annotations

import json as _json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import SplitResult, quote, urlencode, urljoin, urlsplit

from weir import _memory
from weir._headers import Headers
from weir._wit import IN_COMPONENT
from weir.errors import InvalidRun, RequestFailed

if IN_COMPONENT:
    from weir import _wasi_client

__all__ = ["ClientResponse", "Outgoing", "PendingResponse", "fetch", "get", "post"]

#: Headers by name, or as pairs.
HeadersInit = Mapping[str, str] | Sequence[tuple[str, str]]

# Limit of the Fetch standard.
_REDIRECTS_MAX = 20
_REDIRECTS = (301, 302, 303, 307, 308)
# Characters that are already as they are sent.
_UNQUOTED = "!#$%&'()*+,/:;=?@[]~"
# Of a request that goes to another server than before.
_SECRETS = ("authorization", "cookie", "proxy-authorization")


@dataclass(frozen=True)
class Outgoing:
    """A request as it is sent."""

    method: str
    url: str
    headers: list[tuple[str, str]]
    body: bytes
    timeout: float | None

    def failed(self, why: str) -> RequestFailed:
        """The error of the request."""
        return RequestFailed(f"{self.method} {self.url} failed: {why}")


def get(
    url: str, *, params: Mapping[str, str] | None = None, headers: HeadersInit = (), timeout: float | None = None, redirects: bool = True
) -> ClientResponse:
    """Sends a ``GET`` request and waits for its response. See :func:`fetch`."""
    return fetch(url, params=params, headers=headers, timeout=timeout, redirects=redirects).result()


def post(
    url: str,
    body: str | bytes | None = None,
    *,
    json: object = None,
    params: Mapping[str, str] | None = None,
    headers: HeadersInit = (),
    timeout: float | None = None,
    redirects: bool = True,
) -> ClientResponse:
    """Sends a ``POST`` request and waits for its response. See :func:`fetch`."""
    return fetch(
        url, "POST", body=body, json=json, params=params, headers=headers, timeout=timeout, redirects=redirects
    ).result()


def fetch(
    url: str,
    method: str = "GET",
    *,
    body: str | bytes | None = None,
    json: object = None,
    params: Mapping[str, str] | None = None,
    headers: HeadersInit = (),
    timeout: float | None = None,
    redirects: bool = True,
) -> PendingResponse:
    """Sends a request and returns without waiting for its response, so that several requests take as
    long as the longest: ``a, b = await weir.gather(fetch(one), fetch(other))``.

    ``json`` is a value that becomes the body as JSON. ``params`` are added to the URL's query.
    ``timeout``, in seconds, limits the time to connect, the time until the response starts, and each
    pause in it. ``redirects`` are followed unless it is false.

    An error status is a response. Raises :class:`~weir.RequestFailed` if there is no response,
    :class:`~weir.NotGranted` if the manifest does not grant the host, and
    :class:`~weir.DeadlineExceeded` after the timeout.
    """
    method, parts = method.upper(), _parsed(url)
    if params:
        query = "&".join(filter(None, [parts.query, urlencode(params)]))
        parts = parts._replace(query=query)
    listed = list(headers.items()) if isinstance(headers, Mapping) else list(headers)
    encoded, content_type = _encoded(body, json)
    known = {name.lower() for name, _ in listed}
    if content_type and "content-type" not in known:
        listed.append(("content-type", content_type))
    if "content-length" not in known and (encoded or method in ("POST", "PUT")):
        listed.append(("content-length", str(len(encoded))))
    if "user-agent" not in known:
        listed.append(("user-agent", "weir"))
    if timeout is not None and not timeout > 0:
        raise InvalidRun(f"the timeout is a positive number of seconds, and not {timeout!r}")
    outgoing = Outgoing(method, parts._replace(fragment="").geturl(), listed, encoded, timeout)
    return PendingResponse(outgoing, _send(outgoing), redirects)


class PendingResponse:
    """A request that was sent, similar to :class:`concurrent.futures.Future`. Dropping it ends the
    request.
    """

    def __init__(self, outgoing: Outgoing, sent: Any, redirects: bool) -> None:
        self._outgoing = outgoing
        self._sent = sent
        self._redirects = redirects
        self._response: ClientResponse | None = None

    def result(self) -> ClientResponse:
        """Waits for the response, with its body."""
        if self._response is None:
            self._response = self._receive()
        return self._response

    def __await__(self) -> Generator[None, None, ClientResponse]:
        yield  # Other coroutines send their requests before this one waits.
        return self.result()

    def _receive(self) -> ClientResponse:
        outgoing, sent = self._outgoing, self._sent
        for _ in range(_REDIRECTS_MAX + 1):
            status, pairs, body = _receive(outgoing, sent, lambda status, headers: not self._is_followed(status, headers))
            headers = Headers(pairs)
            if not self._is_followed(status, headers):
                return ClientResponse(outgoing.url, status, headers, body)
            outgoing = _redirected(outgoing, status, urljoin(outgoing.url, headers["location"]))
            sent = _send(outgoing)
        raise outgoing.failed(f"it redirects more than {_REDIRECTS_MAX} times")

    def _is_followed(self, status: int, headers: Headers) -> bool:
        return self._redirects and status in _REDIRECTS and "location" in headers


class ClientResponse:
    """The response of another server."""

    def __init__(self, url: str, status: int, headers: Headers, body: bytes) -> None:
        #: The URL, after redirects.
        self.url = url
        self.status = status
        self.headers = headers
        self._body = body

    @property
    def ok(self) -> bool:
        """Whether the status is a success."""
        return 200 <= self.status < 300

    def check(self) -> ClientResponse:
        """Returns the response, or raises :class:`~weir.RequestFailed` for an error status."""
        if self.status >= 400:
            start = self._body[:200].decode("utf-8", "replace").strip()
            raise RequestFailed(f"{self.url} answered with status {self.status}{': ' if start else ''}{start}")
        return self

    def body(self) -> bytes:
        """The whole body."""
        return self._body

    def text(self) -> str:
        """The body as text. Bytes that are not UTF-8 are replaced."""
        return self._body.decode("utf-8", "replace")

    def json(self) -> Any:
        """The body as JSON. Raises :class:`~weir.RequestFailed` if it is not."""
        try:
            return _json.loads(self._body)
        except ValueError as error:
            raise RequestFailed(f"the response of {self.url} is no JSON: {error}") from None


def _encoded(body: str | bytes | None, json: object) -> tuple[bytes, str | None]:
    if json is not None:
        if body is not None:
            raise InvalidRun("a request has either a body or json")
        return _json.dumps(json, separators=(",", ":"), allow_nan=False).encode(), "application/json"
    if isinstance(body, str):
        return body.encode(), "text/plain; charset=utf-8"
    return bytes(body or b""), None


def _parsed(url: str) -> SplitResult:
    """The parts of an absolute URL, with other characters than those of URLs quoted."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidRun(f"{url!r} is no URL of the form https://host/path")
    if parts.username is not None:
        raise InvalidRun("a URL with a password in it is not sent: use the header authorization")
    return parts._replace(path=quote(parts.path, _UNQUOTED), query=quote(parts.query, _UNQUOTED))


def _redirected(outgoing: Outgoing, status: int, url: str) -> Outgoing:
    """The request that follows a redirect with ``status`` to ``url``, after the Fetch standard."""
    before = urlsplit(outgoing.url)
    try:
        after = _parsed(url)
    except InvalidRun as error:
        raise outgoing.failed(f"it redirects to another URL, but {error}") from None
    dropped: tuple[str, ...] = ()
    as_get = outgoing.method not in ("GET", "HEAD") if status == 303 else outgoing.method == "POST" and status in (301, 302)
    if as_get:
        dropped += ("content-length", "content-type", "content-encoding")
    if (before.scheme, before.netloc) != (after.scheme, after.netloc):
        dropped += _SECRETS
    headers = [(name, value) for name, value in outgoing.headers if name.lower() not in dropped]
    changes = {"method": "GET", "body": b""} if as_get else {}
    return replace(outgoing, url=after._replace(fragment="").geturl(), headers=headers, **changes)


def _send(outgoing: Outgoing) -> Any:
    """Sends a request without waiting for its response."""
    if IN_COMPONENT:
        return _wasi_client.send(outgoing)
    if not _memory.SERVERS:
        raise outgoing.failed("a node sends requests; weir.testing.outbound answers them in tests")
    return _memory.SERVERS[-1](outgoing)


def _receive(outgoing: Outgoing, sent: Any, is_wanted: Any) -> tuple[int, list[tuple[str, str]], bytes]:
    """Waits for the response. Reads its body only if ``is_wanted``."""
    return _wasi_client.receive(outgoing, sent, is_wanted) if IN_COMPONENT else sent
