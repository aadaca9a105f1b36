"""Models and kernel graphs."""

from __future__ import annotations

import builtins
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

from .. import _operations as operations
from .._request import LabelSource, Operation, Upload, labels_form, manifest_header, request, upload
from ..schema import (
    AliasTarget,
    CanaryReport,
    Capacity,
    IndexEntry,
    Model,
    ModelConfig,
    ModelManifest,
    ModelMetadata,
    ModelPushed,
    ModelStatistics,
    ModelVersion,
    ProfileEvent,
    ProfileRequest,
    ShadowReport,
)
from .http import AsyncHttp


class AsyncModels:
    """Models of the tenant.

    `metadata`, `is_ready`, `config` and `statistics` also take the name of a tensor function, a
    workflow or a kernel graph.
    """

    def __init__(self, http: AsyncHttp) -> None:
        self._http = http

    async def push(
        self,
        name: str,
        model: Upload,
        manifest: ModelManifest | None = None,
        *,
        version: int | None = None,
        allow_signature_change: bool = False,
        labels: LabelSource | Mapping[str, LabelSource] | None = None,
        canary: int | None = None,
        promote_after_s: float | None = None,
        shadow: int | None = None,
        preview: bool = False,
    ) -> ModelPushed:
        """Pushes an ONNX file: its bytes, or its path. By default, it becomes the next version.

        `canary` gives the version this percentage of the runs; the node promotes it after
        `promote_after_s`, unless it is worse than the active version. `shadow` copies this percentage
        of the inferences of clients to the version. `preview` makes a version that gets only the runs
        that name it.

        `labels` names the classes of the only output, or of each output by its name: as a list, or
        as the path of a file with a label per line.
        """
        query = {
            "allow_signature_change": allow_signature_change or None,
            "canary": canary,
            "promote_after_ms": None if promote_after_s is None else round(promote_after_s * 1000),
            "shadow": shadow,
            "preview": preview or None,
        }
        content_type = "application/octet-stream"
        around = (b"", b"")
        if labels is not None:
            content_type, around = labels_form(labels)
        headers = {"content-type": content_type, **manifest_header(manifest)}
        content = upload(model)
        if version is None:
            sent = request(
                operations.PUSH_NEXT_MODEL,
                query=query,
                headers=headers,
                content=content,
                around=around,
                name=name,
            )
        else:
            sent = request(
                operations.PUSH_MODEL,
                query=query,
                headers=headers,
                content=content,
                around=around,
                name=name,
                version=version,
            )
        return cast("ModelPushed", await self._http.json(sent))

    async def list(self) -> builtins.list[Model]:
        """All models, by name."""
        return cast("list[Model]", await self._http.json(request(operations.LIST_MODELS)))

    async def show(self, name: str) -> Model:
        """The active version of a model, and the numbers of all versions."""
        return cast("Model", await self._http.json(request(operations.SHOW_MODEL, name=name)))

    async def delete(self, name: str) -> None:
        """Removes a model with all versions."""
        await self._http.json(request(operations.DELETE_MODEL, name=name))

    async def canary(self, name: str) -> CanaryReport:
        """The canary of a model, with its runs and those of the active version."""
        return cast("CanaryReport", await self._http.json(request(operations.SHOW_MODEL_CANARY, name=name)))

    async def shadow(self, name: str) -> ShadowReport:
        """The shadow of a model, and the comparison of its copies with the copied inferences."""
        return cast("ShadowReport", await self._http.json(request(operations.SHOW_MODEL_SHADOW, name=name)))

    async def promote(self, name: str, version: int | None = None) -> Model:
        """Makes the canary of a model its active version, or the given version."""
        sent = request(operations.PROMOTE_MODEL_CANARY, json={"version": version}, name=name)
        return cast("Model", await self._http.json(sent))

    async def rollback(self, name: str, version: int | None = None) -> ModelVersion:
        """Ends a canary or a shadow, or pushes an earlier version again, as the newest version."""
        sent = request(operations.ROLL_BACK_MODEL, json={"version": version}, name=name)
        return cast("ModelVersion", await self._http.json(sent))

    async def set_alias(self, name: str, alias: str, version: int) -> AliasTarget:
        """Gives a version of a model another name, such as `stable`."""
        sent = request(operations.SET_MODEL_ALIAS, json={"version": version}, name=name, alias=alias)
        return cast("AliasTarget", await self._http.json(sent))

    async def rollback_alias(self, name: str, alias: str) -> AliasTarget:
        """Returns an alias to the version that it named before."""
        sent = request(operations.ROLL_BACK_MODEL_ALIAS, name=name, alias=alias)
        return cast("AliasTarget", await self._http.json(sent))

    async def delete_alias(self, name: str, alias: str) -> None:
        """Removes an alias of a model."""
        await self._http.json(request(operations.DELETE_MODEL_ALIAS, name=name, alias=alias))

    async def show_version(self, name: str, version: int) -> ModelVersion:
        """A version of a model."""
        sent = request(operations.SHOW_MODEL_VERSION, name=name, version=version)
        return cast("ModelVersion", await self._http.json(sent))

    async def delete_version(self, name: str, version: int) -> None:
        """Removes a version of a model."""
        await self._http.json(request(operations.DELETE_MODEL_VERSION, name=name, version=version))

    async def release(self, name: str, version: int) -> ModelVersion:
        """Ends the quarantine of a version on the node."""
        sent = request(operations.RELEASE_MODEL_VERSION, name=name, version=version)
        return cast("ModelVersion", await self._http.json(sent))

    async def profile(self, name: str, settings: ProfileRequest | None = None) -> AsyncIterator[ProfileEvent]:
        """Measures a model in several configurations. Yields each result when it is measured."""
        sent = request(operations.PROFILE_MODEL, json=settings or {}, name=name)
        async for line in self._http.lines(sent):
            if line:
                yield cast("ProfileEvent", json.loads(line))

    async def capacity(self, name: str, *, rate: float, slo_ms: float, version: int | None = None) -> Capacity:
        """Chooses a configuration from a model's profile, for items per second and a latency."""
        query = {"rate": rate, "slo_ms": slo_ms, "version": version}
        sent = request(operations.PLAN_CAPACITY, query=query, name=name)
        return cast("Capacity", await self._http.json(sent))

    async def load(self, name: str) -> None:
        """Loads a model into device memory in advance."""
        await self._http.json(request(operations.LOAD_MODEL, name=name))

    async def unload(self, name: str) -> None:
        """Frees a model's device memory when no call uses it."""
        await self._http.json(request(operations.UNLOAD_MODEL, name=name))

    async def index(self, *, ready: bool = False) -> builtins.list[IndexEntry]:
        """All versions of models, tensor functions and workflows, or only those that are ready."""
        sent = request(operations.LIST_REPOSITORY, json={"ready": ready}, is_repeatable=True)
        return cast("list[IndexEntry]", await self._http.json(sent))

    async def metadata(self, name: str, version: int | str | None = None) -> ModelMetadata:
        """Inputs and outputs."""
        kinds = (operations.SHOW_METADATA, operations.SHOW_METADATA_VERSION)
        return cast("ModelMetadata", await self._of_version(kinds, name, version))

    async def is_ready(self, name: str, version: int | str | None = None) -> bool:
        """Whether inferences are answered. An unknown name is `NotFoundError`."""
        kinds = (operations.IS_MODEL_READY, operations.IS_MODEL_READY_VERSION)
        answer = await self._of_version(kinds, name, version)
        return bool(answer["ready"])

    async def config(self, name: str, version: int | str | None = None) -> ModelConfig:
        """The configuration, in Triton's format."""
        kinds = (operations.SHOW_CONFIG, operations.SHOW_CONFIG_VERSION)
        return cast("ModelConfig", await self._of_version(kinds, name, version))

    async def statistics(
        self, name: str | None = None, version: int | str | None = None
    ) -> builtins.list[ModelStatistics]:
        """Counts and times since the node's start, of one name or of all names."""
        if name is None:
            answer = await self._http.json(request(operations.SHOW_ALL_STATISTICS))
        else:
            kinds = (operations.SHOW_STATISTICS, operations.SHOW_STATISTICS_VERSION)
            answer = await self._of_version(kinds, name, version)
        return cast("list[ModelStatistics]", answer["model_stats"])

    async def _of_version(
        self, kinds: tuple[Operation, Operation], name: str, version: int | str | None
    ) -> Any:
        newest, numbered = kinds
        if version is None:
            return await self._http.json(request(newest, name=name))
        return await self._http.json(request(numbered, name=name, version=version))


