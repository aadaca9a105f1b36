"""The client on a node of the pytest fixture."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import DIGITS, component, model

from weir_client import (
    ApiError,
    BadRequestError,
    CancelledError,
    Client,
    ConflictError,
    NotFoundError,
    ObjectInput,
    Output,
    RequestTimeout,
    ServerError,
    TransportError,
    UnprocessableError,
)
from weir_client.testing import Node


def test_health_status_and_metrics(weir: Client) -> None:
    assert weir.is_live() and weir.is_ready()
    status = weir.status()
    assert status["state"] == "ready" and status["devices"][0]["name"] == "cpu"
    assert weir.server()["version"] == status["version"]
    assert "weir_build_info" in weir.metrics()
    assert weir.openapi().startswith("#")
    assert weir.usage()["tenant"] == "default"


def test_functions_are_deployed_called_and_removed(weir: Client) -> None:
    deployed = weir.deploy("echo", component("echo-body"), {"limits": {"deadline_ms": 9_000}})
    assert deployed["created"] and deployed["manifest"]["limits"]["deadline_ms"] == 9_000
    again = weir.deploy("echo", component("echo-body").read_bytes(), {"limits": {"deadline_ms": 9_000}})
    assert not again["created"] and again["version"] == 1
    response = weir.call("echo", "/x", json={"a": "ü"}, request_id="of-this-test")
    assert response.json() == {"a": "ü"} and response.info.request_id == "of-this-test"
    assert weir.call("echo", content="text").text == "text"
    second = weir.deploy("echo", component("hello"))
    assert second["version"] == 2 and weir.call("echo").text == "hello\n"
    assert weir.call("echo", "/Ada Lovelace").text == "hello, Ada%20Lovelace\n"
    assert weir.functions.rollback("echo")["version"] == 1
    assert [version["active"] for version in weir.functions.versions("echo")] == [True, False]
    weir.functions.delete_version("echo", 2)
    assert weir.functions.show("echo")["versions"] == [1]
    assert weir.functions.show_version("echo", 1)["kind"] in ("http02", "http03")
    assert "echo" in [function["name"] for function in weir.functions.list()]
    weir.functions.delete("echo")
    with pytest.raises(NotFoundError) as missing:
        weir.call("echo")
    assert missing.value.code == "function-not-found" and missing.value.request_id


def test_errors_of_functions_are_responses_and_faults_are_raised(weir: Client) -> None:
    weir.deploy("misbehave", component("misbehave"), {"limits": {"deadline_ms": 2_000}})
    own = weir.call("misbehave", "/unknown")
    assert own.status == 404 and "no misbehaviour" in own.text
    with pytest.raises(ServerError) as trap:
        weir.call("misbehave", "/trap", method="POST")
    assert (trap.value.status, trap.value.code) == (500, "guest-trap")
    lines = weir.functions.logs("misbehave")
    assert any("on purpose" in line["text"] for line in lines)
    assert trap.value.request_id in {line["request_id"] for line in lines}
    events = weir.events(kinds=["fault", "deployed"], name="misbehave")["events"]
    assert [event["kind"] for event in events] == ["deployed", "fault"]


def test_invalid_uploads_are_explained(weir: Client) -> None:
    with pytest.raises(UnprocessableError) as component_error:
        weir.deploy("broken", b"no component")
    assert component_error.value.code == "invalid-component"
    with pytest.raises(BadRequestError) as manifest:
        weir.deploy("broken", component("hello"), {"limits": {"unknown": 1}})  # type: ignore[typeddict-unknown-key]
    assert manifest.value.code == "invalid-manifest"
    with pytest.raises(ApiError, match=r"\d"):
        weir.models.push("broken", DIGITS.read_bytes()[:100])


def test_a_response_is_read_while_it_arrives(weir_node: Node, weir: Client) -> None:
    weir.deploy("endless", component("misbehave"))
    with weir_node.client(connections_max=1, timeout_s=10) as single:
        with single.stream("endless", "/body") as unread:
            assert unread.status == 200
        with single.stream("endless", "/body") as response:
            part = next(iter(response.iter_bytes()))
        assert set(part) == {ord("x")}
    weir.deploy("events", component("echo-events"))
    with weir.stream("events", content="one\ntwo") as response:
        events = list(response.iter_events())
    assert "\n".join(event.data for event in events) == "one\ntwo"
    with weir.stream("endless", "/behave") as response:
        assert response.read().text == "ok\n"
    with pytest.raises(NotFoundError), weir.stream("missing"):
        pass


def test_logs_and_events_are_followed(weir: Client) -> None:
    weir.deploy("followed", component("misbehave"))
    lines = weir.functions.follow_logs("followed", lines=100)
    events = weir.follow_events(kinds=["removed"], name="followed")

    def first_event() -> str:
        return next(events)["kind"]

    with ThreadPoolExecutor(1) as pool:
        event = pool.submit(first_event)
        with pytest.raises(ServerError):
            weir.call("followed", "/trap", method="POST")
        assert any("on purpose" in line["text"] for line in lines)
        # A follower gets the events after its request, which may arrive later than the first removal.
        for _ in range(100):
            weir.functions.delete("followed")
            weir.deploy("followed", component("misbehave"))
            if event.done():
                break
            time.sleep(0.1)
        assert event.result(10) == "removed"
    events.close()  # type: ignore[attr-defined]


def test_models_are_pushed_and_run(weir: Client) -> None:
    pushed = weir.models.push("digits", DIGITS, {"slots": 2})
    assert pushed["version"] == 1 and pushed["manifest"]["slots"] == 2
    assert weir.models.push("digits", DIGITS, version=1, manifest={"slots": 2})["version"] == 1
    with pytest.raises(ConflictError) as conflict:
        weir.models.push("digits", model("twice"), version=1)
    assert conflict.value.code in ("version-conflict", "signature-changed")
    image = np.zeros((1, 1, 8, 8), np.float32)
    result = weir.infer("digits", {"image": image}, id="7", request_id="an-inference", explain=True)
    assert result["probabilities"].shape == (1, 10) and result.id == "7"
    np.testing.assert_allclose(result["probabilities"].sum(), 1, rtol=1e-5)
    assert result.info.device == "cpu" and result.info.placement is not None
    assert weir.placement("an-inference")["invocation"] == result.info.placement["invocation"]
    classes = weir.infer("digits", {"image": image}, outputs=[Output("probabilities", classification=2)])
    assert classes["probabilities"].shape == (1, 2)
    assert classes["probabilities"][0, 0].split(b":")[1].isdigit()
    labels = [f"digit {number}" for number in range(10)]
    assert weir.models.push("named", DIGITS, labels=labels)["manifest"]["labels"] == {"probabilities": labels}
    classes = weir.infer("named", {"image": image}, outputs=[Output("probabilities", classification=1)])
    assert b":digit " in classes["probabilities"][0, 0]
    assert weir.models.metadata("digits")["inputs"][0]["name"] == "image"
    assert weir.models.is_ready("digits", 1) and weir.models.config("digits")["name"] == "digits"
    assert weir.models.statistics("digits")[0]["inference_count"] >= 2
    weir.models.unload("digits")
    weir.models.load("digits")
    assert weir.models.show("digits")["versions"] == [1]
    assert "digits" in [entry["name"] for entry in weir.models.index(ready=True)]
    with pytest.raises(BadRequestError, match="image"):
        weir.infer("digits", {"image": image.astype(np.float64)})
    profile = {"batch": [1], "threads": [1], "concurrency": [1], "duration_ms": 20}
    reported = [event["event"] for event in weir.models.profile("digits", profile)]  # type: ignore[arg-type]
    assert reported == ["started", "measured", "done"]
    assert weir.models.capacity("digits", rate=1, slo_ms=1_000)["instances"] >= 1
    weir.models.delete("digits")


def test_arrays_of_every_type_pass_through_a_tensor_function(weir: Client) -> None:
    from test_tensors import ARRAYS

    weir.deploy("echo-tensor", component("echo-tensor"))
    result = weir.infer("echo-tensor", {name.lower(): array for name, array in ARRAYS.items()})
    assert list(result) == [name.lower() for name in ARRAYS]
    for name, array in ARRAYS.items():
        assert result[name.lower()].dtype == array.dtype
        np.testing.assert_array_equal(result[name.lower()], array)


def test_workflows_are_deployed_and_run(weir: Client) -> None:
    weir.models.push("matmul", model("matmul"))
    document = {
        "inputs": {"x": "FP32[n, 4]"},
        "steps": {"product": {"run": "matmul:1", "inputs": {"x": "x"}}},
        "outputs": {"y": "product"},
    }
    assert not weir.workflows.deploy("product", document, dry_run=True)["created"]
    with pytest.raises(NotFoundError):
        weir.workflows.show("product")
    deployed = weir.workflows.deploy("product", document, slo_ms=60_000)
    assert deployed["created"] and deployed["slo_ms"] == 60_000
    x = np.array([[1, 0, 0, 0]], np.float32)
    assert weir.infer("product", {"x": x})["y"].tolist() == [[0, 1, 2]]
    assert weir.infer("product", {"x": x}, version=1).model_version == "1"
    assert weir.workflows.show("product")["versions"] == [1]
    weir.workflows.delete("product")


def test_objects_are_arrays_inputs_and_outputs(weir: Client) -> None:
    weir.models.push("product-of-objects", model("matmul"))
    x = np.array([[1, 0, 0, 0]], np.float32)
    stored = weir.objects.put("stored-x", x, ttl_s=600)
    assert stored["datatype"] == "FP32" and stored["shape"] == [1, 4]
    np.testing.assert_array_equal(weir.objects.get("stored-x"), x)
    outputs = [Output("y", object="stored-y", object_bytes=64)]
    result = weir.infer("product-of-objects", {"x": stored}, outputs=outputs)
    assert len(result) == 0 and weir.objects.get("stored-y").tolist() == [[0, 1, 2]]
    region = ObjectInput("stored-x", "FP32", [1, 4])
    assert weir.infer("product-of-objects", {"x": region})["y"].tolist() == [[0, 1, 2]]
    weir.objects.put("scalar", 1.5)
    assert weir.objects.get("scalar").shape == () and weir.objects.get("scalar") == 1.5
    weir.objects.put("texts", ["a", "ü"])
    assert weir.objects.get("texts").tolist() == [b"a", "ü".encode()]
    weir.objects.delete("scalar")
    assert "scalar" not in [each["name"] for each in weir.objects.list()]
    with pytest.raises(NotFoundError):
        weir.objects.show("scalar")


def test_asynchronous_invocations_end_with_their_result(weir: Client) -> None:
    weir.deploy("later", component("echo-body"))
    accepted = weir.submit("later", "/", content=b"body", idempotency_key="the key of this test")
    again = weir.submit("later", "/", content=b"body", idempotency_key="the key of this test")
    assert accepted["id"] == again["id"]
    assert weir.invocations.wait(accepted["id"], 30)["status"] == "done"
    assert weir.invocations.result(accepted["id"]).content == b"body"
    states = [state["status"] for state in weir.invocations.follow(accepted["id"])]
    assert states[-1] == "done"
    weir.models.push("later-product", model("matmul"))
    inference = weir.submit_infer("later-product", {"x": np.eye(1, 4, dtype=np.float32)}, wait_s=20)
    assert inference["status"] == "done"
    assert weir.invocations.infer_result(inference["id"])["y"].tolist() == [[0, 1, 2]]
    listed = [each["id"] for each in weir.invocations.list(name="later", limit=1)]
    assert listed == [accepted["id"]]
    assert weir.invocations.delete(accepted["id"]) is None
    with pytest.raises(NotFoundError):
        weir.invocations.show(accepted["id"])


def test_asynchronous_invocations_are_cancelled_and_retried(weir: Client) -> None:
    weir.deploy("slow", component("misbehave"))
    slow = weir.submit("slow", "/sleep")
    with pytest.raises(RequestTimeout, match="after 0.2 s"):
        weir.invocations.wait(slow["id"], 0.2)
    with pytest.raises(ConflictError) as running:
        weir.invocations.result(slow["id"])
    assert running.value.code == "not-ended"
    assert weir.invocations.cancel(slow["id"])["status"] in ("cancelled", "running", "queued")
    assert weir.invocations.wait(slow["id"], 30)["status"] == "cancelled"
    with pytest.raises(CancelledError):
        weir.invocations.result(slow["id"])
    with pytest.raises(ConflictError):
        weir.invocations.retry(slow["id"])


def test_a_slow_response_is_a_timeout_and_a_missing_node_an_error(weir_node: Node, weir: Client) -> None:
    weir.deploy("napping", component("misbehave"))
    with weir_node.client(timeout_s=0.2) as hasty, pytest.raises(RequestTimeout) as late:
        hasty.call("napping", "/sleep")
    assert late.value.is_sent
    # Port 1 is reserved, and refuses connections.
    with Client("http://127.0.0.1:1") as nobody, pytest.raises(TransportError, match="cannot connect") as refused:
        nobody.status()
    assert not refused.value.is_sent


def test_threads_share_a_client(weir_node: Node) -> None:
    with weir_node.client(connections_max=2) as weir:
        weir.deploy("many", component("hello"))
        with ThreadPoolExecutor(8) as pool:
            texts = list(pool.map(lambda n: weir.call("many", f"/{n}").text, range(200)))
    assert texts == [f"hello, {n}\n" for n in range(200)]


def test_keys_need_tokens(weir: Client) -> None:
    with pytest.raises(ConflictError):
        weir.keys.create("ci", ["deploy"])


def test_tokens_and_keys_decide_what_a_client_may(tmp_path_factory: pytest.TempPathFactory) -> None:
    tokens = tmp_path_factory.mktemp("tokens") / "tokens"
    tokens.touch(mode=0o600)
    tokens.write_text("0123456789abcdef acme\n")
    with Node(arguments=["--token-file", str(tokens)]) as node:
        with node.client() as nobody, pytest.raises(ApiError) as unknown:
            nobody.status()
        assert unknown.value.code == "unauthorized"
        with node.client(token="0123456789abcdef") as owner:
            owner.deploy("echo", component("echo-body"), {"public": True})
            key = owner.keys.create("caller", ["invoke"], functions=["echo"], ttl_s=600)
            with node.client(token=key["token"]) as caller:
                assert caller.call("echo", content=b"x").content == b"x"
                with pytest.raises(ApiError) as forbidden:
                    caller.deploy("other", component("hello"))
                assert forbidden.value.code == "forbidden"
            assert [each["name"] for each in owner.keys.list()] == ["caller"]
            assert owner.keys.show("caller")["scopes"] == ["invoke"]
            owner.keys.revoke("caller")
        with node.client() as public:
            assert public.call("acme:echo", content=b"public").content == b"public"
