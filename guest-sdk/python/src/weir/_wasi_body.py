"""Bodies of requests over ``wasi:http`` 0.2: whole, or as the messages of a WebSocket."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from componentize_py_types import Err
from wit_world.imports import monotonic_clock, poll, streams, types

from weir.errors import InvalidArgument, StatusError

if TYPE_CHECKING:
    from weir.websocket import SocketBody

CHUNK_BYTES = 1 << 20
_NANOSECONDS = 1_000_000_000


class Body:
    """The body of a request, which is read once: call it for the whole body."""

    def __init__(self, raw: types.IncomingRequest) -> None:
        self._raw = raw

    def __call__(self) -> bytes:
        body = self.consume()
        chunks = []
        with body.stream() as stream:
            while True:
                try:
                    chunks.append(stream.blocking_read(CHUNK_BYTES))
                except Err as end:
                    if isinstance(end.value, streams.StreamError_Closed):
                        break
                    raise StatusError(400, f"the body ended early: {end.value.value.to_debug_string()}") from None
        types.IncomingBody.finish(body).__exit__(None, None, None)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def consume(self) -> types.IncomingBody:
        try:
            return self._raw.consume()
        except Err:
            raise InvalidArgument("the body was read before") from None


class Connection:
    """The bodies of a call that serves a WebSocket."""

    def __init__(
        self,
        messages: streams.InputStream,
        output: streams.OutputStream,
        write: Callable[[streams.OutputStream, bytes], None],
    ) -> None:
        self._messages = messages
        self._output = output
        self._write = write

    def read(self) -> bytes:
        try:
            return self._messages.blocking_read(CHUNK_BYTES)
        except Err:
            return b""

    def wait(self, seconds: float) -> bool:
        with self._messages.subscribe() as more, monotonic_clock.subscribe_duration(int(seconds * _NANOSECONDS)) as timer:
            return 0 in poll.poll([more, timer])

    def write(self, record: bytes) -> bool:
        try:
            self._write(self._output, record)
        except Err:
            return False
        return True


def serve(
    socket: SocketBody, output: streams.OutputStream, write: Callable[[streams.OutputStream, bytes], None]
) -> None:
    """Serves a WebSocket until its handler returns."""
    with socket.request._body.consume() as body, body.stream() as messages:
        socket.serve(Connection(messages, output, write))
