//! Start, promotion and end of canaries by requests.

use super::{active, canary_answers, start, version_of};
use reqwest::Method;
use weir_tests::{TestNode, eventually, function, with_custom_section};
use weir_types::ErrorCode;
use weir_types::api::{CanaryReport, EventKind, EventPage};

/// The kinds of the events about `f`, oldest first.
async fn events(node: &TestNode) -> Vec<EventKind> {
    let page: EventPage = node.get("/v1/events?name=f").await.ok().json();
    page.events.into_iter().map(|event| event.kind).collect()
}

#[tokio::test]
async fn promoted_canary_gets_all_calls() {
    let node = start("canary=10").await;
    assert_eq!(active(&node).await, 1);
    assert!(node.weir(&["promote", "f"]).await.unwrap().contains("f is at version 2 now"));
    assert_eq!(canary_answers(&node, 20).await, 20);
    let refusal = node.post("/v1/functions/f/promote", "").await.refusal();
    assert_eq!((refusal.status, refusal.code), (404, ErrorCode::CanaryNotFound));
    let kinds = events(&node).await;
    let expected =
        [EventKind::Deployed, EventKind::Deployed, EventKind::CanaryStarted, EventKind::CanaryPromoted];
    assert_eq!(kinds, expected);
    assert!(node.roll_back("f", None).await.is_ok());
    assert_eq!(active(&node).await, 1, "the version that was active before");
}

#[tokio::test]
async fn rollback_ends_a_canary_and_keeps_the_active_version() {
    let node = start("canary=50").await;
    assert!(node.weir(&["rollback", "f"]).await.unwrap().contains("f is at version 1 now"));
    assert_eq!(canary_answers(&node, 20).await, 0);
    assert_eq!(events(&node).await.last(), Some(&EventKind::CanaryRolledBack));
    assert_eq!(node.get("/v1/functions/f/canary").await.code(), ErrorCode::CanaryNotFound);
    // The next rollback does not go to the version that was taken back.
    node.deploy("f", with_custom_section(&function("hello"), "3")).await;
    assert!(node.roll_back("f", None).await.is_ok());
    assert_eq!(active(&node).await, 1);
}

#[tokio::test]
async fn deploys_replace_canaries() {
    let node = start("canary=50").await;
    let third = with_custom_section(&function("hello"), "3");
    node.deploy_with("f", "canary=99", third).await;
    let function_now = node.function("f").await.unwrap();
    assert_eq!(function_now.active.version.0, 1, "only the canary is replaced");
    assert_eq!(function_now.canary.map(|canary| (canary.version.0, canary.percent)), Some((3, 99)));
    node.deploy("f", with_custom_section(&function("hello"), "4")).await;
    let function_now = node.function("f").await.unwrap();
    assert_eq!((function_now.active.version.0, function_now.canary), (4, None));
    let kinds = events(&node).await;
    assert_eq!(kinds.iter().filter(|kind| **kind == EventKind::CanaryRolledBack).count(), 2, "{kinds:?}");
    assert_eq!(version_of(&node.get("/fn/f/x").await.ok()), 4);
}

#[tokio::test]
async fn canary_survives_restarts_and_is_not_pruned() {
    let node = TestNode::builder().set("sandbox.versions_keep", 1).start().await;
    node.deploy("f", function("hello")).await;
    node.deploy_with("f", "canary=30&promote_after_ms=3600000", function("misbehave")).await;
    let before = node.function("f").await.unwrap().canary;
    let node = node.kill().await.start().await;
    assert_eq!(node.function("f").await.unwrap().canary, before);
    assert_eq!(canary_answers(&node, 100).await, 30);
    let refusal = node.delete("/v1/functions/f/versions/2").await.refusal();
    assert_eq!((refusal.status, refusal.code), (409, ErrorCode::Conflict));
    let shown = node.weir(&["functions", "show", "f"]).await.unwrap();
    assert!(shown.contains("canary       version 2 gets 30 % of the calls (started "), "{shown}");
    assert!(node.weir(&["functions"]).await.unwrap().contains("1 (canary 2: 30 %)"));
}

#[tokio::test]
async fn calls_of_both_versions_are_counted_while_there_is_a_canary() {
    let node = start("canary=20").await;
    canary_answers(&node, 100).await;
    // One failure is no reason for a rollback.
    let mut of_active = 80;
    for key in 0.. {
        let request = node.request(Method::GET, "/fn/f/trap").header("weir-version-key", key.to_string());
        if node.send(request).await.status == 500 {
            break;
        }
        of_active += 1;
    }
    // A call is counted once its answer was sent.
    let report = eventually("the counts", async || {
        let report: CanaryReport = node.get("/v1/functions/f/canary").await.ok().json();
        let calls = [report.active_calls, report.canary_calls].map(|calls| (calls.calls, calls.failed));
        (calls == [(of_active, 0), (21, 1)]).then_some(report)
    })
    .await;
    assert!(report.active_calls.p95_ms.is_some_and(|ms| ms > 0.0), "{report:?}");
    assert_eq!(report.waits_for, None);
    let failed = node.metric("weir_canary_invocations_total", "version=\"2\",outcome=\"failed\"").await;
    assert!((failed - 1.0).abs() < f64::EPSILON, "{failed}");
}

#[tokio::test]
async fn first_version_gets_all_calls() {
    let node = TestNode::start().await;
    let deployed = node.deploy_with("f", "canary=10", function("hello")).await;
    assert_eq!((deployed.function.active, deployed.canary), (true, None));
    assert_eq!(version_of(&node.get("/fn/f/x").await.ok()), 1);
}

#[tokio::test]
async fn canaries_that_clients_would_notice_are_refused() {
    let node = TestNode::start().await;
    node.deploy("f", function("hello")).await;
    for (query, component) in [("canary=10", "echo-tensor"), ("canary=10&public=true", "hello")] {
        let refusal = node.try_deploy("f", query, function(component)).await.unwrap_err();
        assert_eq!((refusal.status, refusal.code), (409, ErrorCode::Conflict), "{refusal:?}");
    }
    assert_eq!(node.function("f").await.unwrap().versions.len(), 1);
    for query in ["canary=0", "canary=100", "canary=x", "canary=10&promote_after_ms=0", "promote_after_ms=5"]
    {
        let refusal = node.try_deploy("f", query, function("misbehave")).await.unwrap_err();
        assert_eq!((refusal.status, refusal.code), (400, ErrorCode::InvalidRequest), "{query}");
    }
    // Without an error, all calls would use the new version.
    let workflow = node.put("/v1/workflows/w?canary=10", "").await.refusal();
    assert!(workflow.status == 400 && workflow.text.contains("canary"), "{workflow:?}");
}
