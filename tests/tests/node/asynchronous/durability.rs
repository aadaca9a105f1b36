//! Durability: accepted invocations run despite restarts and crashes.

use std::time::{Duration, UNIX_EPOCH};
use weir_tests::{TestNode, eventually, function};
use weir_types::api::InvocationStatus;
use weir_types::{AsyncId, ErrorCode};

#[tokio::test]
async fn crash_before_the_run_loses_no_accepted_invocation() {
    let node = TestNode::builder().set("async.running_max", 0).start().await;
    node.deploy("echo", function("echo-http")).await;
    let mut accepted = Vec::new();
    for number in 0..5 {
        accepted.push(node.post_later("/fn/echo", format!("body {number}")).await);
    }
    let node = node.kill().await.set("async.running_max", 4).start().await;
    for (number, invocation) in accepted.iter().enumerate() {
        let ended = node.ended(invocation.id).await;
        assert_eq!((ended.status, ended.attempts), (InvocationStatus::Done, 1), "{ended:?}");
        assert_eq!(node.result(invocation.id).await.text(), format!("body {number}"));
    }
    // Results also survive a crash.
    let node = node.kill().await.start().await;
    assert_eq!(node.result(accepted[0].id).await.text(), "body 0");
}

/// Waits until a loss of the node counts as an attempt of the running invocation.
async fn runs_for_a_second(node: &TestNode, id: AsyncId, attempt: u32) {
    eventually("the attempt runs for more than a second", async || {
        let found = node.invocation(id).await;
        assert!(found.attempts <= attempt, "{found:?}");
        let is_running = found.status == InvocationStatus::Running && found.attempts == attempt;
        let started_at = UNIX_EPOCH + Duration::from_millis(found.started_at_ms?);
        let is_counted = started_at.elapsed().is_ok_and(|elapsed| elapsed > Duration::from_millis(1_100));
        (is_running && is_counted).then_some(())
    })
    .await;
}

/// Several restarts in a row kill no accepted invocation.
#[tokio::test]
async fn restarts_soon_after_the_start_do_not_count_as_attempts() {
    let mut node = TestNode::builder().set("async.attempts_max", 1).set("async.backoff_ms", 10).start().await;
    node.deploy_with("f", "limits.deadline_ms=60000", function("misbehave")).await;
    let later = node.post_later("/fn/f/sleep", "body").await;
    for _ in 0..3 {
        node.until(later.id, InvocationStatus::Running).await;
        let started_at_ms = node.invocation(later.id).await.started_at_ms.unwrap();
        node = node.kill().await.start().await;
        let started_at = UNIX_EPOCH + Duration::from_millis(started_at_ms);
        if started_at.elapsed().is_ok_and(|elapsed| elapsed > Duration::from_secs(1)) {
            eprintln!("skipped: a restart took more than a second");
            return;
        }
        eventually("the next attempt", async || {
            let found = node.invocation(later.id).await;
            assert!(!found.status.is_end() && found.attempts <= 1, "{found:?}");
            (found.started_at_ms? > started_at_ms).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn crash_during_a_run_counts_as_an_attempt() {
    let node = TestNode::start().await;
    node.deploy_with("f", "limits.deadline_ms=60000", function("misbehave")).await;
    let later = node.post_later("/fn/f/sleep", "body").await;
    runs_for_a_second(&node, later.id, 1).await;
    let node = node.kill().await.set("async.running_max", 0).start().await;
    assert_eq!(node.invocation(later.id).await.attempts, 1);
    node.deploy("f", function("echo-http")).await;
    // A removed version is replaced by the active one.
    node.delete("/v1/functions/f/versions/1").await.ok();
    let node = node.kill().await.set("async.running_max", 1).start().await;
    let ended = node.ended(later.id).await;
    assert_eq!((ended.status, ended.attempts), (InvocationStatus::Done, 2));
    assert_eq!(node.result(later.id).await.text(), "body");
}

#[tokio::test]
async fn invocation_that_crashes_the_node_is_dead_after_the_attempt_limit() {
    let mut node = TestNode::builder().set("async.attempts_max", 2).start().await;
    node.deploy_with("f", "limits.deadline_ms=60000", function("misbehave")).await;
    let later = node.post_later("/fn/f/sleep", "").await;
    for attempt in 1..=2 {
        // Until the node takes the invocation over, its state is that before the crash.
        runs_for_a_second(&node, later.id, attempt).await;
        node = node.kill().await.start().await;
    }
    let ended = node.ended(later.id).await;
    assert_eq!((ended.status, ended.attempts), (InvocationStatus::Dead, 2));
    let refusal = node.result(later.id).await.refusal();
    assert_eq!((refusal.status, refusal.code), (502, ErrorCode::NodeLost), "{refusal:?}");
}

/// A shutdown during a run is no failed attempt: the invocation runs after the next start.
#[tokio::test]
async fn interrupted_run_is_queued_again_on_shutdown() {
    let node = TestNode::builder().set("gateway.drain_timeout_ms", 200).start().await;
    node.deploy_with("f", "limits.deadline_ms=60000", function("misbehave")).await;
    let later = node.post_later("/fn/f/sleep", "body").await;
    node.until(later.id, InvocationStatus::Running).await;
    let node = node.stop().await.set("async.running_max", 0).start().await;
    let left = node.invocation(later.id).await;
    assert_eq!((left.status, left.attempts, left.error), (InvocationStatus::Queued, 0, None));
    node.deploy("f", function("echo-http")).await;
    // A removed version is replaced by the active one.
    node.delete("/v1/functions/f/versions/1").await.ok();
    let node = node.stop().await.set("async.running_max", 1).start().await;
    assert_eq!(node.ended(later.id).await.attempts, 1);
    assert_eq!(node.result(later.id).await.text(), "body");
}

#[tokio::test]
async fn shutdown_waits_for_running_invocations() {
    let node = TestNode::start().await;
    node.deploy("f", function("misbehave")).await;
    let later = node.post_later("/fn/f/nap?500", "").await;
    // An invocation whose call has not begun yet is queued again.
    eventually("the call", async || {
        let is_running = node.metric("weir_invocations_running", "").await > 0.0;
        (is_running || node.invocation(later.id).await.status == InvocationStatus::Done).then_some(())
    })
    .await;
    let node = node.stop().await.set("async.running_max", 0).start().await;
    let ended = node.invocation(later.id).await;
    assert_eq!((ended.status, ended.attempts), (InvocationStatus::Done, 1));
    assert_eq!(node.result(later.id).await.text(), "napped\n");
}
