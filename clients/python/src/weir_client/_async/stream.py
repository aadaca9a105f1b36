"""Responses that are read while they arrive."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import httpx2

from .._response import CallInfo, Response, call_info
from .._sse import EventParser, ServerSentEvent
from .http import lines, parts, read


class AsyncResponseStream:
    """The response of a function, whose body is read once."""

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response
        self.status = response.status_code
        self.headers: Mapping[str, str] = response.headers

    @property
    def info(self) -> CallInfo:
        """What the node reports about the call."""
        return call_info(self.headers)

    async def read(self) -> Response:
        """The response with its whole body."""
        return Response(self.status, self.headers, await read(self._response))

    async def iter_bytes(self) -> AsyncIterator[bytes]:
        """The parts of the body as they arrive."""
        async for part in parts(self._response):
            yield part

    async def iter_lines(self) -> AsyncIterator[str]:
        """The lines of the body as they arrive, without their ends, of at most 16 MiB."""
        async for line in lines(self._response):
            yield line

    async def iter_events(self) -> AsyncIterator[ServerSentEvent]:
        """The server-sent events of the body as they arrive."""
        parser = EventParser()
        async for line in self.iter_lines():
            event = parser.line(line)
            if event is not None:
                yield event
