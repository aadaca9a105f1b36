"""WebSockets. The node speaks the protocol with the client; the function reads and writes whole
messages::

    from weir.http import Request, http_function
    from weir.websocket import WebSocket, accept

    @http_function
    def handle(request: Request):
        return accept(request, echo)

    async def echo(socket: WebSocket):
        async for message in socket:
            await socket.send(message)

A message is ``str`` or ``bytes``. The handler may also be an ordinary function, with ``for`` and
without ``await``.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any, Protocol

from weir._records import Close, Reader, encode, encode_close
from weir.coroutines import finish
from weir.errors import Error, StatusError
from weir.http import Request, Response

__all__ = ["Close", "WebSocket", "accept", "is_websocket", "protocols"]

MEDIA_TYPE = "application/vnd.weir.websocket"


class Connection(Protocol):
    """The bodies of a call: of the node, or of a test."""

    def read(self) -> bytes:
        """Waits for the next piece of the request; empty at its end."""

    def wait(self, seconds: float) -> bool:
        """Waits for the next piece of the request, at most ``seconds``. Returns whether it is there."""

    def write(self, record: bytes) -> bool:
        """Waits until the node has taken the record. Returns false if the client is gone."""


class WebSocket:
    """An open WebSocket, the argument of the handler of :func:`accept`. Iterate over it to receive
    the messages of the client until it is closed.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._reader = Reader()
        #: Why the WebSocket was closed; ``None`` while it is open.
        self.closed: Close | None = None
        self._has_sent_close = False

    def receive(self) -> str | bytes | None:
        """Waits for the next message. ``None``: the WebSocket is closed, and ``closed`` has the
        reason.
        """
        while self.closed is None:
            record = self._reader.next()
            if isinstance(record, Close):
                self.closed = record
            elif record is not None:
                return record
            else:
                self._push(self._connection.read())
        return None

    def wait(self, seconds: float) -> bool:
        """Waits for the next message, at most ``seconds``. Returns whether :meth:`receive` returns at
        once: a message is there, or the WebSocket is closed.
        """
        ends_at = time.monotonic() + seconds
        while self.closed is None and not self._reader.has_next:
            if not self._connection.wait(max(0.0, ends_at - time.monotonic())):
                return False
            self._push(self._connection.read())
        return True

    def send(self, message: str | bytes | bytearray | memoryview) -> _Sent:
        """Sends a message. Waits until the node has taken it, so that a client that reads slowly
        slows the function down. The result can be awaited. Raises an error once the WebSocket is
        closed.
        """
        record = encode(message)
        if self.closed is None and not self._has_sent_close:
            if self._connection.write(record):
                return _Sent()
            self.closed = Close(1006)
        raise StatusError(500, "the WebSocket is closed")

    def close(self, code: int = 1000, reason: str = "") -> _Sent:
        """Closes the WebSocket. A handler that returns without this closes with code 1000."""
        record = encode_close(Close(code, reason))
        if not self._has_sent_close:
            self._has_sent_close = True
            self._connection.write(record)
        return _Sent()

    def __iter__(self) -> Iterator[str | bytes]:
        while (message := self.receive()) is not None:
            yield message

    async def __aiter__(self) -> AsyncIterator[str | bytes]:
        for message in self:
            yield message

    def _push(self, piece: bytes) -> None:
        if piece:
            self._reader.push(piece)
        else:
            # The body ended without the reason.
            self.closed = Close(1006)


class _Sent:
    """The result of a call that has already waited."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


class SocketBody:
    """The body of the response of a function that accepts a WebSocket."""

    def __init__(self, request: Request, handler: Callable[[WebSocket], Any]) -> None:
        self.request = request
        self._handler = handler

    def serve(self, connection: Connection) -> None:
        """Runs the handler until it returns. An exception closes the WebSocket with code 1011."""
        socket = WebSocket(connection)
        code = 1000
        try:
            finish(self._handler(socket))
        except Error as error:
            if socket.closed is None:
                traceback.print_exception(error)
                code = 1011
        except Exception as error:  # noqa: BLE001
            traceback.print_exception(error)
            code = 1011
        if socket.closed is None:
            socket.close(code)


def accept(request: Request, handler: Callable[[WebSocket], Any], protocol: str | None = None) -> Response:
    """Accepts a WebSocket, and serves it with ``handler`` until it returns. ``protocol`` is one of
    the subprotocols that the client offers.

    Raises an error that is a 426 response if the request does not open a WebSocket.
    """
    if not is_websocket(request):
        raise StatusError(426, "this is a WebSocket: connect with a WebSocket client")
    headers = [("content-type", MEDIA_TYPE)]
    if protocol is not None:
        headers.append(("sec-websocket-protocol", protocol))
    response = Response(headers=headers)
    response.body = SocketBody(request, handler)
    return response


def is_websocket(request: Request) -> bool:
    """Whether the request opens a WebSocket."""
    return request.headers.get("content-type") == MEDIA_TYPE


def protocols(request: Request) -> list[str]:
    """The subprotocols that the client offers, in its order."""
    offered = request.headers.get("sec-websocket-protocol") or ""
    return [name.strip() for name in offered.split(",") if name.strip()]
