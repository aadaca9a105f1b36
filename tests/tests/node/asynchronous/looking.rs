//! Status, lists and events of asynchronous invocations, and errors for unknown ids.

use futures::StreamExt;
use reqwest::Method;
use weir_tests::{TestNode, function};
use weir_types::ErrorCode;
use weir_types::api::{Invocation, InvocationStatus};

const ACME: &str = "acme-token-0123456789";
const OTHER: &str = "other-token-0123456789";

#[tokio::test]
async fn tenants_cannot_access_each_others_invocations() {
    let lines = ["acme-token-0123456789 acme", "other-token-0123456789 other"];
    let node = TestNode::builder().tokens(&lines).start().await;
    let acme = node.with_token(ACME);
    let other = node.with_token(OTHER);
    acme.deploy("echo", function("echo-http")).await;
    let theirs = acme.post_later("/fn/echo", "secret").await;
    acme.ended(theirs.id).await;
    let path = format!("/v1/invocations/{}", theirs.id);
    for answer in [
        other.get(&path).await,
        other.get(&format!("{path}?wait_ms=5")).await,
        other.result(theirs.id).await,
        other.get(&format!("{path}/events")).await,
        other.delete(&path).await,
        other.post(&format!("{path}/retry"), "").await,
        other.post(&format!("{path}/cancel"), "").await,
    ] {
        assert_eq!((answer.status, answer.code()), (404, ErrorCode::InvocationNotFound));
    }
    assert_eq!(other.invocations("").await, []);
    assert_eq!(acme.invocations("").await.len(), 1);
    assert_eq!(acme.result(theirs.id).await.text(), "secret");
    let refused = other.send(other.later(Method::POST, "/fn/echo")).await;
    assert_eq!(refused.code(), ErrorCode::FunctionNotFound);
}

#[tokio::test]
async fn lists_are_newest_first_with_paging_and_filters() {
    let node = TestNode::builder().set("async.attempts_max", 1).start().await;
    node.deploy("echo", function("echo-http")).await;
    node.deploy("f", function("misbehave")).await;
    let mut ids = Vec::new();
    for path in ["/fn/echo", "/fn/f/trap", "/fn/echo", "/fn/f/trap", "/fn/echo"] {
        let later = node.post_later(path, "").await;
        node.ended(later.id).await;
        ids.push(later.id);
    }
    ids.reverse();
    for query in ["", "limit=1", "limit=2", "limit=5"] {
        let listed: Vec<_> =
            node.invocations(query).await.into_iter().map(|invocation| invocation.id).collect();
        assert_eq!(listed, ids, "{query}");
    }
    for (query, count) in
        [("status=done", 3), ("status=dead&limit=1", 2), ("status=queued", 0), ("name=f", 2)]
    {
        assert_eq!(node.invocations(query).await.len(), count, "{query}");
    }
    for bad in ["status=asleep", "limit=0", "limit=many", "after=x", "staus=done"] {
        assert_eq!(
            node.get(&format!("/v1/invocations?{bad}")).await.code(),
            ErrorCode::InvalidRequest,
            "{bad}"
        );
    }
}

#[tokio::test]
async fn missing_invocations_have_distinct_errors() {
    let node = TestNode::builder().set("async.running_max", 0).start().await;
    node.deploy("echo", function("echo-http")).await;
    let later = node.post_later("/fn/echo", "").await;
    let early = node.result(later.id).await.refusal();
    assert_eq!((early.status, early.code), (409, ErrorCode::NotEnded));
    assert!(early.text.contains("wait_ms"), "the error does not name wait_ms");
    let began = std::time::Instant::now();
    let waited: Invocation = node.get(&format!("/v1/invocations/{}?wait_ms=50", later.id)).await.ok().json();
    assert!(began.elapsed().as_millis() >= 50);
    assert_eq!(waited.status, InvocationStatus::Queued);
    for (id, status, code) in [
        ("x", 400, ErrorCode::InvalidRequest),
        ("ffffffffffffffffffffffffffffffff", 404, ErrorCode::InvocationNotFound),
        ("00000000000000000000000000000000", 404, ErrorCode::InvocationNotFound),
        // An id from 2020.
        ("fe90a19917ff00000000000000000000", 410, ErrorCode::InvocationExpired),
    ] {
        for path in ["", "/result", "/events"] {
            let answer = node.get(&format!("/v1/invocations/{id}{path}")).await;
            assert_eq!((answer.status, answer.code()), (status, code), "{id}{path}");
        }
    }
    let missing = node.send(node.later(Method::POST, "/fn/missing")).await;
    assert_eq!(
        missing.code(),
        ErrorCode::FunctionNotFound,
        "a missing function is reported before the acceptance"
    );
    let missing = node.send(node.later(Method::POST, "/v2/models/missing/infer")).await;
    assert_eq!(missing.code(), ErrorCode::ModelNotFound);
    let wrong = node.get(&format!("/v1/invocations/{}?wait_ms=long", later.id)).await;
    assert_eq!(wrong.code(), ErrorCode::InvalidRequest);
    let put = node.put(&format!("/v1/invocations/{}", later.id), "").await;
    assert_eq!(put.code(), ErrorCode::MethodNotAllowed);
}

#[tokio::test]
async fn status_changes_are_server_sent_events() {
    let node = TestNode::builder().set("async.running_max", 1).start().await;
    node.deploy_with("f", "limits.deadline_ms=60000", function("misbehave")).await;
    let blocking = node.post_later("/fn/f/sleep", "").await;
    node.until(blocking.id, InvocationStatus::Running).await;
    let watched = node.post_later("/fn/f/behave", "").await;
    let events =
        node.request(Method::GET, &format!("/v1/invocations/{}/events", watched.id)).send().await.unwrap();
    assert_eq!(events.headers()["content-type"], "text/event-stream");
    let mut pieces = events.bytes_stream();
    let mut text = String::new();
    let mut cancelled = false;
    // The stream ends with the invocation.
    while let Some(piece) = pieces.next().await {
        text.push_str(std::str::from_utf8(&piece.unwrap()).unwrap());
        if text.contains("event: queued") && !std::mem::replace(&mut cancelled, true) {
            node.delete(&format!("/v1/invocations/{}", blocking.id)).await.ok();
        }
    }
    let statuses: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    assert_eq!((statuses.first(), statuses.last()), (Some(&"queued"), Some(&"done")), "{text}");
    let last = text.lines().rev().find_map(|line| line.strip_prefix("data: ")).unwrap();
    let last: Invocation = serde_json::from_str(last).unwrap();
    assert_eq!((last.id, last.status), (watched.id, InvocationStatus::Done));
}
