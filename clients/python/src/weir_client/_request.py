"""Descriptions of requests, which both clients send."""

from __future__ import annotations

import json as jsonlib
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from ._retry import is_idempotent

Upload = bytes | bytearray | memoryview | str | os.PathLike[str]
"""Contents of an upload, or the path of its file."""

LabelSource = str | os.PathLike[str] | Sequence[str]
"""Labels of an output, or the path of a file with a label per line."""

Query = Mapping[str, Any]
"""Parameters of a query. `None` leaves a parameter out."""

Headers = Mapping[str, str]


@dataclass(frozen=True)
class Operation:
    """A method and a path of the HTTP API, whose names in braces are filled in."""

    method: str
    path: str
    is_repeatable: bool
    """Whether a request may be sent again although the node may have executed it."""


@dataclass(frozen=True)
class Request:
    """A request to a node."""

    method: str
    target: str
    """Path and query, encoded."""
    headers: dict[str, str] = field(default_factory=dict)
    content: bytes | Path | None = None
    """The body, or the file that is sent as the body."""
    around: tuple[bytes, bytes] = (b"", b"")
    """The parts of the body before and after the file: of a form with a file."""
    is_repeatable: bool = False
    wait_s: float = 0.0
    """Time that the node may take in addition to the client's timeout."""


def request(
    operation: Operation,
    *,
    query: Query | None = None,
    headers: Headers | None = None,
    json: Any = None,
    content: bytes | Path | None = None,
    around: tuple[bytes, bytes] = (b"", b""),
    wait_s: float = 0.0,
    is_repeatable: bool | None = None,
    **names: str | int,
) -> Request:
    """A request of an operation, with the values of the names in its path."""
    path = operation.path
    for name, value in names.items():
        path = path.replace(f"{{{name}}}", segment(str(value)))
    sent = dict(headers or {})
    if json is not None:
        content = jsonlib.dumps(json).encode()
        sent.setdefault("content-type", "application/json")
    return Request(
        method=operation.method,
        target=path + encoded(query),
        headers=sent,
        content=content,
        around=around,
        is_repeatable=operation.is_repeatable if is_repeatable is None else is_repeatable,
        wait_s=wait_s,
    )


def call_request(
    function: str,
    path: str,
    *,
    method: str | None,
    query: Query | None,
    headers: Headers | None,
    content: bytes | str | None,
    json: Any,
    idempotent: bool | None,
) -> Request:
    """A call of a function."""
    if any(part in (".", "..") for part in path.split("?", 1)[0].split("/")):
        raise ValueError(f"the path {path!r} has a segment `.` or `..`")
    sent = {name.lower(): value for name, value in (headers or {}).items()}
    if json is not None:
        if content is not None:
            raise ValueError("a call takes `content` or `json`, not both")
        content = jsonlib.dumps(json).encode()
        sent.setdefault("content-type", "application/json")
    if isinstance(content, str):
        content = content.encode()
    method = (method or ("GET" if content is None else "POST")).upper()
    tail = path if path.startswith(("/", "?")) else f"/{path}"
    query_text = encoded(query)
    if "?" in tail and query_text:
        query_text = "&" + query_text[1:]
    return Request(
        method=method,
        target=f"/fn/{segment(function, safe=':@')}{quote(tail, safe=_SAFE)}{query_text}",
        headers=sent,
        content=content,
        is_repeatable=is_idempotent(method) if idempotent is None else idempotent,
    )


# Characters of a path with a query that stay as they are; `%` because a path may be encoded already.
_SAFE = "/?&=:@!$'()*+,;~%"


def segment(name: str, safe: str = "") -> str:
    """A name as one segment of a path."""
    if name in ("", ".", ".."):
        raise ValueError(f"{name!r} is not a name")
    return quote(name, safe=safe)


def encoded(query: Query | None) -> str:
    """A query with its question mark, or an empty string."""
    given = {name: value for name, value in (query or {}).items() if value is not None}
    return f"?{urlencode({name: _text(value) for name, value in given.items()})}" if given else ""


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ",".join(str(item) for item in value)
    return str(value)


def upload(source: Upload) -> bytes | Path:
    """The body of an upload. Text is a path."""
    return Path(source) if isinstance(source, (str, os.PathLike)) else bytes(source)


def labels_form(labels: LabelSource | Mapping[str, LabelSource]) -> tuple[str, tuple[bytes, bytes]]:
    """The content type of a form with labels, and its parts before and after the model."""
    outputs = {f"labels.{output}": source for output, source in labels.items()} if isinstance(labels, Mapping) else {"labels": labels}
    # No model contains it by chance.
    boundary = f"weir-{secrets.token_hex(16)}"
    start = b""
    for field_name, source in outputs.items():
        if not field_name.isprintable() or '"' in field_name or "\\" in field_name:
            raise ValueError(f"{field_name!r} does not name an output of a model")
        start += _field(boundary, field_name) + _lines(source) + b"\r\n"
    return f"multipart/form-data; boundary={boundary}", (
        start + _field(boundary, "model"),
        f"\r\n--{boundary}--\r\n".encode(),
    )


def _field(boundary: str, name: str) -> bytes:
    return f'--{boundary}\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n'.encode()


def _lines(labels: LabelSource) -> bytes:
    if isinstance(labels, (str, os.PathLike)):
        return Path(labels).read_bytes()
    for label in labels:
        if len(label.splitlines()) > 1 or label.endswith(("\n", "\r")):
            raise ValueError(f"the label {label!r} has more than one line")
    return "\n".join(labels).encode()


def manifest_header(manifest: Mapping[str, Any] | None) -> dict[str, str]:
    """The header with a manifest, if there is one."""
    return {} if manifest is None else {"weir-manifest": jsonlib.dumps(manifest)}


def call_headers(
    priority: int | None,
    request_id: str | None,
    version_key: str | None,
    explain: bool,
    headers: Headers | None = None,
) -> dict[str, str]:
    """Headers of a call or an inference."""
    sent = dict(headers or {})
    if priority is not None:
        sent["weir-priority"] = str(priority)
    if request_id is not None:
        sent["weir-request-id"] = request_id
    if version_key is not None:
        sent["weir-version-key"] = version_key
    if explain:
        sent["weir-explain"] = "1"
    return sent


def asynchronous_headers(key: str, callback: str | None, wait_s: int | None) -> dict[str, str]:
    """Headers of an asynchronous invocation."""
    sent = {
        "prefer": "respond-async" if wait_s is None else f"respond-async, wait={wait_s}",
        "idempotency-key": key,
    }
    if callback is not None:
        sent["weir-callback"] = callback
    return sent
