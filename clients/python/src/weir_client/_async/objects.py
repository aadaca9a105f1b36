"""Named objects, API keys and secrets."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import _operations as operations
from .._request import request
from ..schema import ApiKey, CreatedApiKey, Object, Scope, Secret, SecretRotation
from .._tensors import datatype_of, from_bytes, to_bytes
from .http import AsyncHttp


class AsyncObjects:
    """Named objects of the tenant: stored tensors."""

    def __init__(self, http: AsyncHttp) -> None:
        self._http = http

    async def put(self, name: str, value: ArrayLike, *, ttl_s: float | None = None) -> Object:
        """Stores an array, for `ttl_s` seconds or the node's default."""
        array = np.asarray(value)
        query = {
            "datatype": datatype_of(array),
            "shape": ",".join(str(size) for size in array.shape),
            "ttl_ms": None if ttl_s is None else round(ttl_s * 1000),
        }
        headers = {"content-type": "application/octet-stream"}
        content = to_bytes(array)
        sent = request(operations.PUT_OBJECT, query=query, headers=headers, content=content, name=name)
        return cast("Object", await self._http.json(sent))

    async def get(self, name: str) -> NDArray[Any]:
        """The array that an object contains."""
        response = await self._http.send(request(operations.READ_OBJECT, name=name))
        shape = response.headers.get("weir-shape", "")
        sizes = [int(size) for size in shape.split(",")] if shape else []
        return from_bytes(response.headers.get("weir-datatype", ""), sizes, response.content)

    async def list(self) -> builtins.list[Object]:
        """All objects, by name."""
        return cast("list[Object]", await self._http.json(request(operations.LIST_OBJECTS)))

    async def show(self, name: str) -> Object:
        """Type, shape, size, hash, time of the put and expiry of an object."""
        return cast("Object", await self._http.json(request(operations.SHOW_OBJECT, name=name)))

    async def delete(self, name: str) -> None:
        """Deletes an object."""
        await self._http.json(request(operations.DELETE_OBJECT, name=name))


class AsyncKeys:
    """API keys of the tenant. All operations need the scope `admin`."""

    def __init__(self, http: AsyncHttp) -> None:
        self._http = http

    async def create(
        self,
        name: str,
        scopes: Sequence[Scope],
        *,
        functions: Sequence[str] = (),
        ttl_s: float | None = None,
    ) -> CreatedApiKey:
        """Creates an API key. Only this response contains its token."""
        body: dict[str, Any] = {"scopes": [*scopes]}
        if functions:
            body["functions"] = [*functions]
        if ttl_s is not None:
            body["ttl_ms"] = round(ttl_s * 1000)
        return cast("CreatedApiKey", await self._http.json(request(operations.CREATE_KEY, json=body, name=name)))

    async def list(self) -> builtins.list[ApiKey]:
        """All API keys, by name, without their tokens."""
        return cast("list[ApiKey]", await self._http.json(request(operations.LIST_KEYS)))

    async def show(self, name: str) -> ApiKey:
        """Scopes, functions and expiry of an API key."""
        return cast("ApiKey", await self._http.json(request(operations.SHOW_KEY, name=name)))

    async def revoke(self, name: str) -> None:
        """Revokes an API key."""
        await self._http.json(request(operations.REVOKE_KEY, name=name))


class AsyncSecrets:
    """Secrets of the tenant: values that functions get, and that no method returns."""

    def __init__(self, http: AsyncHttp) -> None:
        self._http = http

    async def set(self, name: str, value: str, *, force: bool = False) -> Secret:
        """Stores a value: of a new secret, or the next version of an existing one.

        With `force`, also if the node lacks the key of other secrets.
        """
        headers = {"content-type": "application/octet-stream"}
        query = {"force": force or None}
        sent = request(operations.SET_SECRET, query=query, headers=headers, content=value.encode(), secret=name)
        return cast("Secret", await self._http.json(sent))

    async def list(self) -> builtins.list[Secret]:
        """All secrets, by name, without values."""
        return cast("list[Secret]", await self._http.json(request(operations.LIST_SECRETS)))

    async def show(self, name: str) -> Secret:
        """Version, size, times, key and functions of a secret."""
        return cast("Secret", await self._http.json(request(operations.SHOW_SECRET, secret=name)))

    async def delete(self, name: str, *, force: bool = False) -> None:
        """Deletes a secret; with `force`, also if functions get it."""
        await self._http.json(request(operations.DELETE_SECRET, query={"force": force or None}, secret=name))

    async def rotate(self) -> SecretRotation:
        """Encrypts all secrets with the first key of the node. Needs the scope `admin`."""
        return cast("SecretRotation", await self._http.json(request(operations.ROTATE_SECRET_KEYS)))
