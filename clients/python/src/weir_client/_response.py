"""Responses of functions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from ._errors import FunctionError

if TYPE_CHECKING:
    from .schema import PlacementRecord


@dataclass(frozen=True)
class CallInfo:
    """What the node reports about a call, from the headers of its response."""

    request_id: str | None
    """Id of the call, as in the logs."""
    version: int | None
    """Version of the function that the call used."""
    device: str | None
    """Device that ran a direct inference, such as `cuda:0`."""
    cache: str | None
    """`hit`, `miss` or `bypass` of the response cache."""
    fallback: str | None
    """Why the model ran on another device than the scheduler had chosen."""
    placement: PlacementRecord | None
    """The placement, if the call asked for an explanation."""


def call_info(headers: Mapping[str, str]) -> CallInfo:
    """Reads the headers of a response."""
    placement = headers.get("weir-placement")
    return CallInfo(
        request_id=headers.get("weir-request-id"),
        version=int(headers["weir-version"]) if "weir-version" in headers else None,
        device=headers.get("weir-device"),
        cache=headers.get("weir-cache"),
        fallback=headers.get("weir-fallback"),
        placement=None if placement is None else cast("PlacementRecord", json.loads(placement)),
    )


@dataclass(frozen=True)
class Response:
    """A function's own response, of any status."""

    status: int
    headers: Mapping[str, str]
    """Headers, whose names are not case-sensitive."""
    content: bytes

    @property
    def is_success(self) -> bool:
        """Whether the status is below 400."""
        return self.status < 400

    @property
    def text(self) -> str:
        """The body as UTF-8."""
        return self.content.decode("utf-8", "replace")

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.content)

    @property
    def info(self) -> CallInfo:
        """What the node reports about the call."""
        return call_info(self.headers)

    def raise_for_status(self) -> Response:
        """Returns the response, or raises `FunctionError` if its status is 400 or above."""
        if not self.is_success:
            raise FunctionError(self)
        return self
