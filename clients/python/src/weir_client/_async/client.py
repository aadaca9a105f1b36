"""The client of a node."""

from __future__ import annotations

import json as jsonlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Literal, cast
from uuid import uuid4

import httpx2

from .. import _operations as operations
from .._errors import ApiError, ProtocolError
from .._request import (
    Headers,
    Operation,
    Query,
    Request,
    Upload,
    asynchronous_headers,
    call_headers,
    call_request,
    request,
)
from .._response import Response
from .._retry import RetryPolicy
from ..schema import (
    CallKind,
    CallTimeline,
    Deployed,
    Embeddings,
    Event,
    EventPage,
    FunctionManifest,
    Invocation,
    Placement,
    RecentCallPage,
    Server,
    Status,
    TenantPage,
    Usage,
)
from .._settings import Settings
from .._tensors import InferResult, Output, TensorInput, infer_body, infer_result
from .functions import AsyncFunctions, AsyncWorkflows
from .http import AsyncHttp
from .invocations import AsyncInvocations
from .models import AsyncKernelGraphs, AsyncModels
from .objects import AsyncKeys, AsyncObjects, AsyncSecrets
from .stream import AsyncResponseStream
from .triggers import AsyncTriggers


class AsyncClient:
    """A client of a node or a cluster, with connections that it keeps.

    Use it as a context manager, or end it with `aclose`.
    """

    functions: AsyncFunctions
    models: AsyncModels
    kernel_graphs: AsyncKernelGraphs
    workflows: AsyncWorkflows
    objects: AsyncObjects
    invocations: AsyncInvocations
    keys: AsyncKeys
    secrets: AsyncSecrets
    triggers: AsyncTriggers

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        timeout_s: float | None = 60.0,
        retry: RetryPolicy | None = None,
        ca_file: str | None = None,
        connections_max: int = 100,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        """Creates a client. The first request opens a connection.

        - `url`: address of the node; by default `WEIR_URL`, or `http://127.0.0.1:9347`.
        - `token`: by default `WEIR_TOKEN`.
        - `timeout_s`: longest wait for a connection, and for the next part of a response.
        - `ca_file`: PEM file with the authority of the node's certificate; by default
          `WEIR_CA_FILE`.
        - `transport`: replaces the connections, for tests and for proxies.
        """
        settings = Settings.find(url, token, ca_file)
        http = httpx2.AsyncClient(
            timeout=timeout_s,
            limits=httpx2.Limits(max_connections=connections_max, max_keepalive_connections=connections_max),
            verify=settings.verify(),
            transport=transport,
            # Proxies of the environment are for other hosts.
            trust_env=False,
        )
        self._http = AsyncHttp(http, settings.url, settings.headers(), retry or RetryPolicy())
        self.url = settings.url
        self.functions = AsyncFunctions(self._http)
        self.models = AsyncModels(self._http)
        self.kernel_graphs = AsyncKernelGraphs(self._http)
        self.workflows = AsyncWorkflows(self._http)
        self.objects = AsyncObjects(self._http)
        self.invocations = AsyncInvocations(self._http)
        self.keys = AsyncKeys(self._http)
        self.secrets = AsyncSecrets(self._http)
        self.triggers = AsyncTriggers(self._http)

    async def aclose(self) -> None:
        """Closes all connections."""
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def deploy(
        self,
        name: str,
        component: Upload | None = None,
        manifest: FunctionManifest | None = None,
        *,
        digest: str | None = None,
        dry_run: bool = False,
        strict: bool = False,
        canary: int | None = None,
        promote_after_s: float | None = None,
        shadow: int | None = None,
        preview: bool = False,
    ) -> Deployed:
        """Deploys a function: `functions.deploy`."""
        return await self.functions.deploy(
            name,
            component,
            manifest,
            digest=digest,
            dry_run=dry_run,
            strict=strict,
            canary=canary,
            promote_after_s=promote_after_s,
            shadow=shadow,
            preview=preview,
        )

    async def call(
        self,
        function: str,
        path: str = "/",
        *,
        method: str | None = None,
        query: Query | None = None,
        headers: Headers | None = None,
        content: bytes | str | None = None,
        json: Any = None,
        priority: int | None = None,
        request_id: str | None = None,
        version_key: str | None = None,
        explain: bool = False,
        idempotent: bool | None = None,
    ) -> Response:
        """Calls a function, which sees `path`. Returns the function's response of any status.

        `NAME@VERSION` instead of the function's name calls this version.

        The method is GET without a body and POST with a body, unless `method` names it. A lost call
        is repeated only if it is `idempotent`; by default, if its method is. An error of the node is
        raised. While the function has a canary, calls with the same `version_key` use the same version.
        """
        sent = call_request(
            function,
            path,
            method=method,
            query=query,
            headers=call_headers(priority, request_id, version_key, explain, headers),
            content=content,
            json=json,
            idempotent=idempotent,
        )
        response = await self._http.send(sent)
        return Response(response.status_code, response.headers, response.content)

    @asynccontextmanager
    async def stream(
        self,
        function: str,
        path: str = "/",
        *,
        method: str | None = None,
        query: Query | None = None,
        headers: Headers | None = None,
        content: bytes | str | None = None,
        json: Any = None,
        priority: int | None = None,
        request_id: str | None = None,
        version_key: str | None = None,
    ) -> AsyncIterator[AsyncResponseStream]:
        """Calls a function, whose response is read while it arrives.

        The end of the `with` block closes the response, which cancels a call that still runs.
        """
        sent = call_request(
            function,
            path,
            method=method,
            query=query,
            headers=call_headers(priority, request_id, version_key, False, headers),
            content=content,
            json=json,
            idempotent=False,
        )
        async with self._http.stream(sent) as response:
            yield AsyncResponseStream(response)

    async def submit(
        self,
        function: str,
        path: str = "/",
        *,
        method: str | None = None,
        query: Query | None = None,
        headers: Headers | None = None,
        content: bytes | str | None = None,
        json: Any = None,
        idempotency_key: str | None = None,
        callback: str | None = None,
        wait_s: int | None = None,
    ) -> Invocation:
        """Starts an asynchronous invocation of a function, after waiting up to `wait_s` for its end.

        Without an `idempotency_key`, the client makes one, so that a repeated request starts no
        second invocation.
        """
        more = asynchronous_headers(idempotency_key or uuid4().hex, callback, wait_s)
        sent = call_request(
            function,
            path,
            method=method,
            query=query,
            headers={**(headers or {}), **more},
            content=content,
            json=json,
            idempotent=True,
        )
        return await self._accepted(sent)

    async def infer(
        self,
        model: str,
        inputs: Mapping[str, TensorInput],
        *,
        outputs: Sequence[str | Output] | None = None,
        version: int | str | None = None,
        id: str | None = None,
        deadline_ms: float | None = None,
        priority: int | None = None,
        request_id: str | None = None,
        version_key: str | None = None,
        explain: bool = False,
        idempotent: bool = False,
    ) -> InferResult:
        """Runs a model, tensor function or workflow on arrays.

        - `outputs`: names of the outputs to return; all outputs by default.
        - `version`: number or alias of a version.
        - `deadline_ms`: time from arrival to answer. Only shortens the node's limit.
        - `idempotent`: repeats an inference whose connection or node was lost.
        """
        content, headers = infer_body(inputs, outputs, id, deadline_ms)
        headers |= call_headers(priority, request_id, version_key, explain)
        response = await self._http.send(infer_request(model, version, content, headers, idempotent))
        return infer_result(response.headers, response.content)

    async def submit_infer(
        self,
        model: str,
        inputs: Mapping[str, TensorInput],
        *,
        outputs: Sequence[str | Output] | None = None,
        version: int | str | None = None,
        idempotency_key: str | None = None,
        callback: str | None = None,
        wait_s: int | None = None,
    ) -> Invocation:
        """Starts an asynchronous inference, whose outputs `invocations.infer_result` returns."""
        content, headers = infer_body(inputs, outputs, None, None)
        headers |= asynchronous_headers(idempotency_key or uuid4().hex, callback, wait_s)
        return await self._accepted(infer_request(model, version, content, headers, True))

    async def embeddings(self, model: str, input: str | Sequence[str], **options: Any) -> Embeddings:
        """Calls the HTTP function `model` in OpenAI's format."""
        texts = input if isinstance(input, str) else [*input]
        body = {"model": model, "input": texts, **options}
        return cast("Embeddings", await self._http.json(request(operations.CREATE_EMBEDDINGS, json=body)))

    async def status(self) -> Status:
        """Version, uptime, load, devices, damaged functions and models, and the cluster."""
        return cast("Status", await self._http.json(request(operations.STATUS)))

    async def usage(self) -> Usage:
        """The tenant's device usage on the node."""
        return cast("Usage", await self._http.json(request(operations.USAGE)))

    async def tenants(self) -> TenantPage:
        """The use of each quota by the tenant; by all tenants with the operator's token."""
        return cast("TenantPage", await self._http.json(request(operations.LIST_TENANTS)))

    async def calls(
        self,
        *,
        kind: CallKind | None = None,
        name: str | None = None,
        outcome: Literal["ok", "failed"] | None = None,
        limit: int | None = None,
    ) -> RecentCallPage:
        """Recent calls that the node received, newest first."""
        query = {"kind": kind, "name": name, "outcome": outcome, "limit": limit}
        return cast("RecentCallPage", await self._http.json(request(operations.LIST_CALLS, query=query)))

    async def call_timeline(self, request_id: str) -> CallTimeline:
        """The phases and workflow steps of a recent call."""
        sent = request(operations.SHOW_CALL, request_id=request_id)
        return cast("CallTimeline", await self._http.json(sent))

    async def metrics(self) -> str:
        """The metrics, in the text format of Prometheus."""
        return (await self._http.send(request(operations.METRICS))).text

    async def placement(self, request_id: str) -> Placement:
        """Explains why a call ran where it did."""
        sent = request(operations.SHOW_PLACEMENT, request_id=request_id)
        return cast("Placement", await self._http.json(sent))

    async def events(
        self,
        *,
        kinds: Sequence[str] | None = None,
        name: str | None = None,
        since_ms: int | None = None,
        limit: int | None = None,
    ) -> EventPage:
        """The newest events of all nodes, oldest first."""
        query = {"kind": kinds, "name": name, "since_ms": since_ms, "limit": limit}
        return cast("EventPage", await self._http.json(request(operations.EVENTS, query=query)))

    async def follow_events(
        self,
        *,
        kinds: Sequence[str] | None = None,
        name: str | None = None,
        since_ms: int | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[Event]:
        """New events of all nodes, after the earlier ones that `since_ms` or `limit` asks for."""
        query = {"kind": kinds, "name": name, "since_ms": since_ms, "limit": limit, "follow": True}
        async for event in self._http.events(request(operations.EVENTS, query=query)):
            yield cast("Event", jsonlib.loads(event.data))

    async def server(self) -> Server:
        """Name, version and extensions of the server, by the Open Inference Protocol."""
        return cast("Server", await self._http.json(request(operations.SHOW_SERVER)))

    async def openapi(self) -> str:
        """The OpenAPI document of the node, in YAML."""
        return (await self._http.send(request(operations.OPENAPI))).text

    async def is_live(self) -> bool:
        """Whether the node's process serves."""
        return await self._answers(operations.IS_LIVE) and await self._answers(operations.HEALTHZ)

    async def is_ready(self) -> bool:
        """Whether the node accepts requests."""
        return await self._answers(operations.IS_READY) and await self._answers(operations.READYZ)

    async def _answers(self, operation: Operation) -> bool:
        """Whether a health check succeeds. A 503 is an answer, which is not waited for."""
        try:
            await self._http.send(request(operation))
        except ApiError as error:
            if error.status == 503:
                return False
            raise
        return True

    async def _accepted(self, sent: Request) -> Invocation:
        response = await self._http.send(sent)
        if response.status_code != 202 or "preference-applied" not in response.headers:
            text = f"{sent.target}: the node executed the call ({response.status_code}) instead of queueing it"
            raise ProtocolError(text)
        return cast("Invocation", response.json())


def infer_request(
    model: str, version: int | str | None, content: bytes, headers: Headers, idempotent: bool
) -> Request:
    """An inference of the version that calls use, or of a version by its number or alias."""
    if version is None:
        return request(
            operations.INFER, headers=headers, content=content, is_repeatable=idempotent, name=model
        )
    return request(
        operations.INFER_VERSION,
        headers=headers,
        content=content,
        is_repeatable=idempotent,
        name=model,
        version=version,
    )
