"""Functions and workflows."""

from __future__ import annotations

import builtins
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

from .. import _operations as operations
from .._request import Upload, manifest_header, request, upload
from ..schema import (
    AliasTarget,
    CanaryReport,
    Deployed,
    Function,
    FunctionManifest,
    FunctionVersion,
    LogLine,
    ShadowReport,
    Workflow,
    WorkflowDeployed,
    WorkflowVersion,
)
from .http import AsyncHttp


class AsyncFunctions:
    """Functions of the tenant."""

    def __init__(self, http: AsyncHttp) -> None:
        self._http = http

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
        """Deploys a component: its bytes, or the path of its file.

        Instead of a component, `digest` names the component of an earlier version of the function
        by its SHA-256. `dry_run` returns the version that would be deployed, and changes nothing.
        `strict` rejects imports that the manifest does not grant. `canary` gives the version this
        percentage of the calls; the node promotes it after `promote_after_s`, unless it is worse
        than the active version. `shadow` copies this percentage of the calls to the version.
        `preview` makes a version that gets only the calls of `NAME@VERSION`.
        """
        if (component is None) == (digest is None):
            raise ValueError("a deploy takes either a component or a digest")
        query = {
            "digest": digest,
            "dry_run": dry_run or None,
            "strict": strict or None,
            "canary": canary,
            "promote_after_ms": None if promote_after_s is None else round(promote_after_s * 1000),
            "shadow": shadow,
            "preview": preview or None,
        }
        headers = {"content-type": "application/wasm", **manifest_header(manifest)}
        content = b"" if component is None else upload(component)
        sent = request(operations.DEPLOY_FUNCTION, query=query, headers=headers, content=content, name=name)
        return cast("Deployed", await self._http.json(sent))

    async def list(self) -> builtins.list[Function]:
        """All functions, by name."""
        return cast("list[Function]", await self._http.json(request(operations.LIST_FUNCTIONS)))

    async def show(self, name: str) -> Function:
        """The active version of a function, and the numbers of all versions."""
        return cast("Function", await self._http.json(request(operations.SHOW_FUNCTION, name=name)))

    async def delete(self, name: str) -> None:
        """Removes a function with all versions."""
        await self._http.json(request(operations.DELETE_FUNCTION, name=name))

    async def canary(self, name: str) -> CanaryReport:
        """The canary of a function, with its calls and those of the active version."""
        return cast("CanaryReport", await self._http.json(request(operations.SHOW_CANARY, name=name)))

    async def shadow(self, name: str) -> ShadowReport:
        """The shadow of a function, and the comparison of its copies with the copied calls."""
        return cast("ShadowReport", await self._http.json(request(operations.SHOW_SHADOW, name=name)))

    async def promote(self, name: str, version: int | None = None) -> Function:
        """Makes the canary of a function its active version, or the given version."""
        sent = request(operations.PROMOTE_CANARY, json={"version": version}, name=name)
        return cast("Function", await self._http.json(sent))

    async def rollback(self, name: str, version: int | None = None) -> Function:
        """Activates a version. By default, ends a canary or a shadow, or activates the version before."""
        sent = request(operations.ROLL_BACK_FUNCTION, json={"version": version}, name=name)
        return cast("Function", await self._http.json(sent))

    async def set_alias(self, name: str, alias: str, version: int) -> AliasTarget:
        """Gives a version of a function another name, such as `stable`."""
        sent = request(operations.SET_FUNCTION_ALIAS, json={"version": version}, name=name, alias=alias)
        return cast("AliasTarget", await self._http.json(sent))

    async def rollback_alias(self, name: str, alias: str) -> AliasTarget:
        """Returns an alias to the version that it named before."""
        sent = request(operations.ROLL_BACK_FUNCTION_ALIAS, name=name, alias=alias)
        return cast("AliasTarget", await self._http.json(sent))

    async def delete_alias(self, name: str, alias: str) -> None:
        """Removes an alias of a function."""
        await self._http.json(request(operations.DELETE_FUNCTION_ALIAS, name=name, alias=alias))

    async def versions(self, name: str) -> builtins.list[FunctionVersion]:
        """All versions of a function, oldest first."""
        sent = request(operations.LIST_FUNCTION_VERSIONS, name=name)
        return cast("list[FunctionVersion]", await self._http.json(sent))

    async def show_version(self, name: str, version: int) -> FunctionVersion:
        """A version of a function."""
        sent = request(operations.SHOW_FUNCTION_VERSION, name=name, version=version)
        return cast("FunctionVersion", await self._http.json(sent))

    async def delete_version(self, name: str, version: int) -> None:
        """Removes an inactive version of a function."""
        await self._http.json(request(operations.DELETE_FUNCTION_VERSION, name=name, version=version))

    async def logs(self, name: str, lines: int = 100) -> builtins.list[LogLine]:
        """The latest lines of a function's log, oldest first."""
        sent = request(operations.SHOW_LOGS, query={"lines": lines}, name=name)
        return [json.loads(line) async for line in self._http.lines(sent) if line]

    async def follow_logs(self, name: str, lines: int = 0) -> AsyncIterator[LogLine]:
        """New lines of a function's log as they arrive, after the `lines` latest lines.

        Ends when the function is removed or the node stops.
        """
        sent = request(operations.SHOW_LOGS, query={"lines": lines, "follow": True}, name=name)
        async for line in self._http.lines(sent):
            if line:
                yield cast("LogLine", json.loads(line))


