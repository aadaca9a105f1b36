"""The client covers the OpenAPI document and the reference of error codes."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import httpx2
import numpy as np
import pytest
import yaml
from conftest import REPOSITORY
from offline import client, error

import weir_client
from weir_client import ApiError, Client, Output

sys.path.insert(0, str(REPOSITORY / "clients/python"))
import generate  # noqa: E402

DOCUMENT = yaml.safe_load(generate.DOCUMENT.read_text())

# Routes for browsers and people.
NOT_COVERED = {
    "index": "a page of text",
    "dashboard": "a page for browsers",
    "dashboardWithSlash": "a page for browsers",
    "dashboardFile": "a page for browsers",
    "backUp": "an archive, which `weir backup` checks",
    "showServerWithSlash": "the same as showServer",
}

# Query parameters that the client has another way for.
OTHER_WAYS = {"manifest": "the header weir-manifest", "keys": "the header weir-manifest"}

ID = "0" * 32
INPUTS = {"x": np.zeros(2, np.float32)}

# A call of every method, with all parameters of its query.
CALLS: list[Callable[[Client], Any]] = [
    lambda weir: weir.is_live(),
    lambda weir: weir.is_ready(),
    lambda weir: weir.metrics(),
    lambda weir: weir.openapi(),
    lambda weir: weir.status(),
    lambda weir: weir.usage(),
    lambda weir: weir.tenants(),
    lambda weir: weir.calls(kind="model", name="m", outcome="failed", limit=2),
    lambda weir: weir.call_timeline("r"),
    lambda weir: weir.server(),
    lambda weir: weir.placement("r"),
    lambda weir: weir.events(kinds=["fault", "evicted"], name="f", since_ms=1, limit=2),
    lambda weir: list(weir.follow_events(kinds=["fault"], name="f", since_ms=1, limit=2)),
    lambda weir: weir.deploy(
        "f",
        None,
        {"models": ["m"]},
        digest="0" * 64,
        dry_run=True,
        strict=True,
        canary=10,
        promote_after_s=60,
        shadow=10,
        preview=True,
    ),
    lambda weir: weir.functions.canary("f"),
    lambda weir: weir.functions.shadow("f"),
    lambda weir: weir.functions.promote("f", 2),
    lambda weir: weir.functions.set_alias("f", "stable", 1),
    lambda weir: weir.functions.rollback_alias("f", "stable"),
    lambda weir: weir.functions.delete_alias("f", "stable"),
    lambda weir: weir.functions.list(),
    lambda weir: weir.functions.show("f"),
    lambda weir: weir.functions.delete("f"),
    lambda weir: weir.functions.rollback("f", 1),
    lambda weir: weir.functions.versions("f"),
    lambda weir: weir.functions.show_version("f", 1),
    lambda weir: weir.functions.delete_version("f", 1),
    lambda weir: weir.functions.logs("f", 10),
    lambda weir: list(weir.functions.follow_logs("f", 10)),
    *[
        lambda weir, method=method, path=path: weir.call("f", path, method=method)
        for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
        for path in ("", "/some/path")
    ],
    lambda weir: weir.embeddings("f", "text"),
    lambda weir: weir.models.push(
        "m",
        b"model",
        {"device": "cpu"},
        allow_signature_change=True,
        canary=10,
        promote_after_s=60,
        shadow=10,
        preview=True,
    ),
    lambda weir: weir.models.push(
        "m",
        b"model",
        version=2,
        allow_signature_change=True,
        canary=10,
        promote_after_s=60,
        shadow=10,
        preview=True,
    ),
    lambda weir: weir.models.canary("m"),
    lambda weir: weir.models.shadow("m"),
    lambda weir: weir.models.promote("m", 2),
    lambda weir: weir.models.set_alias("m", "stable", 1),
    lambda weir: weir.models.rollback_alias("m", "stable"),
    lambda weir: weir.models.delete_alias("m", "stable"),
    lambda weir: weir.models.list(),
    lambda weir: weir.models.show("m"),
    lambda weir: weir.models.delete("m"),
    lambda weir: weir.models.rollback("m"),
    lambda weir: weir.models.show_version("m", 1),
    lambda weir: weir.models.delete_version("m", 1),
    lambda weir: weir.models.release("m", 1),
    lambda weir: list(weir.models.profile("m", {"batch": [1, 2]})),
    lambda weir: weir.models.capacity("m", rate=1.5, slo_ms=20, version=1),
    lambda weir: weir.models.load("m"),
    lambda weir: weir.models.unload("m"),
    lambda weir: weir.models.index(ready=True),
    lambda weir: weir.models.metadata("m"),
    lambda weir: weir.models.metadata("m", 1),
    lambda weir: weir.models.is_ready("m"),
    lambda weir: weir.models.is_ready("m", 1),
    lambda weir: weir.models.config("m"),
    lambda weir: weir.models.config("m", 1),
    lambda weir: weir.models.statistics(),
    lambda weir: weir.models.statistics("m"),
    lambda weir: weir.models.statistics("m", 1),
    lambda weir: weir.infer("m", INPUTS, outputs=[Output("y", classification=2)]),
    lambda weir: weir.infer("m", INPUTS, version=1),
    lambda weir: weir.kernel_graphs.push("k", {"name": "k"}, {"k.cu": "x"}, allow_signature_change=True),
    lambda weir: weir.kernel_graphs.push("k", {}, version=1, allow_signature_change=True),
    lambda weir: weir.kernel_graphs.list(),
    lambda weir: weir.kernel_graphs.show("k"),
    lambda weir: weir.kernel_graphs.delete("k"),
    lambda weir: weir.kernel_graphs.rollback("k", 1),
    lambda weir: weir.kernel_graphs.show_version("k", 1),
    lambda weir: weir.kernel_graphs.delete_version("k", 1),
    lambda weir: weir.workflows.deploy("w", "[steps]", dry_run=True, slo_ms=10, cost_slo=0.5),
    lambda weir: weir.workflows.list(),
    lambda weir: weir.workflows.show("w"),
    lambda weir: weir.workflows.delete("w"),
    lambda weir: weir.workflows.rollback("w"),
    lambda weir: weir.workflows.set_alias("w", "stable", 1),
    lambda weir: weir.workflows.rollback_alias("w", "stable"),
    lambda weir: weir.workflows.delete_alias("w", "stable"),
    lambda weir: weir.workflows.versions("w"),
    lambda weir: weir.workflows.show_version("w", 1),
    lambda weir: weir.workflows.delete_version("w", 1),
    lambda weir: weir.objects.put("o", INPUTS["x"], ttl_s=60),
    lambda weir: weir.objects.get("o"),
    lambda weir: weir.objects.list(),
    lambda weir: weir.objects.show("o"),
    lambda weir: weir.objects.delete("o"),
    lambda weir: weir.submit("f", "/", content=b"x"),
    lambda weir: weir.submit_infer("m", INPUTS),
    lambda weir: list(weir.invocations.list(status="done", name="f", limit=5)),
    lambda weir: weir.invocations.show(ID, wait_s=1.0),
    lambda weir: weir.invocations.result(ID),
    lambda weir: weir.invocations.infer_result(ID),
    lambda weir: list(weir.invocations.follow(ID)),
    lambda weir: weir.invocations.cancel(ID),
    lambda weir: weir.invocations.retry(ID),
    lambda weir: weir.invocations.delete(ID),
    lambda weir: weir.keys.create("k", ["invoke"], functions=["f"], ttl_s=60),
    lambda weir: weir.keys.list(),
    lambda weir: weir.keys.show("k"),
    lambda weir: weir.keys.revoke("k"),
    lambda weir: weir.secrets.set("K", "value", force=True),
    lambda weir: weir.secrets.list(),
    lambda weir: weir.secrets.show("K"),
    lambda weir: weir.secrets.delete("K", force=True),
    lambda weir: weir.secrets.rotate(),
    lambda weir: weir.triggers.put("t", {"source": {"every_ms": 1000}, "target": {"function": "f"}}),
    lambda weir: weir.triggers.list(),
    lambda weir: weir.triggers.show("t"),
    lambda weir: weir.triggers.run("t"),
    lambda weir: weir.triggers.send("t", {"id": "1", "source": "/a", "type": "t", "data": {"n": 1}}),
    lambda weir: weir.triggers.pause("t"),
    lambda weir: weir.triggers.resume("t"),
    lambda weir: weir.triggers.delete("t"),
]


def operation_of(request: httpx2.Request) -> str:
    """Id of the operation of the document that a request calls."""
    path = request.url.raw_path.split(b"?")[0].decode()
    matches = []
    for name, method, template in generate.operations(DOCUMENT):
        pattern = re.sub(r"\\{path\\}", ".+", re.sub(r"\\{(?!path)\w+\\}", "[^/]+", re.escape(template)))
        # `/fn/f/` is the root path, too.
        if method == request.method and re.fullmatch(pattern, path.rstrip("/") or path):
            matches.append((template.count("{"), name))
    assert matches, f"{request.method} {path} is not in the document"
    return min(matches)[1]


def answer(request: httpx2.Request) -> httpx2.Response:
    """A response that every method can read."""
    path = request.url.path
    if path.endswith(("/logs", "/profile")):
        return httpx2.Response(200, text='\n{"event": "done"}\n')
    if path == "/v1/invocations":
        after = request.url.params.get("after")
        return httpx2.Response(200, json={"invocations": [], "next": None if after else ID})
    if path.endswith("/data"):
        return httpx2.Response(200, content=bytes(8), headers={"weir-datatype": "FP32", "weir-shape": "2"})
    status = 202 if "prefer" in request.headers else 200
    body = {"outputs": [], "ready": True, "model_stats": []}
    return httpx2.Response(status, json=body, headers={"preference-applied": "respond-async"})


@pytest.fixture(scope="module")
def requests() -> list[httpx2.Request]:
    """The requests of all calls."""
    sent: list[httpx2.Request] = []

    def record(request: httpx2.Request) -> httpx2.Response:
        sent.append(request)
        return answer(request)

    with client(record) as weir:
        for call in CALLS:
            call(weir)
    return sent


def test_generated_files_are_current() -> None:
    assert generate.outdated() == [], "run `python3 clients/python/generate.py`"


def test_every_route_has_a_method(requests: list[httpx2.Request]) -> None:
    called = {operation_of(request) for request in requests}
    documented = {name for name, _, _ in generate.operations(DOCUMENT)}
    assert documented - called == NOT_COVERED.keys()


def test_every_query_parameter_is_documented_and_sent(requests: list[httpx2.Request]) -> None:
    sent: dict[str, list[set[str]]] = {}
    for request in requests:
        sent.setdefault(operation_of(request), []).append(set(request.url.params.keys()))
    components = DOCUMENT["components"]["parameters"]
    for item in DOCUMENT["paths"].values():
        for method, operation in item.items():
            name = operation["operationId"] if method != "parameters" else ""
            if name not in sent:
                continue
            parameters = [*item.get("parameters", []), *operation.get("parameters", [])]
            resolved = [components[generate.referenced(each)] if "$ref" in each else each for each in parameters]
            documented = {each["name"] for each in resolved if each["in"] == "query"} - OTHER_WAYS.keys()
            assert set().union(*sent[name]) == documented, name
            # Other methods follow, and the first page is after no other page.
            assert all(documented - keys <= {"follow", "after"} for keys in sent[name]), name


def test_every_header_of_a_call_is_documented_and_sent() -> None:
    def record(request: httpx2.Request) -> httpx2.Response:
        sent.update(request.headers.keys())
        return answer(request)

    sent: set[str] = set()
    with client(record) as weir:
        weir.infer("m", INPUTS, priority=1, request_id="r", version_key="user", explain=True)
        weir.submit_infer("m", INPUTS, callback="http://callback.test/", wait_s=1)
    # The others of the document are for callers: traces, caches and compression.
    assert sent >= {
        "weir-request-id",
        "weir-priority",
        "weir-version-key",
        "weir-explain",
        "prefer",
        "idempotency-key",
        "weir-callback",
        "inference-header-content-length",
    }


def error_codes() -> list[tuple[str, int]]:
    """Codes and statuses in the reference."""
    text = (REPOSITORY / "docs/reference/errors.md").read_text()
    return [(code, int(status)) for code, status in re.findall(r"^\| `([a-z-]+)` \| (\d+) \|", text, re.M)]


def test_every_error_code_is_raised_with_its_fields() -> None:
    codes = error_codes()
    assert len(codes) > 60
    for code, status in codes:
        headers = {"retry_after": "7"} if status in (429, 503) else {}
        with client(lambda _: error(status, code, **headers), retry=weir_client.RetryPolicy(0)) as weir:
            with pytest.raises(ApiError) as raised:
                weir.call("f", method="POST")
        caught = raised.value
        assert (caught.status, caught.code, caught.request_id) == (status, code, "r-1")
        assert caught.message == f"the text of {code}" and caught.message in str(caught)
        assert caught.retry_after == (7 if headers else None)
        assert type(caught) is not ApiError, f"{code} ({status}) has no exception"


def test_types_have_the_keys_of_the_document() -> None:
    for name, kind in [
        ("Deployed", weir_client.schema.Deployed),
        ("Invocation", weir_client.schema.Invocation),
        ("Status", weir_client.schema.Status),
    ]:
        schema = DOCUMENT["components"]["schemas"][name]
        keys = set(schema.get("properties", {}))
        for part in schema.get("allOf", []):
            keys |= set(DOCUMENT["components"]["schemas"][generate.referenced(part)]["properties"])
        assert keys == set(kind.__annotations__), name
