"""Triggers: requests that a node sends on a schedule, for messages or for events."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from typing import Any, cast

from .. import _operations as operations
from .._request import request
from ..schema import AcceptedEvents, Invocation, Trigger, TriggerSpec
from .http import AsyncHttp


class AsyncTriggers:
    """Triggers of the tenant, which start asynchronous invocations."""

    def __init__(self, http: AsyncHttp) -> None:
        self._http = http

    async def put(self, name: str, spec: TriggerSpec) -> Trigger:
        """Creates or replaces a trigger.

        For example, `{"source": {"cron": "0 6 * * *"}, "target": {"function": "report"}}`.
        """
        return cast("Trigger", await self._http.json(request(operations.PUT_TRIGGER, json=spec, name=name)))

    async def list(self) -> builtins.list[Trigger]:
        """All triggers, by name, without the bodies of their requests."""
        return cast("list[Trigger]", await self._http.json(request(operations.LIST_TRIGGERS)))

    async def show(self, name: str) -> Trigger:
        """A trigger with its latest tick and its next ones."""
        return cast("Trigger", await self._http.json(request(operations.SHOW_TRIGGER, name=name)))

    async def run(self, name: str) -> Invocation:
        """Sends the request of a trigger now."""
        return cast("Invocation", await self._http.json(request(operations.RUN_TRIGGER, name=name)))

    async def send(self, name: str, *events: Mapping[str, Any]) -> AcceptedEvents:
        """Sends CloudEvents to a trigger whose source is `events`.

        For example, `{"id": "1", "source": "/shop", "type": "order.new", "data": {"order": 7}}`. Events
        with the same source and id are accepted once.
        """
        batch = [{"specversion": "1.0", **event} for event in events]
        headers = {"content-type": "application/cloudevents-batch+json"}
        # The node accepts each event once, however often it is sent.
        sent = request(operations.SEND_EVENTS, json=batch, headers=headers, is_repeatable=True, name=name)
        return cast("AcceptedEvents", await self._http.json(sent))

    async def pause(self, name: str) -> Trigger:
        """Pauses a trigger."""
        return cast("Trigger", await self._http.json(request(operations.PAUSE_TRIGGER, name=name)))

    async def resume(self, name: str) -> Trigger:
        """Resumes a paused trigger."""
        return cast("Trigger", await self._http.json(request(operations.RESUME_TRIGGER, name=name)))

    async def delete(self, name: str) -> None:
        """Deletes a trigger. The invocations that it started continue."""
        await self._http.json(request(operations.DELETE_TRIGGER, name=name))
