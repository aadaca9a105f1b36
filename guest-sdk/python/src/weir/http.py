"""HTTP requests and responses, of the function itself and of other servers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar
from urllib.parse import parse_qsl

from weir import elements
from weir._headers import Headers
from weir._wit import IN_COMPONENT
from weir.client import ClientResponse, PendingResponse, fetch, get, post
from weir.coroutines import finish
from weir.elements import ElementType
from weir.errors import Error, ResourceExhausted, StatusError, Unavailable
from weir.streams import Chunks, Event, NotAllowed, encode_events
from weir.tensors import OPEN, Tensor

if IN_COMPONENT:
    from weir import _wasi_http

__all__ = [
    "ClientResponse",
    "Event",
    "EventStream",
    "PendingResponse",
    "Request",
    "Response",
    "fetch",
    "get",
    "http_function",
    "post",
]


class Request:
    """The request to answer. Tests create one with ``Request("POST", "/shout?loud=1",
    body=b"hi")``.
    """

    def __init__(
        self,
        method: str = "GET",
        target: str = "/",
        headers: Mapping[str, str] | Sequence[tuple[str, str]] = (),
        body: bytes | Callable[[], bytes] = b"",
    ) -> None:
        #: Method in capitals: ``GET``, ``POST``, ...
        self.method = method
        #: Path within the function, as sent: percent-encoded, with the leading slash and without the
        #: query.
        self.path, _, self.query_string = target.partition("?")
        self.headers = Headers(list(headers.items()) if isinstance(headers, Mapping) else headers)
        self._body = body

    @property
    def query(self) -> dict[str, str]:
        """Decoded query. Of a repeated key, holds the last value."""
        return dict(parse_qsl(self.query_string, keep_blank_values=True))

    def body(self) -> bytes:
        """The whole body. Enters guest memory on the first call."""
        if callable(self._body):
            self._body = self._body()
        return self._body

    def text(self) -> str:
        """The body as text. The error is a 400 response if the body is not UTF-8."""
        try:
            return self.body().decode()
        except UnicodeDecodeError as error:
            raise StatusError(400, f"the body is no text: {error}") from None

    def json(self) -> object:
        """The body as JSON. The error is a 400 response if the body is not JSON."""
        try:
            return json.loads(self.body())
        except ValueError as error:
            raise StatusError(400, f"the body is no JSON: {error}") from None

    def tensor(self, element_type: ElementType | str, shape: Sequence[int] = (OPEN,)) -> Tensor:
        """Takes the body as a tensor, without reading it into guest memory. One dimension may be
        -1.
        """
        element_type = elements.of(element_type)
        if callable(self._body) and IN_COMPONENT:
            return Tensor._of(_wasi_http.take_body(element_type, list(shape)))
        view = memoryview(self.body())
        return Tensor.from_bytes(element_type, _opened(element_type, shape, len(view)), view)


class Response:
    """A response.

    The body is text, bytes, a :class:`~weir.Tensor` (whose bytes stay on the node and do not enter
    guest memory), ``None`` for an empty body, a value that ``json.dumps`` accepts, or an iterator of
    text or bytes, such as a generator. The content type follows from the body unless ``headers`` sets
    one.

    The chunks of an iterator are sent as it gives them, and it may be asynchronous. It advances when
    the node has taken the last chunk, so a slow client holds it back. The response starts with the
    first chunk: an :class:`~weir.Error` raised before it becomes the response. A later exception cuts
    the body off.
    """

    def __init__(
        self, body: object = None, status: int = 200, headers: Mapping[str, str] | Sequence[tuple[str, str]] = ()
    ) -> None:
        if not isinstance(status, int):
            raise NotAllowed(f"the status is of {type(status).__name__} and not an int")
        if not 200 <= status <= 599:
            raise NotAllowed(f"a status or header is not allowed: {status} is not from 200 to 599")
        self.status = status
        self.headers = list(headers.items()) if isinstance(headers, Mapping) else list(headers)
        for name, value in self.headers:
            if not isinstance(name, str) or not isinstance(value, str):
                raise NotAllowed(f"the header {name!r} is {value!r}: name and value have to be of str")
        content_type = None
        if isinstance(body, (Iterator, AsyncIterator)):
            # The content type is that of the first chunk.
            body = Chunks(body)
        elif isinstance(body, str):
            content_type, body = "text/plain; charset=utf-8", body.encode()
        elif isinstance(body, (bytes, bytearray, memoryview)):
            content_type, body = "application/octet-stream", bytes(body)
        elif isinstance(body, Tensor):
            _ = body._raw  # Raises if the tensor was closed.
            content_type = "application/octet-stream"
        elif body is None:
            body = b""
        else:
            content_type, body = "application/json", _json(body)
        self._default_type(content_type)
        #: Bytes, a tensor, or the chunks of a streamed body.
        self.body: bytes | Tensor | Chunks = body

    def _default_type(self, content_type: str | None) -> None:
        if content_type and not any(name.lower() == "content-type" for name, _ in self.headers):
            self.headers.append(("content-type", content_type))

    def start(self) -> None:
        """Runs a streamed body up to its first chunk."""
        if isinstance(self.body, Chunks):
            self.body.start()
            self._default_type("text/plain; charset=utf-8" if self.body.is_text else "application/octet-stream")

    @classmethod
    def of(cls, answer: object) -> Response:
        """Converts the result of a handler to a response."""
        if isinstance(answer, cls):
            return answer
        if isinstance(answer, Error):
            retry = [("retry-after", "1")] if isinstance(answer, (ResourceExhausted, Unavailable)) else []
            return cls(f"{answer}\n", answer.status, retry)
        return cls(answer)

    def text(self) -> str:
        """The body as text, for tests. Runs a streamed body to its end."""
        if isinstance(self.body, Chunks):
            self.body = b"".join(self.body)
        return (self.body.tobytes() if isinstance(self.body, Tensor) else self.body).decode()

    def json(self) -> object:
        """The body as JSON, for tests."""
        return json.loads(self.text())


class EventStream(Response):
    """A response of server-sent events, each sent as soon as ``events`` gives it::

        @http_function
        def count(request: Request):
            return EventStream(Event({"n": n}, event="count") for n in range(3))

    ``events`` is an iterable, which may be asynchronous, of :class:`Event` or of their data: text, or
    a value that becomes JSON.
    """

    def __init__(
        self,
        events: Iterable[object] | AsyncIterable[object],
        headers: Mapping[str, str] | Sequence[tuple[str, str]] = (),
    ) -> None:
        super().__init__(encode_events(events), headers=headers)
        self._default_type("text/event-stream")
        if not any(name.lower() == "cache-control" for name, _ in self.headers):
            self.headers.append(("cache-control", "no-cache"))


def _json(body: object) -> bytes:
    try:
        # JSON has no form for NaN and infinities.
        return json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise NotAllowed(str(error)) from error


Handler = TypeVar("Handler", bound=Callable[[Request], object])


def http_function(handler: Handler) -> Handler:
    """Makes an HTTP component of ``handler``, which takes a :class:`Request` and returns a
    :class:`Response` or a value that converts to one. Use it once, in ``app.py``.

    An :class:`~weir.Error` raised by the handler becomes the response. The handler may be a
    coroutine, and remains an ordinary function.
    """
    if IN_COMPONENT:

        class IncomingHandler:
            def handle(self, request: object, out: object) -> None:
                try:
                    response = answer(handler, Request(*_wasi_http.read(request)))
                except NotAllowed as error:
                    _wasi_http.refuse(error, out)
                else:
                    _wasi_http.send(response, out)

        # componentize-py looks up the world's export under this name.
        handler.__globals__["IncomingHandler"] = IncomingHandler
    return handler


def answer(handler: Callable[[Request], object], request: Request) -> Response:
    """Calls ``handler`` in the same way as the node."""
    try:
        given = finish(handler(request))
    except Error as error:
        return Response.of(error)
    try:
        response = Response.of(given)
    except (TypeError, ValueError) as error:
        raise NotAllowed(f"the handler gave what can be no answer: {error}") from error
    try:
        response.start()
    except Error as error:
        return Response.of(error)
    return response


def _opened(element_type: ElementType, shape: Sequence[int], length: int) -> list[int]:
    """Outside a component: ``shape`` with its open dimension inferred."""
    size = len(Tensor([0], element_type=element_type).tobytes())
    rest = size
    for dimension in shape:
        rest *= 1 if dimension == OPEN else dimension
    return [length // max(rest, 1) if dimension == OPEN else dimension for dimension in shape]
