//! Concurrent invocations of one function: limits, queues, and version isolation.

use std::time::Duration;
use weir_tests::{Answer, TestClient, TestNode, eventually, function};
use weir_types::{ErrorCode, Version};

/// Calls `path` in a task.
fn call(client: &TestClient, path: &str) -> tokio::task::JoinHandle<Answer> {
    let client = client.clone();
    let path = path.to_owned();
    tokio::spawn(async move { client.get(&path).await })
}

async fn running(node: &TestClient, count: u64) {
    eventually("the start of the invocations", async || (node.status().await.running == count).then_some(()))
        .await;
}

/// Loads the function, and waits until the call has ended.
async fn warm(node: &TestClient) {
    node.get("/fn/f/behave").await.ok();
    running(node, 0).await;
}

#[tokio::test]
async fn concurrency_and_queue_limits_are_enforced() {
    let node = TestNode::start().await;
    node.deploy_with("f", "limits.concurrency_max=2&limits.queue_len_max=3", function("misbehave")).await;
    warm(&node).await;
    let held: Vec<_> = (0..2).map(|_| node.hold("/fn/f/wait")).collect();
    running(&node, 2).await;
    let waiting: Vec<_> = (0..3).map(|_| call(&node, "/fn/f/behave")).collect();
    eventually("the wait of three", async || (node.status().await.queued == 3).then_some(())).await;
    for _ in 0..4 {
        let refused = node.get("/fn/f/behave").await;
        assert_eq!((refused.status, refused.code()), (429, ErrorCode::QueueFull));
        assert!(refused.header("retry-after").is_some());
    }
    // Each function has its own queue.
    node.deploy("other", function("misbehave")).await;
    assert_eq!(node.get("/fn/other/behave").await.ok().text(), "ok\n");
    for call in held {
        assert_eq!(call.let_go().await.ok().text(), "let go\n");
    }
    for answered in waiting {
        answered.await.unwrap().ok();
    }
    assert_eq!(node.get("/fn/f/behave").await.ok().text(), "ok\n");
}

#[tokio::test]
async fn queueing_time_counts_against_the_deadline() {
    let node = TestNode::start().await;
    node.deploy_with("f", "limits.concurrency_max=1&limits.deadline_ms=700", function("misbehave")).await;
    warm(&node).await;
    let first = call(&node, "/fn/f/sleep");
    running(&node, 1).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    // The first call runs until 700 ms; the second has a later deadline and waits.
    let second = node.get("/fn/f/sleep").await;
    assert_eq!((second.status, second.code()), (504, ErrorCode::DeadlineExceeded));
    assert_eq!(first.await.unwrap().code(), ErrorCode::DeadlineExceeded);
}

#[tokio::test]
async fn invocation_finishes_on_the_version_it_started_on() {
    let node = TestNode::start().await;
    node.deploy("f", function("misbehave")).await;
    warm(&node).await;
    let held = node.hold("/fn/f/wait");
    running(&node, 1).await;
    let deployed = node.deploy("f", function("hello")).await;
    assert_eq!(deployed.function.version, Version(2));
    assert_eq!(node.get("/fn/f/x").await.ok().text(), "hello, x\n", "the new version serves at once");
    assert!(!held.has_ended());
    // Even if the old version is deleted meanwhile.
    node.delete("/v1/functions/f/versions/1").await.ok();
    assert_eq!(held.let_go().await.ok().text(), "let go\n");
}

#[tokio::test]
async fn invocation_finishes_after_its_function_is_deleted() {
    let node = TestNode::start().await;
    node.deploy("f", function("misbehave")).await;
    warm(&node).await;
    let held = node.hold("/fn/f/wait");
    running(&node, 1).await;
    node.delete("/v1/functions/f").await.ok();
    assert_eq!(node.get("/fn/f/behave").await.code(), ErrorCode::FunctionNotFound);
    assert!(!held.has_ended());
    assert_eq!(held.let_go().await.ok().text(), "let go\n");
}

#[tokio::test]
async fn instance_limit_applies_across_functions() {
    let node = TestNode::builder().set("sandbox.instances_max", 4).start().await;
    for name in ["a", "b", "c"] {
        node.deploy(name, function("misbehave")).await;
    }
    let naps: Vec<_> =
        (0..12).map(|i| call(&node, &format!("/fn/{}/nap?200", ["a", "b", "c"][i % 3]))).collect();
    for nap in naps {
        assert_eq!(nap.await.unwrap().ok().text(), "napped\n");
    }
}
