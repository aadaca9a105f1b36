//! Asynchronous calls behave like synchronous calls.

use reqwest::Method;
use weir_tests::{Answer, TestNode, eventually, function, model};
use weir_types::ErrorCode;
use weir_types::api::{InvocationKind, InvocationStatus};

/// Headers that differ between requests: the request's id, and the transfer of the body.
const OF_REQUESTS: [&str; 4] = ["weir-request-id", "date", "content-length", "transfer-encoding"];

/// Status, headers and body of a response, without headers that differ between requests.
fn essence(answer: &Answer) -> (u16, Vec<(String, String)>, Vec<u8>) {
    let headers = answer.headers.iter().filter(|(name, _)| !OF_REQUESTS.contains(&name.as_str()));
    let mut headers: Vec<_> = headers
        .map(|(name, value)| {
            (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned())
        })
        .collect();
    headers.sort();
    (answer.status, headers, answer.body.to_vec())
}

#[tokio::test]
async fn result_equals_the_synchronous_response() {
    let node = TestNode::start().await;
    node.deploy("echo", function("echo-http")).await;
    node.deploy("misbehave", function("misbehave")).await;
    let large = "x".repeat(3 << 20);
    for (path, body) in [
        ("/fn/echo/a%20b?c=d", "hello"),
        ("/fn/echo", ""),
        ("/fn/echo/large", &*large),
        ("/fn/misbehave/unheard-of", "answered with 404 by the function itself"),
    ] {
        let at_once = node.post(path, body.to_owned()).await;
        let later = node.post_later(path, body.to_owned()).await;
        assert_eq!((later.kind, later.request_bytes), (InvocationKind::Function, body.len() as u64));
        let ended = node.ended(later.id).await;
        assert_eq!(
            (ended.status, ended.attempts, &ended.error),
            (InvocationStatus::Done, 1, &None),
            "{path}"
        );
        let response = ended.response.unwrap();
        assert_eq!((response.status, response.bytes), (at_once.status, at_once.body.len() as u64));
        let kept = node.result(later.id).await;
        assert_eq!(essence(&kept), essence(&at_once), "{path}");
        assert!(
            ended.accepted_at_ms <= ended.started_at_ms.unwrap() && ended.started_at_ms <= ended.ended_at_ms
        );
        assert!(ended.expires_at_ms > ended.ended_at_ms);
    }
}

#[tokio::test]
async fn inferences_can_be_asynchronous() {
    let node = TestNode::start().await;
    node.push_model("add", 1, model("good/add.onnx")).await;
    node.deploy("echo", function("echo-tensor")).await;
    let input = |name: &str| serde_json::json!({"name": name, "datatype": "FP32", "shape": [2, 3], "data": [1, 2, 3, 4, 5, 6.5]});
    let body = serde_json::json!({ "inputs": [input("a"), input("b")] }).to_string();
    for (path, body) in [
        ("/v2/models/add/infer", body.clone()),
        ("/v2/models/add/versions/1/infer", body.clone()),
        ("/v2/models/echo/infer", body),
    ] {
        let at_once = node.post(path, body.clone()).await.ok();
        let later = node.post_later(path, body).await;
        assert_eq!(
            (later.kind, later.version.map(|version| version.0)),
            (InvocationKind::Inference, Some(1))
        );
        assert_eq!(node.ended(later.id).await.status, InvocationStatus::Done);
        assert_eq!(essence(&node.result(later.id).await), essence(&at_once), "{path}");
    }
    // Invalid input for the model is the caller's error and is not retried.
    let later = node.post_later("/v2/models/add/infer", "{}").await;
    let ended = node.ended(later.id).await;
    assert_eq!((ended.status, ended.attempts), (InvocationStatus::Dead, 1));
    let refusal = node.result(later.id).await;
    assert_eq!((refusal.status, refusal.code()), (400, ErrorCode::InvalidRequest));
}

#[tokio::test]
async fn prefer_wait_delays_the_accepted_response() {
    let node = TestNode::start().await;
    node.deploy("echo", function("echo-http")).await;
    let request =
        node.request(Method::POST, "/fn/echo").header("prefer", "respond-async, wait=30").body("hello");
    let invocation = node.accepted(request).await;
    assert_eq!(invocation.status, InvocationStatus::Done);
    assert_eq!(node.result(invocation.id).await.text(), "hello");
}

/// Only the node's own preferences are removed from the function's request.
#[tokio::test]
async fn other_preferences_do_not_make_a_call_asynchronous() {
    let node = TestNode::start().await;
    node.deploy("echo", function("echo-http")).await;
    let request = node.request(Method::POST, "/fn/echo").header("prefer", "return=minimal").body("now");
    let answer = node.send(request).await;
    assert_eq!((answer.status, answer.text()), (200, "now"));
}

#[tokio::test]
async fn asynchronous_invocations_are_counted_in_metrics() {
    let node = TestNode::start().await;
    node.deploy("echo", function("echo-http")).await;
    node.deploy("misbehave", function("misbehave")).await;
    for _ in 0..3 {
        let later = node.post_later("/fn/echo", "x").await;
        node.ended(later.id).await;
    }
    assert_eq!(node.metric("weir_async_accepted_total", "tenant=\"default\"").await, 3.0);
    assert_eq!(node.metric("weir_async_attempts_total", "").await, 3.0);
    eventually("the count", async || {
        (node.metric("weir_async_ended_total", "outcome=\"done\"").await == 3.0).then_some(())
    })
    .await;
    for gauge in ["weir_async_queued", "weir_async_running"] {
        eventually(gauge, async || (node.metric(gauge, "").await == 0.0).then_some(())).await;
    }
    assert_eq!(
        node.metric("weir_invocations_total", "function=\"echo\"").await,
        3.0,
        "asynchronous invocations are counted as calls"
    );
}
