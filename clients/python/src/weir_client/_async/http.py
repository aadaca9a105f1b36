"""Sends requests over kept connections, with retries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from .._errors import ApiError, ProtocolError, RequestTimeout, TransportError, WeirError, api_error
from .._lines import LineSplitter
from .._request import Request
from .._retry import RetryPolicy
from .._sse import EventParser, ServerSentEvent

CHUNK_BYTES = 1 << 20


class AsyncHttp:
    """Connections to one node."""

    def __init__(self, http: httpx2.AsyncClient, url: str, headers: dict[str, str], retry: RetryPolicy) -> None:
        self._http = http
        self._url = url
        self._headers = headers
        self._retry = retry

    async def aclose(self) -> None:
        await self._http.aclose()

    async def json(self, request: Request) -> Any:
        """The body of a response, as JSON. `None` without a body."""
        response = await self.send(request)
        if not response.content:
            return None
        try:
            return response.json()
        except ValueError as error:
            raise ProtocolError(f"{request.target}: the response is not JSON: {error}") from error

    async def send(self, request: Request) -> httpx2.Response:
        """A response without an error, with its body."""
        async with self.stream(request) as response:
            await read(response)
            return response

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[httpx2.Response]:
        """A response without an error, whose body is read later."""
        response = await self._with_retries(request)
        try:
            yield response
        finally:
            await response.aclose()

    async def lines(self, request: Request) -> AsyncIterator[str]:
        """The lines of a response as they arrive."""
        async with self.stream(request) as response:
            async for line in lines(response):
                yield line

    async def events(self, request: Request) -> AsyncIterator[ServerSentEvent]:
        """The server-sent events of a response as they arrive."""
        parser = EventParser()
        async for line in self.lines(request):
            event = parser.line(line)
            if event is not None:
                yield event

    async def _with_retries(self, request: Request) -> httpx2.Response:
        attempt = 1
        while True:
            try:
                return await self._attempt(request)
            except WeirError as error:
                wait = self._retry.wait_s(error, attempt, request.is_repeatable)
                if wait is None:
                    raise
                await asyncio.sleep(wait)
                attempt += 1

    async def _attempt(self, request: Request) -> httpx2.Response:
        headers = {**self._headers, **request.headers}
        content: bytes | AsyncIterator[bytes] | None
        before, after = request.around
        if isinstance(request.content, Path):
            length = len(before) + request.content.stat().st_size + len(after)
            headers["content-length"] = str(length)
            content = chunks(before, request.content, after)
        elif request.content is not None:
            content = before + request.content + after
        else:
            content = None
        timeout = self._http.timeout
        if request.wait_s and timeout.read is not None:
            timeout = httpx2.Timeout(
                connect=timeout.connect,
                read=timeout.read + request.wait_s,
                write=timeout.write,
                pool=timeout.pool,
            )
        url = self._url + request.target
        built = self._http.build_request(
            request.method, url, headers=headers, content=content, timeout=timeout
        )
        try:
            response = await self._http.send(built, stream=True)
        except httpx2.TransportError as error:
            raise failed(error) from error
        if is_error(request, response):
            try:
                await read(response)
            finally:
                await response.aclose()
            raise error_of(response)
        return response


async def read(response: httpx2.Response) -> bytes:
    """The whole body of a response."""
    try:
        return await response.aread()
    except httpx2.TransportError as error:
        raise failed(error) from error


async def parts(response: httpx2.Response) -> AsyncIterator[bytes]:
    """The parts of a body as they arrive."""
    try:
        async for part in response.aiter_bytes():
            yield part
    except httpx2.TransportError as error:
        raise failed(error) from error


async def lines(response: httpx2.Response) -> AsyncIterator[str]:
    """The lines of a body as they arrive, without their ends."""
    splitter = LineSplitter()
    async for part in parts(response):
        for line in splitter.feed(part):
            yield line
    for line in splitter.finish():
        yield line


async def chunks(before: bytes, path: Path, after: bytes) -> AsyncIterator[bytes]:
    """The contents of a file, with what is around them."""
    if before:
        yield before
    with path.open("rb") as file:
        while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
            yield chunk
    if after:
        yield after


def is_error(request: Request, response: httpx2.Response) -> bool:
    """Whether a response is an error of the node, instead of one of a function."""
    if "weir-error" in response.headers:
        return True
    is_function = request.target.startswith("/fn/") or request.target.endswith("/result")
    return response.status_code >= 400 and not is_function


def error_of(response: httpx2.Response) -> ApiError:
    return api_error(response.status_code, response.headers, response.content)


def failed(error: httpx2.TransportError) -> TransportError:
    """The exception for a request without a complete response."""
    is_sent = not isinstance(error, (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout))
    text = str(error) or type(error).__name__
    if isinstance(error, httpx2.TimeoutException):
        return RequestTimeout(f"the node did not respond in time: {text}", is_sent=is_sent)
    what = "the connection to the node was lost" if is_sent else "cannot connect to the node"
    return TransportError(f"{what}: {text}", is_sent=is_sent)