class AsyncKernelGraphs:
    """Kernel graphs of the tenant."""

    def __init__(self, http: AsyncHttp) -> None:
        self._http = http

    async def push(
        self,
        name: str,
        graph: Mapping[str, Any],
        sources: Mapping[str, str] | None = None,
        manifest: ModelManifest | None = None,
        *,
        version: int | None = None,
        allow_signature_change: bool = False,
    ) -> ModelPushed:
        """Pushes a kernel graph with its sources by file name."""
        query = {"allow_signature_change": allow_signature_change or None}
        body: dict[str, Any] = {"graph": dict(graph)}
        if sources is not None:
            body["sources"] = dict(sources)
        headers = manifest_header(manifest)
        if version is None:
            next_version = operations.PUSH_NEXT_KERNEL_GRAPH
            sent = request(next_version, query=query, headers=headers, json=body, name=name)
        else:
            sent = request(
                operations.PUSH_KERNEL_GRAPH,
                query=query,
                headers=headers,
                json=body,
                name=name,
                version=version,
            )
        return cast("ModelPushed", await self._http.json(sent))

    async def list(self) -> builtins.list[Model]:
        """All kernel graphs, by name."""
        return cast("list[Model]", await self._http.json(request(operations.LIST_KERNEL_GRAPHS)))

    async def show(self, name: str) -> Model:
        """The newest version of a kernel graph, and the numbers of all versions."""
        return cast("Model", await self._http.json(request(operations.SHOW_KERNEL_GRAPH, name=name)))

    async def delete(self, name: str) -> None:
        """Removes a kernel graph with all versions."""
        await self._http.json(request(operations.DELETE_KERNEL_GRAPH, name=name))

    async def rollback(self, name: str, version: int | None = None) -> ModelVersion:
        """Pushes an earlier version again, as the newest version."""
        sent = request(operations.ROLL_BACK_KERNEL_GRAPH, json={"version": version}, name=name)
        return cast("ModelVersion", await self._http.json(sent))

    async def show_version(self, name: str, version: int) -> ModelVersion:
        """A version of a kernel graph."""
        sent = request(operations.SHOW_KERNEL_GRAPH_VERSION, name=name, version=version)
        return cast("ModelVersion", await self._http.json(sent))

    async def delete_version(self, name: str, version: int) -> None:
        """Removes a version of a kernel graph."""
        await self._http.json(request(operations.DELETE_KERNEL_GRAPH_VERSION, name=name, version=version))