class AsyncWorkflows:
    """Workflows of the tenant."""

    def __init__(self, http: AsyncHttp) -> None:
        self._http = http

    async def deploy(
        self,
        name: str,
        document: str | Mapping[str, Any],
        *,
        dry_run: bool = False,
        slo_ms: int | None = None,
        cost_slo: float | None = None,
    ) -> WorkflowDeployed:
        """Deploys a workflow: its document in TOML, or as a mapping.

        `dry_run` checks the document without deploying it. `slo_ms` and `cost_slo` override the
        document's objectives.
        """
        query = {"dry_run": dry_run or None, "slo_ms": slo_ms, "cost_slo": cost_slo}
        is_toml = isinstance(document, str)
        content = document.encode() if isinstance(document, str) else json.dumps(document).encode()
        headers = {"content-type": "application/toml" if is_toml else "application/json"}
        sent = request(operations.DEPLOY_WORKFLOW, query=query, headers=headers, content=content, name=name)
        return cast("WorkflowDeployed", await self._http.json(sent))

    async def list(self) -> builtins.list[Workflow]:
        """All workflows, by name."""
        return cast("list[Workflow]", await self._http.json(request(operations.LIST_WORKFLOWS)))

    async def show(self, name: str) -> Workflow:
        """The active version of a workflow, and the numbers of all versions."""
        return cast("Workflow", await self._http.json(request(operations.SHOW_WORKFLOW, name=name)))

    async def delete(self, name: str) -> None:
        """Removes a workflow with all versions."""
        await self._http.json(request(operations.DELETE_WORKFLOW, name=name))

    async def rollback(self, name: str, version: int | None = None) -> Workflow:
        """Activates a version; by default, the version before the active one."""
        sent = request(operations.ROLL_BACK_WORKFLOW, json={"version": version}, name=name)
        return cast("Workflow", await self._http.json(sent))

    async def set_alias(self, name: str, alias: str, version: int) -> AliasTarget:
        """Gives a version of a workflow another name, such as `stable`."""
        sent = request(operations.SET_WORKFLOW_ALIAS, json={"version": version}, name=name, alias=alias)
        return cast("AliasTarget", await self._http.json(sent))

    async def rollback_alias(self, name: str, alias: str) -> AliasTarget:
        """Returns an alias to the version that it named before."""
        sent = request(operations.ROLL_BACK_WORKFLOW_ALIAS, name=name, alias=alias)
        return cast("AliasTarget", await self._http.json(sent))

    async def delete_alias(self, name: str, alias: str) -> None:
        """Removes an alias of a workflow."""
        await self._http.json(request(operations.DELETE_WORKFLOW_ALIAS, name=name, alias=alias))

    async def versions(self, name: str) -> builtins.list[WorkflowVersion]:
        """All versions of a workflow, oldest first."""
        sent = request(operations.LIST_WORKFLOW_VERSIONS, name=name)
        return cast("list[WorkflowVersion]", await self._http.json(sent))

    async def show_version(self, name: str, version: int) -> WorkflowVersion:
        """A version of a workflow."""
        sent = request(operations.SHOW_WORKFLOW_VERSION, name=name, version=version)
        return cast("WorkflowVersion", await self._http.json(sent))

    async def delete_version(self, name: str, version: int) -> None:
        """Removes an inactive version of a workflow."""
        await self._http.json(request(operations.DELETE_WORKFLOW_VERSION, name=name, version=version))
