"""Asynchronous invocations."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from time import monotonic
from typing import cast

from .. import _operations as operations
from .._errors import RequestTimeout
from .._request import request
from .._response import Response
from ..schema import Invocation, InvocationPage, InvocationStatus
from .._tensors import InferResult, infer_result
from .http import AsyncHttp

# Longest time of one request that waits for the end of an invocation.
WAIT_S = 20.0
# Shortest time between two such requests, for nodes that do not wait.
PAUSE_S = 0.1

ENDED = ("done", "dead", "cancelled")


class AsyncInvocations:
    """Asynchronous invocations of the tenant."""

    def __init__(self, http: AsyncHttp) -> None:
        self._http = http

    async def list(
        self,
        *,
        status: InvocationStatus | None = None,
        name: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[Invocation]:
        """Invocations of a status and of a function or model, newest first.

        Fetches pages of `limit` invocations while the caller iterates.
        """
        after: str | None = None
        while True:
            query = {"status": status, "name": name, "limit": limit, "after": after}
            answer = await self._http.json(request(operations.LIST_INVOCATIONS, query=query))
            page = cast("InvocationPage", answer)
            for invocation in page["invocations"]:
                yield invocation
            after = page["next"]
            if after is None:
                return

    async def show(self, id: str, *, wait_s: float = 0.0) -> Invocation:
        """An invocation, after waiting up to `wait_s` for its end."""
        query = {"wait_ms": round(wait_s * 1000) or None}
        sent = request(operations.SHOW_INVOCATION, query=query, wait_s=wait_s, id=id)
        return cast("Invocation", await self._http.json(sent))

    async def wait(self, id: str, timeout_s: float | None = None) -> Invocation:
        """Waits for the end of an invocation: `done`, `dead` or `cancelled`.

        Raises `RequestTimeout` after `timeout_s`.
        """
        end = None if timeout_s is None else monotonic() + timeout_s
        while True:
            start = monotonic()
            left = WAIT_S if end is None else end - start
            invocation = await self.show(id, wait_s=max(0.0, min(left, WAIT_S)))
            if invocation["status"] in ENDED:
                return invocation
            if end is not None and monotonic() >= end:
                text = f"the invocation {id} is {invocation['status']} after {timeout_s} s"
                raise RequestTimeout(text, is_sent=True)
            if monotonic() - start < PAUSE_S:
                await asyncio.sleep(PAUSE_S)

    async def result(self, id: str) -> Response:
        """The response of a function. The error of a dead invocation is raised."""
        response = await self._http.send(request(operations.SHOW_RESULT, id=id))
        return Response(response.status_code, response.headers, response.content)

    async def infer_result(self, id: str) -> InferResult:
        """The outputs of an inference. The error of a dead invocation is raised."""
        response = await self._http.send(request(operations.SHOW_RESULT, id=id))
        return infer_result(response.headers, response.content)

    async def follow(self, id: str) -> AsyncIterator[Invocation]:
        """The invocation after each change, until it ends."""
        async for event in self._http.events(request(operations.FOLLOW_INVOCATION, id=id)):
            yield cast("Invocation", json.loads(event.data))

    async def cancel(self, id: str) -> Invocation:
        """Cancels an invocation that has not ended."""
        return cast("Invocation", await self._http.json(request(operations.CANCEL_INVOCATION, id=id)))

    async def retry(self, id: str) -> Invocation:
        """Restarts a dead invocation."""
        return cast("Invocation", await self._http.json(request(operations.RETRY_INVOCATION, id=id)))

    async def delete(self, id: str) -> Invocation | None:
        """Deletes an invocation that has ended. Cancels and returns an invocation that has not."""
        answer = await self._http.json(request(operations.DELETE_INVOCATION, id=id))
        return cast("Invocation | None", answer)
