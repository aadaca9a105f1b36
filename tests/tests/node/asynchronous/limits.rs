//! Limits and retention of asynchronous invocations.

use reqwest::Method;
use std::path::Path;
use weir_tests::{TestNode, eventually, function};
use weir_types::ErrorCode;
use weir_types::api::InvocationStatus;

const ACME: &str = "acme-token-0123456789";
const OTHER: &str = "other-token-0123456789";

/// Number of stored requests and results.
fn kept(node: &TestNode) -> usize {
    std::fs::read_dir(Path::new(node.data()).join("invocations")).map_or(0, Iterator::count)
}

#[tokio::test]
async fn queue_limits_apply_per_node_and_per_tenant() {
    let lines = ["acme-token-0123456789 acme", "other-token-0123456789 other"];
    let node = TestNode::builder()
        .tokens(&lines)
        .set("async.running_max", 0)
        .set("async.queue_len_max", 3)
        .set("async.tenant_queue_len_max", 2)
        .start()
        .await;
    let acme = node.with_token(ACME);
    let other = node.with_token(OTHER);
    for tenant in [&acme, &other] {
        tenant.deploy("echo", function("echo-http")).await;
    }
    acme.post_later("/fn/echo", "").await;
    let second = acme.post_later("/fn/echo", "").await;
    for (tenant, setting) in [(&acme, "tenant_queue_len_max"), (&other, "queue_len_max")] {
        if setting == "queue_len_max" {
            tenant.post_later("/fn/echo", "").await;
        }
        let answer = tenant.send(tenant.later(Method::POST, "/fn/echo")).await;
        let refusal = answer.refusal();
        assert_eq!((refusal.status, refusal.code), (429, ErrorCode::AsyncQueueFull));
        assert!(refusal.text.contains(setting), "{refusal:?}");
        assert_eq!(answer.header("retry-after"), Some("1"));
    }
    acme.delete(&format!("/v1/invocations/{}", second.id)).await.ok();
    eventually("room again", async || {
        (other.send(other.later(Method::POST, "/fn/echo")).await.status == 202).then_some(())
    })
    .await;
}

#[tokio::test]
async fn ended_invocations_expire_after_the_retention_time() {
    let node = TestNode::builder().set("async.retention_ms", 400).start().await;
    node.deploy("echo", function("echo-http")).await;
    let keyed = || node.later(Method::POST, "/fn/echo").header("idempotency-key", "k").body("body");
    let first = node.accepted(keyed()).await;
    eventually("the end of the retention", async || {
        let answer = node.get(&format!("/v1/invocations/{}", first.id)).await;
        (!answer.is_ok())
            .then(|| assert_eq!((answer.status, answer.code()), (410, ErrorCode::InvocationExpired)))
    })
    .await;
    assert_eq!(node.result(first.id).await.code(), ErrorCode::InvocationExpired);
    eventually("no blobs", async || (kept(&node) == 0).then_some(())).await;
    assert_ne!(node.accepted(keyed()).await.id, first.id, "the idempotency key outlived its invocation");
}

#[tokio::test]
async fn oldest_results_are_deleted_first() {
    let node =
        TestNode::builder().set("async.tenant_kept_max", 3).set("async.retention_ms", 60_000).start().await;
    node.deploy("echo", function("echo-http")).await;
    let mut all = Vec::new();
    for _ in 0..6 {
        let later = node.post_later("/fn/echo", "body").await;
        node.ended(later.id).await;
        all.push(later.id);
    }
    eventually("three are left", async || (node.invocations("").await.len() == 3).then_some(())).await;
    all.reverse();
    let left: Vec<_> = node.invocations("").await.into_iter().map(|invocation| invocation.id).collect();
    assert_eq!(left, all[..3]);
}

#[tokio::test]
async fn queued_bytes_and_bodies_are_limited() {
    let node =
        TestNode::builder().set("async.running_max", 0).set("async.tenant_bytes_max", 1_000).start().await;
    node.deploy_with("echo", "limits.request_body_bytes=800", function("echo-http")).await;
    let too_large = node.send(node.later(Method::POST, "/fn/echo").body("x".repeat(801))).await;
    assert_eq!((too_large.status, too_large.code()), (413, ErrorCode::BodyTooLarge));
    node.post_later("/fn/echo", "x".repeat(800)).await;
    let refusal = node.send(node.later(Method::POST, "/fn/echo").body("x".repeat(800))).await;
    assert_eq!((refusal.status, refusal.code()), (429, ErrorCode::AsyncQueueFull));
    assert_eq!(node.invocations("").await.len(), 1);
    // Rejected and aborted requests leave no files.
    let node = node.kill().await.start().await;
    eventually("one request", async || (kept(&node) == 1).then_some(())).await;
}

#[tokio::test]
async fn number_of_waiting_clients_is_limited() {
    let node = TestNode::builder().set("async.running_max", 0).set("async.waiters_max", 1).start().await;
    node.deploy("echo", function("echo-http")).await;
    let later = node.post_later("/fn/echo", "").await;
    let events =
        node.request(Method::GET, &format!("/v1/invocations/{}/events", later.id)).send().await.unwrap();
    assert_eq!(events.status().as_u16(), 200);
    let refused = node.get(&format!("/v1/invocations/{}?wait_ms=10000", later.id)).await;
    assert_eq!((refused.status, refused.code()), (503, ErrorCode::Unavailable));
    assert_eq!(
        node.invocation(later.id).await.status,
        InvocationStatus::Queued,
        "a request without a wait is answered"
    );
    drop(events);
    eventually("a place", async || {
        node.get(&format!("/v1/invocations/{}?wait_ms=1", later.id)).await.is_ok().then_some(())
    })
    .await;
}
