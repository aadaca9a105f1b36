"""Requests and retries, without a node."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest
from offline import client, error

from weir_client import (
    ApiError,
    Client,
    FunctionError,
    ProtocolError,
    RequestTimeout,
    RetryPolicy,
    TransportError,
    UnavailableError,
)
from weir_client._lines import LINE_BYTES_MAX, LineSplitter
from weir_client._sse import EventParser, ServerSentEvent

OK = httpx2.Response(200, json={})


class Attempts:
    """Answers of a node, one for each attempt. An exception is a failed connection."""

    def __init__(self, *answers: httpx2.Response | Exception) -> None:
        self.answers = list(answers)
        self.requests: list[httpx2.Request] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        answer = self.answers[min(len(self.requests), len(self.answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer


def attempts(call: Callable[[Client], Any], *answers: httpx2.Response | Exception) -> int:
    """Number of attempts of a call, whose last attempt may fail."""
    node = Attempts(*answers)
    with client(node) as weir:
        try:
            call(weir)
        except (ApiError, TransportError):
            pass
    return len(node.requests)


def post(weir: Client) -> Any:
    return weir.call("f", content=b"body")


def get(weir: Client) -> Any:
    return weir.status()


@pytest.mark.parametrize(("status", "code"), [(429, "queue-full"), (429, "rate-limited"), (503, "unavailable")])
def test_rejected_calls_are_repeated_with_their_body(status: int, code: str) -> None:
    node = Attempts(error(status, code, retry_after="0"), OK)
    with client(node) as weir:
        assert weir.call("f", content=b"body").status == 200
    assert [request.content for request in node.requests] == [b"body", b"body"]


def test_retries_are_limited() -> None:
    assert attempts(post, error(429, "queue-full", retry_after="0")) == 4
    node = Attempts(error(429, "queue-full", retry_after="0"))
    with client(node, retry=RetryPolicy(0)) as weir, pytest.raises(ApiError):
        post(weir)
    assert len(node.requests) == 1


def test_longer_retry_after_than_the_longest_wait_fails_at_once() -> None:
    assert attempts(get, error(429, "rate-limited", retry_after="31"), OK) == 1


def test_retry_waits_for_retry_after_and_backs_off() -> None:
    policy = RetryPolicy(retries_max=5, wait_min_s=1.0, wait_max_s=100.0)
    rejected = UnavailableError(503, "unavailable", "text", retry_after=7.0)
    waits = [policy.wait_s(rejected, attempt, False) for attempt in range(1, 6)]
    for attempt, wait in enumerate(waits):
        assert wait is not None and 7 + 2**attempt / 2 <= wait <= 7 + 2**attempt
    assert policy.wait_s(rejected, 6, True) is None


def test_calls_are_repeated_after_a_refused_connection() -> None:
    assert attempts(post, httpx2.ConnectError("refused"), OK) == 2


def test_only_idempotent_requests_are_repeated_after_a_lost_connection() -> None:
    lost = httpx2.RemoteProtocolError("the server disconnected")
    assert attempts(post, lost, OK) == 1
    assert attempts(get, lost, OK) == 2
    assert attempts(lambda weir: weir.call("f", content=b"x", idempotent=True), lost, OK) == 2
    assert attempts(lambda weir: weir.infer("m", {"x": [1.0]}), lost, OK) == 1
    assert attempts(lambda weir: weir.models.push("m", b"model"), lost, OK) == 1
    assert attempts(lambda weir: weir.models.delete("m"), lost, OK) == 1
    assert attempts(lambda weir: weir.models.push("m", b"model", version=3), lost, OK) == 2


@pytest.mark.parametrize("code", ["node-lost", "worker-lost"])
def test_only_idempotent_requests_are_repeated_after_a_lost_node(code: str) -> None:
    assert attempts(post, error(502, code), OK) == 1
    assert attempts(get, error(502, code), OK) == 2


@pytest.mark.parametrize("code", ["model-quarantined", "deadline-exceeded", "guest-trap", "no-capacity"])
def test_errors_that_a_repetition_does_not_change_are_raised_at_once(code: str) -> None:
    assert attempts(get, error(503, code), OK) == 1


def test_responses_of_functions_are_never_repeated() -> None:
    own = httpx2.Response(503, headers={"retry-after": "0"}, text="later")
    node = Attempts(own)
    with client(node) as weir:
        response = weir.call("f")
        assert (response.status, response.text, response.is_success) == (503, "later", False)
        with pytest.raises(FunctionError, match="503: later") as raised:
            response.raise_for_status()
    assert raised.value.status == 503 and len(node.requests) == 1


def test_a_timeout_is_not_repeated() -> None:
    node = Attempts(httpx2.ReadTimeout("slow"), OK)
    with client(node) as weir, pytest.raises(RequestTimeout) as raised:
        weir.status()
    assert isinstance(raised.value, TimeoutError) and len(node.requests) == 1


def test_a_submission_keeps_its_idempotency_key_over_retries() -> None:
    accepted = httpx2.Response(202, json={"id": "0"}, headers={"preference-applied": "respond-async"})
    node = Attempts(httpx2.ReadError("lost"), accepted)
    with client(node) as weir:
        weir.submit("f", json={"n": 1}, wait_s=3)
        weir.submit("f", json={"n": 1}, idempotency_key="mine")
    keys = [request.headers["idempotency-key"] for request in node.requests]
    assert keys[0] == keys[1] and len(keys[0]) >= 32 and keys[2] == "mine"
    assert node.requests[0].headers["prefer"] == "respond-async, wait=3"
    assert node.requests[0].headers["content-type"] == "application/json"


def test_a_submission_that_was_executed_at_once_is_reported() -> None:
    with client(Attempts(httpx2.Response(200))) as weir, pytest.raises(ProtocolError, match="instead of queueing"):
        weir.submit("tenant:f")


def test_proxy_errors_have_no_code_and_are_repeated_if_idempotent() -> None:
    proxy = httpx2.Response(502, text="<html>bad gateway</html>")
    assert attempts(get, proxy, OK) == 2
    with client(Attempts(proxy), retry=RetryPolicy(0)) as weir, pytest.raises(ApiError) as raised:
        weir.status()
    assert (raised.value.status, raised.value.code) == (502, "") and "bad gateway" in raised.value.message


def test_rejections_have_their_estimate_and_openai_errors_their_message() -> None:
    body = {"error": "too late", "code": "slo-unattainable", "request_id": "r", "estimated_ns": 9, "slo_ns": 5}
    rejected = httpx2.Response(503, json=body, headers={"weir-error": "slo-unattainable"})
    with client(Attempts(rejected)) as weir, pytest.raises(UnavailableError) as raised:
        weir.call("f")
    assert raised.value.details == {"estimated_ns": 9, "slo_ns": 5}
    openai = {"error": {"message": "no such function", "type": "invalid_request_error", "code": "x"}}
    unknown = httpx2.Response(404, json=openai, headers={"weir-error": "function-not-found"})
    with client(Attempts(unknown)) as weir, pytest.raises(ApiError, match="no such function") as missing:
        weir.embeddings("f", ["text"])
    assert missing.value.code == "function-not-found"


def test_files_are_sent_again_from_their_start(tmp_path: Path) -> None:
    file = tmp_path / "component.wasm"
    file.write_bytes(b"\0asm" * 1000)
    node = Attempts(error(429, "rate-limited", retry_after="0"), OK)
    with client(node) as weir:
        weir.deploy("f", file, {"limits": {"deadline_ms": 5}}, strict=True)
    for request in node.requests:
        assert request.read() == file.read_bytes()
        assert request.headers["content-length"] == "4000"
        assert "transfer-encoding" not in request.headers
        assert json.loads(request.headers["weir-manifest"]) == {"limits": {"deadline_ms": 5}}
        assert request.url.query == b"strict=true"


def test_labels_are_fields_of_a_form_before_the_model(tmp_path: Path) -> None:
    lines = tmp_path / "labels.txt"
    lines.write_text("cat\ndog\n")
    model = tmp_path / "m.onnx"
    model.write_bytes(b"onnx")
    node = Attempts(error(429, "rate-limited", retry_after="0"), OK)
    with client(node) as weir:
        weir.models.push("m", model, labels={"y": ["a", "b"], "z": lines})
        for wrong in ({"y": ["a\nb"]}, {'y"': ["a"]}, ["a\n"]):
            with pytest.raises(ValueError):
                weir.models.push("m", model, labels=wrong)
        weir.models.push("m", b"bytes", labels=["a"])
    form, again, of_bytes = node.requests
    head = 'content-disposition: form-data; name="'
    boundary = form.headers["content-type"].removeprefix("multipart/form-data; boundary=")
    parts = [("labels.y", "a\nb"), ("labels.z", "cat\ndog\n"), ("model", "onnx")]
    body = "".join(f'--{boundary}\r\n{head}{name}"\r\n\r\n{text}\r\n' for name, text in parts)
    assert form.read().decode() == f"{body}--{boundary}--\r\n"
    assert again.read() == form.read()
    assert form.headers["content-length"] == str(len(form.read()))
    assert b'name="labels"\r\n\r\na\r\n' in of_bytes.read() and b"bytes\r\n--" in of_bytes.read()


def test_a_deploy_has_a_component_or_a_digest() -> None:
    node = Attempts(OK)
    with client(node) as weir:
        for component, digest in ((None, None), (b"wasm", "0" * 64)):
            with pytest.raises(ValueError, match="either a component or a digest"):
                weir.deploy("f", component, digest=digest)
        weir.deploy("f", digest="0" * 64)
    assert node.requests[0].read() == b""


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_names_stay_in_their_segment(name: str) -> None:
    node = Attempts(OK)
    with client(node) as weir:
        with pytest.raises(ValueError, match="is not a name"):
            weir.functions.show(name)
        weir.functions.show("../keys?x")
    assert node.requests[0].url.raw_path == b"/v1/functions/..%2Fkeys%3Fx"


def test_paths_stay_below_their_function() -> None:
    node = Attempts(OK)
    with client(node) as weir:
        for path in ["../../v1/keys", "/a/../../b", "/./x"]:
            with pytest.raises(ValueError, match="has a segment"):
                weir.call("f", path)
        weir.call("t:f", "a b/ü%20?q=1", query={"r": "2 3", "none": None})
    assert node.requests[0].url.raw_path == b"/fn/t:f/a%20b/%C3%BC%20?q=1&r=2+3"


def test_token_comes_from_the_argument_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Attempts(OK)
    monkeypatch.setenv("WEIR_TOKEN", "of the environment")
    monkeypatch.setenv("WEIR_URL", "http://elsewhere.test:9347/")
    for options in [{}, {"token": "given"}, {"token": ""}]:
        with client(node, **options) as weir:
            weir.status()
    assert [request.headers.get("weir-token") for request in node.requests] == [
        "of the environment",
        "given",
        None,
    ]
    with Client() as weir:
        assert weir.url == "http://elsewhere.test:9347"


@pytest.mark.parametrize("url", ["127.0.0.1:9347", "ftp://host", "http://", "http://host/?q"])
def test_malformed_addresses_are_rejected(url: str) -> None:
    with pytest.raises(ValueError, match="not an address of a node"):
        Client(url)


def test_health_is_false_only_for_503() -> None:
    with client(Attempts(error(503, "unavailable"))) as weir:
        assert weir.is_ready() is False
    with client(Attempts(error(401, "unauthorized"))) as weir, pytest.raises(ApiError):
        weir.is_ready()


class Counting(BaseHTTPRequestHandler):
    """Answers every request, and counts connections."""

    protocol_version = "HTTP/1.1"
    connections = 0

    def setup(self) -> None:
        super().setup()
        type(self).connections += 1

    def do_GET(self) -> None:
        self.send_response(404 if self.path.endswith("missing") else 200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        pass


def test_requests_use_the_same_connection() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Counting) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with Client(f"http://127.0.0.1:{server.server_port}", token="") as weir:
            for _ in range(5):
                weir.status()
                weir.functions.logs("f")
                with weir.stream("f") as response:
                    response.read()
                with pytest.raises(ApiError):
                    weir.functions.show("missing")
        server.shutdown()
        thread.join()
    assert Counting.connections == 1


def test_lines_end_only_at_line_feeds() -> None:
    splitter = LineSplitter()
    assert splitter.feed('{"text": "a\u2028b\u0085c"}\r\n\nx'.encode()) == ['{"text": "a\u2028b\u0085c"}', ""]
    assert splitter.feed(b"y") == []
    assert splitter.feed(b"z\n\xc3") == ["xyz"]
    assert splitter.feed(b"\xbc") == []
    assert splitter.finish() == ["ü"]
    complete = LineSplitter()
    assert complete.feed(b"a\rb\n") == ["a\rb"] and complete.finish() == []
    with pytest.raises(ProtocolError, match="longer than"):
        for _ in range(20):
            splitter.feed(bytes(LINE_BYTES_MAX // 16))


def test_server_sent_events_are_parsed() -> None:
    parser = EventParser()
    lines = [": keep", "event: done", "id: 7", "data: a", "data:b", "", "", "data: c", ""]
    events = [event for event in map(parser.line, lines) if event]
    assert events == [ServerSentEvent("done", "a\nb", "7"), ServerSentEvent("message", "c", "7")]
