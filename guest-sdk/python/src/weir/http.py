"""HTTP in and out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar
from urllib.parse import parse_qsl

from weir import elements
from weir._wit import IN_COMPONENT
from weir.coroutines import finish
from weir.elements import ElementType
from weir.errors import Error, ResourceExhausted, StatusError, Unavailable
from weir.tensors import OPEN, Tensor

if IN_COMPONENT:
    from weir import _wasi_http

__all__ = ["Request", "Response", "http_function"]


class Headers(Mapping[str, str]):
    """Headers by name, whatever its case; the first of several."""

    def __init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        self.pairs = list(pairs)

    def __getitem__(self, name: str) -> str:
        for key, value in self.pairs:
            if key.lower() == name.lower():
                return value
        raise KeyError(name)

    def __iter__(self):
        return iter({key.lower(): None for key, _ in self.pairs})

    def __len__(self) -> int:
        return len({key.lower() for key, _ in self.pairs})


class Request:
    """A request to answer. Tests make one as ``Request("POST", "/shout?loud=1", body=b"hi")``."""

    def __init__(
        self,
        method: str = "GET",
        target: str = "/",
        headers: Mapping[str, str] | Sequence[tuple[str, str]] = (),
        body: bytes | Callable[[], bytes] = b"",
    ) -> None:
        #: In capitals: ``GET``, ``POST``, ...
        self.method = method
        #: Within the function, as it was sent: percent-encoded, with the slash at its start and without the query.
        self.path, _, self.query_string = target.partition("?")
        self.headers = Headers(list(headers.items()) if isinstance(headers, Mapping) else headers)
        self._body = body

    @property
    def query(self) -> dict[str, str]:
        """The query, decoded; of a key that is there twice, the last value."""
        return dict(parse_qsl(self.query_string, keep_blank_values=True))

    def body(self) -> bytes:
        """The whole body. It enters the function's memory with the first call."""
        if callable(self._body):
            self._body = self._body()
        return self._body

    def text(self) -> str:
        """The body as text. Answers 400 where it is not UTF-8."""
        try:
            return self.body().decode()
        except UnicodeDecodeError as error:
            raise StatusError(400, f"the body is no text: {error}") from None

    def json(self) -> object:
        """The body as JSON. Answers 400 where it is none."""
        try:
            return json.loads(self.body())
        except ValueError as error:
            raise StatusError(400, f"the body is no JSON: {error}") from None

    def tensor(self, element_type: ElementType | str, shape: Sequence[int] = (OPEN,)) -> Tensor:
        """Take the body as a tensor, without reading it into the function's memory. One dimension may be -1."""
        element_type = elements.of(element_type)
        if callable(self._body) and IN_COMPONENT:
            return Tensor._of(_wasi_http.take_body(element_type, list(shape)))
        view = memoryview(self.body())
        return Tensor.from_bytes(element_type, _opened(element_type, shape, len(view)), view)


class NotAllowed(TypeError, ValueError):
    """What can be no answer: the call ends with an error of the function, and the log has where it was made."""


class Response:
    """An answer.

    The body is text, bytes, a :class:`~weir.Tensor` (whose bytes do not enter the function's memory), ``None`` for an empty one, or
    anything else that ``json.dumps`` takes. The content type follows from it unless ``headers`` has one.
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
        if isinstance(body, str):
            content_type, body = "text/plain; charset=utf-8", body.encode()
        elif isinstance(body, (bytes, bytearray, memoryview)):
            content_type, body = "application/octet-stream", bytes(body)
        elif isinstance(body, Tensor):
            _ = body._raw  # Not one that was closed.
            content_type = "application/octet-stream"
        elif body is None:
            body = b""
        else:
            content_type, body = "application/json", _json(body)
        if content_type and not any(name.lower() == "content-type" for name, _ in self.headers):
            self.headers.append(("content-type", content_type))
        #: Bytes, or a tensor.
        self.body: bytes | Tensor = body

    @classmethod
    def of(cls, answer: object) -> Response:
        """What a handler gave, as an answer."""
        if isinstance(answer, cls):
            return answer
        if isinstance(answer, Error):
            retry = [("retry-after", "1")] if isinstance(answer, (ResourceExhausted, Unavailable)) else []
            return cls(f"{answer}\n", answer.status, retry)
        return cls(answer)

    def text(self) -> str:
        """The body as text, for tests."""
        return (self.body.tobytes() if isinstance(self.body, Tensor) else self.body).decode()

    def json(self) -> object:
        """The body as JSON, for tests."""
        return json.loads(self.text())


def _json(body: object) -> bytes:
    try:
        # JSON has no word for what is not a number.
        return json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise NotAllowed(str(error)) from error


Handler = TypeVar("Handler", bound=Callable[[Request], object])


def http_function(handler: Handler) -> Handler:
    """Make a component of ``handler``, which gets a :class:`Request` and gives a :class:`Response` or what makes one. Once, in ``app.py``.

    An :class:`~weir.Error` that it raises becomes the answer. It may be a coroutine. The handler stays an ordinary function.
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

        # Where componentize-py looks for what the world exports.
        handler.__globals__["IncomingHandler"] = IncomingHandler
    return handler


def answer(handler: Callable[[Request], object], request: Request) -> Response:
    """Call ``handler``, as the node would."""
    try:
        given = finish(handler(request))
    except Error as error:
        return Response.of(error)
    try:
        return Response.of(given)
    except (TypeError, ValueError) as error:
        raise NotAllowed(f"the handler gave what can be no answer: {error}") from error


def _opened(element_type: ElementType, shape: Sequence[int], length: int) -> list[int]:
    """Outside a component: ``shape`` with its open dimension filled in."""
    size = len(Tensor([0], element_type=element_type).tobytes())
    rest = size
    for dimension in shape:
        rest *= 1 if dimension == OPEN else dimension
    return [length // max(rest, 1) if dimension == OPEN else dimension for dimension in shape]
