//! Failed attempts, retries and cancellation.

use std::time::Instant;
use weir_tests::{NodeBuilder, TestNode, eventually, function};
use weir_types::ErrorCode;
use weir_types::api::InvocationStatus;

fn quick() -> NodeBuilder {
    TestNode::builder().set("async.backoff_ms", 1)
}

#[tokio::test]
async fn failing_invocation_is_dead_after_the_attempt_limit() {
    let node = quick().start().await;
    node.deploy_with("f", "limits.deadline_ms=300", function("misbehave")).await;
    for (path, code, status) in [
        ("trap", ErrorCode::GuestTrap, 500),
        ("sleep", ErrorCode::DeadlineExceeded, 504),
        ("exit", ErrorCode::NoResponse, 502),
    ] {
        let later = node.post_later(&format!("/fn/f/{path}"), "").await;
        let ended = node.ended(later.id).await;
        assert_eq!((ended.status, ended.attempts), (InvocationStatus::Dead, 3), "{path}");
        let error = ended.error.unwrap();
        assert_eq!(error.code, code, "{path}");
        let refusal = node.result(later.id).await.refusal();
        assert_eq!((refusal.status, refusal.code, &refusal.text), (status, code, &error.text), "{path}");
    }
    let dead = node.invocations("status=dead").await;
    assert_eq!(dead.len(), 3);
    assert_eq!(node.invocations("status=done").await, []);
}

/// A response that breaks off is a failed attempt.
#[tokio::test]
async fn oversized_response_is_a_failed_attempt() {
    let node = quick().set("async.attempts_max", 2).start().await;
    node.deploy_with("f", "limits.response_body_bytes=3000000", function("misbehave")).await;
    for path in ["body", "declare"] {
        let later = node.post_later(&format!("/fn/f/{path}"), "").await;
        let ended = node.ended(later.id).await;
        assert_eq!(
            (ended.status, ended.attempts, &ended.response),
            (InvocationStatus::Dead, 2, &None),
            "{ended:?}"
        );
    }
}

#[tokio::test]
async fn truncated_response_is_a_failed_attempt() {
    let node = quick().set("async.attempts_max", 2).start().await;
    node.deploy_with("busy", "limits.cpu_time_ms=50", function("misbehave")).await;
    node.deploy("torn", function("misanswer")).await;
    for path in ["busy/body", "torn/half"] {
        let later = node.post_later(&format!("/fn/{path}"), "").await;
        let ended = node.ended(later.id).await;
        assert_eq!(
            (ended.status, ended.attempts, &ended.response),
            (InvocationStatus::Dead, 2, &None),
            "{path}: {ended:?}"
        );
    }
}

#[tokio::test]
async fn caller_errors_are_not_retried() {
    let node = TestNode::builder().set("async.running_max", 0).start().await;
    node.deploy("f", function("hello")).await;
    let later = node.post_later("/fn/f", "").await;
    node.delete("/v1/functions/f").await.ok();
    let node = node.stop().await.set("async.running_max", 1).start().await;
    let ended = node.ended(later.id).await;
    assert_eq!((ended.status, ended.attempts), (InvocationStatus::Dead, 1));
    let refusal = node.result(later.id).await.refusal();
    assert_eq!((refusal.status, refusal.code), (404, ErrorCode::FunctionNotFound));
    // After a new deployment, the invocation can be restarted.
    node.deploy("f", function("hello")).await;
    let retried = node.post(&format!("/v1/invocations/{}/retry", later.id), "").await.ok();
    let retried: weir_types::api::Invocation = retried.json();
    assert_eq!((retried.attempts, &retried.error, retried.started_at_ms), (0, &None, None), "{retried:?}");
    assert_eq!(node.ended(later.id).await.status, InvocationStatus::Done);
    assert_eq!(node.result(later.id).await.text(), "hello\n");
    let again = node.post(&format!("/v1/invocations/{}/retry", later.id), "").await;
    assert_eq!((again.status, again.code()), (409, ErrorCode::Conflict));
}

