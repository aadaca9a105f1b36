"""The asynchronous client, which the synchronous client is generated from."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import numpy as np
import pytest
from conftest import DIGITS, component
from offline import AT_ONCE, error

from weir_client import AsyncClient, NotFoundError, RequestTimeout
from weir_client.testing import Node


def run(node: Node, test: Callable[[AsyncClient], Awaitable[Any]], **options: Any) -> Any:
    async def main() -> Any:
        async with AsyncClient(node.url, token="", **options) as weir:
            return await test(weir)

    return asyncio.run(main())


def test_calls_run_at_the_same_time(weir_node: Node) -> None:
    async def test(weir: AsyncClient) -> None:
        await weir.deploy("async-hello", component("hello"))
        calls = [weir.call("async-hello", f"/{n}") for n in range(100)]
        texts = [response.text for response in await asyncio.gather(*calls)]
        assert texts == [f"hello, {n}\n" for n in range(100)]

    run(weir_node, test)


def test_models_and_invocations(weir_node: Node) -> None:
    async def test(weir: AsyncClient) -> None:
        await weir.models.push("async-digits", DIGITS)
        image = np.zeros((1, 1, 8, 8), np.float32)
        results = await asyncio.gather(*(weir.infer("async-digits", {"image": image}) for _ in range(8)))
        assert {result["probabilities"].shape for result in results} == {(1, 10)}
        submitted = await weir.submit_infer("async-digits", {"image": image})
        ended = await weir.invocations.wait(submitted["id"], 30)
        assert ended["status"] == "done"
        later = await weir.invocations.infer_result(submitted["id"])
        np.testing.assert_array_equal(later["probabilities"], results[0]["probabilities"])
        listed = [each["id"] async for each in weir.invocations.list(name="async-digits")]
        assert listed == [submitted["id"]]
        with pytest.raises(NotFoundError):
            await weir.infer("missing", {"x": [1.0]})

    run(weir_node, test)


def test_streams_logs_and_events(weir_node: Node) -> None:
    async def test(weir: AsyncClient) -> None:
        await weir.deploy("async-events", component("echo-events"))
        async with weir.stream("async-events", content="a\nb") as response:
            data = [event.data async for event in response.iter_events()]
        assert "\n".join(data) == "a\nb"
        await weir.deploy("async-slow", component("misbehave"))
        async with weir.stream("async-slow", "/body") as response:
            async for part in response.iter_bytes():
                assert set(part) == {ord("x")}
                break
        assert await weir.functions.logs("async-events") == []

        async def next_removal() -> str:
            async for event in weir.follow_events(kinds=["removed"], name="async-slow"):
                return event["kind"]
            return "none"

        follower = asyncio.create_task(next_removal())
        while not follower.done():
            await weir.functions.delete("async-slow")
            await weir.deploy("async-slow", component("misbehave"))
            await asyncio.wait([follower], timeout=0.1)
        assert await follower == "removed"

    run(weir_node, test)


def test_a_cancelled_task_ends_its_call(weir_node: Node) -> None:
    async def test(weir: AsyncClient) -> None:
        await weir.deploy("async-nap", component("misbehave"))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(weir.call("async-nap", "/sleep"), 0.2)
        # The only connection is free again.
        assert (await weir.call("async-nap", "/behave")).text == "ok\n"

    run(weir_node, test, connections_max=1)


def test_retries_and_timeouts() -> None:
    requests: list[httpx2.Request] = []

    def node(request: httpx2.Request) -> httpx2.Response:
        requests.append(request)
        if len(requests) == 3:
            raise httpx2.ReadTimeout("slow")
        return error(429, "queue-full", retry_after="0") if len(requests) == 1 else httpx2.Response(200)

    async def main() -> None:
        transport = httpx2.MockTransport(node)
        async with AsyncClient("http://node.test", transport=transport, retry=AT_ONCE) as weir:
            assert (await weir.call("f", content=b"x")).status == 200
            with pytest.raises(RequestTimeout):
                await weir.call("f")

    asyncio.run(main())
    assert len(requests) == 3
