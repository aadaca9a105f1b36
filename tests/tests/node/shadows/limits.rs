//! Limits of copies: calls above them are answered, and not copied.

use super::{call, compared, shadow_of, start};
use std::time::{Duration, Instant};
use weir_tests::{TestNode, eventually, function, with_custom_section};

#[tokio::test]
async fn slow_shadow_delays_no_call_and_copies_above_the_limit_are_skipped() {
    let node = start(TestNode::builder().set("scheduler.shadow.tenant_calls_max", 2)).await;
    let began = Instant::now();
    for _ in 0..10 {
        call(&node, "sleep").await;
    }
    assert!(began.elapsed() < Duration::from_secs(8), "a copy sleeps for an hour: {:?}", began.elapsed());
    let report = eventually("the skipped calls", async || {
        let report = shadow_of(&node, "functions/f").await;
        (report.skipped.get("limit") == Some(&8)).then_some(report)
    })
    .await;
    assert_eq!((report.equal, report.different), (0, 0));
    let skipped = node.metric("weir_shadow_calls_total", "outcome=\"limit\"").await;
    assert!((skipped - 8.0).abs() < f64::EPSILON, "{skipped}");
}

#[tokio::test]
async fn copy_ends_at_the_deadline_of_its_version() {
    let node = TestNode::start().await;
    node.deploy("f", function("hello")).await;
    node.deploy_with("f", "shadow=100&limits.deadline_ms=200", function("misbehave")).await;
    call(&node, "sleep").await;
    let report = compared(&node, "functions/f", [0, 1]).await;
    assert_eq!(report.shadow_calls.statuses, [("5xx".to_owned(), 1)].into());
}

#[tokio::test]
async fn endless_answer_of_a_shadow_is_cut_off_at_its_limit() {
    let node = TestNode::start().await;
    node.deploy("f", function("hello")).await;
    node.deploy_with("f", "shadow=100&limits.response_body_bytes=10000000", function("misbehave")).await;
    call(&node, "body").await;
    let report = compared(&node, "functions/f", [0, 1]).await;
    assert_eq!(report.shadow_calls.calls.failed, 1);
}

#[tokio::test]
async fn large_and_streamed_bodies_are_not_copied() {
    let node = TestNode::builder().set("scheduler.shadow.body_bytes_max", 1_000).start().await;
    node.deploy("f", function("echo-body")).await;
    node.deploy_with("f", "shadow=100", with_custom_section(&function("echo-body"), "2")).await;
    for (len, expected) in [(500, [1, 0]), (2_000, [1, 1])] {
        let body = vec![b'x'; len];
        assert_eq!(node.post("/fn/f/", body).await.ok().body.len(), len);
        eventually("the copy", async || {
            let report = shadow_of(&node, "functions/f").await;
            ([report.equal, report.skipped.get("body").copied().unwrap_or(0)] == expected).then_some(())
        })
        .await;
    }
    let pieces = [Ok::<_, std::io::Error>("abc"), Ok("def")];
    let body = reqwest::Body::wrap_stream(futures::stream::iter(pieces));
    assert_eq!(node.post("/fn/f/", body).await.ok().text(), "abcdef");
    eventually("the skipped stream", async || {
        (shadow_of(&node, "functions/f").await.skipped.get("body") == Some(&2)).then_some(())
    })
    .await;
}

/// Copies need half of the instances to be free.
#[tokio::test]
async fn copies_leave_instances_to_calls() {
    let node = start(TestNode::builder().set("sandbox.instances_max", 4)).await;
    let held = [(); 3].map(|()| node.hold("/fn/f@2/wait"));
    eventually("the held calls", async || {
        (node.metric("weir_invocations_running", "").await > 2.5).then_some(())
    })
    .await;
    call(&node, "behave").await;
    eventually("the skipped call", async || {
        (shadow_of(&node, "functions/f").await.skipped.get("no-room") == Some(&1)).then_some(())
    })
    .await;
    for held in held {
        held.let_go().await.ok();
    }
    eventually("the end of the calls", async || {
        (node.metric("weir_invocations_running", "").await < 0.5).then_some(())
    })
    .await;
    call(&node, "behave").await;
    compared(&node, "functions/f", [1, 0]).await;
}

#[tokio::test]
async fn node_without_permits_copies_nothing() {
    let node = start(TestNode::builder().set("scheduler.shadow.calls_max", 0)).await;
    call(&node, "behave").await;
    eventually("the skipped call", async || {
        (shadow_of(&node, "functions/f").await.skipped.get("limit") == Some(&1)).then_some(())
    })
    .await;
}
