"""Clients whose node is a function of the test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2

from weir_client import Client, RetryPolicy

# Without waits between attempts, and with one retry more than the default.
AT_ONCE = RetryPolicy(retries_max=3, wait_min_s=0.0)


def client(handler: Callable[[httpx2.Request], httpx2.Response], **options: Any) -> Client:
    """A client whose requests `handler` answers."""
    transport = httpx2.MockTransport(handler)
    return Client("http://node.test", **{"transport": transport, "retry": AT_ONCE, **options})


def error(status: int, code: str, **headers: str) -> httpx2.Response:
    """An error response of a node."""
    body = {"error": f"the text of {code}", "code": code, "request_id": "r-1"}
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx2.Response(
        status, json=body, headers={"weir-error": code, "weir-request-id": "r-1", **sent}
    )
