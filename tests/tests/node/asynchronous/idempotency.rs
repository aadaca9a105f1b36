//! Idempotency keys.

use futures::future::join_all;
use reqwest::{Method, RequestBuilder};
use std::collections::BTreeSet;
use weir_tests::{TestClient, TestNode, eventually, function};
use weir_types::ErrorCode;

const ACME: &str = "acme-token-0123456789";
const OTHER: &str = "other-token-0123456789";

fn keyed(client: &TestClient, path: &str, key: &str, body: &str) -> RequestBuilder {
    client.later(Method::POST, path).header("idempotency-key", key).body(body.to_owned())
}

#[tokio::test]
async fn equal_requests_with_one_key_are_one_invocation() {
    let node = TestNode::start().await;
    node.deploy("echo", function("echo-http")).await;
    node.deploy("other", function("echo-http")).await;
    let first = node.accepted(keyed(&node, "/fn/echo/x", "k", "body")).await;
    let again = node.accepted(keyed(&node, "/fn/echo/x", "k", "body")).await;
    assert_eq!(again.id, first.id);
    node.ended(first.id).await;
    let after_the_end = node.accepted(keyed(&node, "/fn/echo/x", "k", "body")).await;
    assert_eq!((after_the_end.id, after_the_end.status.is_end()), (first.id, true));
    for (path, body) in [("/fn/echo/y", "body"), ("/fn/echo/x", "another"), ("/fn/echo/x?q", "body")] {
        let refusal = node.send(keyed(&node, path, "k", body)).await.refusal();
        assert_eq!((refusal.status, refusal.code), (422, ErrorCode::IdempotencyMismatch), "{path} {body}");
        assert!(refusal.text.contains(&first.id.to_string()), "{refusal:?}");
    }
    // Keys are separate per function, and requests without a key are never merged.
    assert_ne!(node.accepted(keyed(&node, "/fn/other/x", "k", "body")).await.id, first.id);
    assert_ne!(node.accepted(keyed(&node, "/fn/echo/x", "k2", "body")).await.id, first.id);
    assert_ne!(node.post_later("/fn/echo/x", "body").await.id, first.id);
    assert_eq!(node.metric("weir_async_accepted_total", "").await, 4.0);
    // Keys survive a restart, until the invocation is deleted.
    let node = node.kill().await.start().await;
    assert_eq!(node.accepted(keyed(&node, "/fn/echo/x", "k", "body")).await.id, first.id);
    assert_eq!(node.delete(&format!("/v1/invocations/{}", first.id)).await.status, 204);
    assert_ne!(node.accepted(keyed(&node, "/fn/echo/x", "k", "another")).await.id, first.id);
}

#[tokio::test]
async fn concurrent_requests_with_one_key_are_accepted_once() {
    let node = TestNode::start().await;
    node.deploy("echo", function("echo-http")).await;
    for round in 0..5 {
        let key = format!("round {round}");
        let same = (0..8).map(|_| node.accepted(keyed(&node, "/fn/echo", &key, "body")));
        let ids: BTreeSet<_> = join_all(same).await.into_iter().map(|invocation| invocation.id).collect();
        assert_eq!(ids.len(), 1, "{ids:?}");
    }
    eventually("five runs", async || (node.metric("weir_async_ended_total", "").await == 5.0).then_some(()))
        .await;
    assert_eq!(node.invocations("").await.len(), 5);
}

/// A client that missed the first response repeats the request, while the queue is full.
#[tokio::test]
async fn repeated_request_is_found_despite_a_full_queue() {
    let node = TestNode::builder().set("async.running_max", 0).set("async.queue_len_max", 1).start().await;
    node.deploy("echo", function("echo-http")).await;
    let first = node.accepted(keyed(&node, "/fn/echo", "k", "body")).await;
    let refusal = node.send(keyed(&node, "/fn/echo", "k2", "body")).await;
    assert_eq!(refusal.code(), ErrorCode::AsyncQueueFull);
    assert_eq!(node.accepted(keyed(&node, "/fn/echo", "k", "body")).await.id, first.id);
}

#[tokio::test]
async fn idempotency_keys_are_separate_per_tenant() {
    let lines = ["acme-token-0123456789 acme", "other-token-0123456789 other"];
    let node = TestNode::builder().tokens(&lines).start().await;
    let acme = node.with_token(ACME);
    let other = node.with_token(OTHER);
    for tenant in [&acme, &other] {
        tenant.deploy("echo", function("echo-http")).await;
    }
    let theirs = acme.accepted(keyed(&acme, "/fn/echo", "k", "one")).await;
    let ours = other.accepted(keyed(&other, "/fn/echo", "k", "two")).await;
    assert_ne!(theirs.id, ours.id);
}

#[tokio::test]
async fn invalid_idempotency_keys_are_rejected() {
    let node = TestNode::start().await;
    node.deploy("echo", function("echo-http")).await;
    for bad in ["", &"k".repeat(256)] {
        let refusal = node.send(keyed(&node, "/fn/echo", bad, "")).await;
        assert_eq!(refusal.code(), ErrorCode::InvalidRequest, "{bad:?}");
    }
    assert_eq!(node.invocations("").await, []);
}