/// Asynchronous calls wait while the function's queue is full, without counting attempts.
#[tokio::test]
async fn full_function_queue_delays_without_counting_attempts() {
    let node = quick().set("async.backoff_ms_max", 20).start().await;
    node.deploy_with(
        "f",
        "limits.concurrency_max=1&limits.queue_len_max=0&limits.deadline_ms=60000",
        function("misbehave"),
    )
    .await;
    let held = node.hold("/fn/f/wait");
    eventually("the held call", async || {
        (node.metric("weir_invocations_running", "").await == 1.0).then_some(())
    })
    .await;
    let later = node.post_later("/fn/f/behave", "").await;
    let waits = eventually("a refusal", async || {
        let invocation = node.invocation(later.id).await;
        invocation.error.is_some().then_some(invocation)
    })
    .await;
    assert_eq!(waits.error.unwrap().code, ErrorCode::QueueFull);
    assert!(!waits.status.is_end());
    eventually("more refusals than attempts are allowed", async || {
        (node.metric("weir_async_attempts_total", "").await > 5.0).then_some(())
    })
    .await;
    assert_eq!(held.let_go().await.text(), "let go\n");
    let ended = node.ended(later.id).await;
    assert_eq!((ended.status, ended.attempts, ended.error), (InvocationStatus::Done, 1, None));
}

#[tokio::test]
async fn full_function_queue_ends_the_invocation_after_its_maximum_age() {
    let node = quick().set("async.age_ms_max", 50).set("async.backoff_ms_max", 5).start().await;
    node.deploy_with(
        "f",
        "limits.concurrency_max=1&limits.queue_len_max=0&limits.deadline_ms=60000",
        function("misbehave"),
    )
    .await;
    let held = node.hold("/fn/f/wait");
    eventually("the held call", async || {
        (node.metric("weir_invocations_running", "").await == 1.0).then_some(())
    })
    .await;
    let later = node.post_later("/fn/f/behave", "").await;
    let ended = node.ended(later.id).await;
    assert_eq!((ended.status, ended.error.unwrap().code), (InvocationStatus::Dead, ErrorCode::QueueFull));
    held.let_go().await;
}

#[tokio::test]
async fn queued_and_running_invocations_can_be_cancelled() {
    let node = TestNode::builder().set("async.running_max", 1).start().await;
    node.deploy_with("f", "limits.deadline_ms=60000", function("misbehave")).await;
    let (running, queued) =
        (node.post_later("/fn/f/sleep", "").await, node.post_later("/fn/f/sleep", "").await);
    node.until(running.id, InvocationStatus::Running).await;
    let began = Instant::now();
    for invocation in [&queued, &running] {
        let path = format!("/v1/invocations/{}", invocation.id);
        let cancelled: weir_types::api::Invocation = node.delete(&path).await.ok().json();
        assert_eq!(cancelled.status, InvocationStatus::Cancelled);
        assert_eq!(node.result(invocation.id).await.code(), ErrorCode::Cancelled);
        assert_eq!(
            node.post(&format!("{path}/cancel"), "").await.code(),
            ErrorCode::Conflict,
            "an ended invocation was cancelled"
        );
    }
    // The guest was dropped, and its permit is free.
    eventually("nothing runs", async || {
        (node.metric("weir_invocations_running", "").await == 0.0).then_some(())
    })
    .await;
    let next = node.post_later("/fn/f/behave", "").await;
    assert_eq!(node.ended(next.id).await.status, InvocationStatus::Done);
    assert!(began.elapsed().as_secs() < 30, "cancelled calls still occupy the node");
    assert_eq!(node.invocation(running.id).await.status, InvocationStatus::Cancelled);
    // After the end, the same request deletes the invocation.
    assert_eq!(node.delete(&format!("/v1/invocations/{}", running.id)).await.status, 204);
    let gone = node.get(&format!("/v1/invocations/{}", running.id)).await;
    assert_eq!((gone.status, gone.code()), (404, ErrorCode::InvocationNotFound));
}
