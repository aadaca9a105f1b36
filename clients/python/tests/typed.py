"""Types that the clients give to their callers. mypy reads this file; it does not run."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weir_client import AsyncClient, Client, InferResult, Response
from weir_client.schema import Deployed, Invocation, LogLine, Model

if sys.version_info >= (3, 11):
    from typing import assert_type
else:
    from typing_extensions import assert_type


def synchronous(weir: Client) -> None:
    assert_type(weir.deploy("f", b"", {"models": ["m"]}), Deployed)
    assert_type(weir.deploy("f", "f.wasm")["version"], int)
    assert_type(weir.call("f"), Response)
    assert_type(weir.models.list(), list[Model])
    result = weir.infer("m", {"x": np.zeros(3, np.float32), "y": [1.0, 2.0]})
    assert_type(result, InferResult)
    assert_type(result["y"], NDArray[Any])
    for line in weir.functions.follow_logs("f"):
        assert_type(line, LogLine)
    weir.deploy("f", b"", {"model": ["m"]})  # type: ignore[arg-type]
    weir.keys.create("k", ["write"])  # type: ignore[list-item]
    weir.infer("m", [1.0])  # type: ignore[arg-type]


async def asynchronous(weir: AsyncClient) -> None:
    assert_type(await weir.submit("f"), Invocation)
    async for invocation in weir.invocations.list(status="dead"):
        assert_type(invocation["attempts"], int)
    async with weir.stream("f") as response:
        async for part in response.iter_bytes():
            assert_type(part, bytes)
