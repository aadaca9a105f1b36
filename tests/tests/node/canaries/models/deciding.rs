//! The node's decisions about canaries of models.

use super::{active, fake, infer, shown, start, taking, version_of};
use serde_json::json;
use std::sync::Arc;
use weir_tests::{TestNode, eventually};
use weir_types::api::{Event, EventKind, EventPage, EventResource};

/// The event of a decision about the canary of `m`, once there is one.
async fn decision(node: &TestNode, kind: EventKind) -> Event {
    let path = format!("/v1/events?name=m&kind={kind}");
    eventually("the decision", async || {
        let page: EventPage = node.get(&path).await.ok().json();
        page.events.into_iter().next()
    })
    .await
}

/// Runs `m` until it has no canary.
async fn run_until_decided(node: &TestNode) {
    eventually("the rollback", async || {
        futures::future::join_all((0..20).map(|_| infer(node))).await;
        shown(node).await.canary.is_none().then_some(())
    })
    .await;
}

#[tokio::test]
async fn canary_whose_runs_fail_is_rolled_back_with_the_numbers() {
    let node = start("canary=50", fake(&json!({"arrive_time_ms": -0.001}))).await;
    run_until_decided(&node).await;
    let event = decision(&node, EventKind::CanaryRolledBack).await;
    assert_eq!(event.resource, EventResource::Model);
    let expected = "canary 2 of model m was rolled back, because more calls fail: ";
    assert!(event.text.starts_with(expected), "{}", event.text);
    assert!(event.text.contains("calls failed (100.0 %)") && event.text.contains("of version 1, 0 of "));
    for _ in 0..20 {
        assert_eq!(version_of(&infer(&node).await.ok()), 1);
    }
}

/// No device has room for the canary, so its runs fail before they begin.
#[tokio::test]
async fn canary_that_cannot_be_placed_is_rolled_back() {
    let node = start("canary=50", fake(&json!({"resident_bytes": 2_000_000}))).await;
    run_until_decided(&node).await;
    let event = decision(&node, EventKind::CanaryRolledBack).await;
    assert!(event.text.contains("because more calls fail"), "{}", event.text);
}

#[tokio::test]
async fn canary_whose_runs_take_longer_is_rolled_back() {
    let node = start("canary=50", taking(60.0)).await;
    run_until_decided(&node).await;
    let event = decision(&node, EventKind::CanaryRolledBack).await;
    assert!(event.text.contains("because calls take longer"), "{}", event.text);
    assert_eq!(active(&node).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn push_waits_for_the_promotion_of_a_good_canary() {
    let node = TestNode::builder().set("models.backend", "fake").start().await;
    node.push_model("m", 1, taking(0.0)).await;
    let node = Arc::new(node);
    let runs = tokio::spawn({
        let node = node.clone();
        async move {
            loop {
                infer(&node).await.ok();
            }
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("second.onnx");
    std::fs::write(&file, taking(0.001)).unwrap();
    let file = file.to_str().unwrap();
    let arguments = ["models", "push", "m", file, "--canary", "50", "--promote-after", "2s"];
    let told = node.weir(&arguments).await.unwrap();
    assert!(told.contains("m is at version 2 now"), "{told}");
    runs.abort();
    assert_eq!(active(&node).await, 2);
    let event = decision(&node, EventKind::CanaryPromoted).await;
    assert!(event.text.contains("version 2 of model m was promoted: 0 of "), "{}", event.text);
}
