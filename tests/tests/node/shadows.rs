//! Shadows: versions of a function or model that get copies of its calls or inferences.

mod limits;
mod models;

use reqwest::Method;
use weir_tests::{NodeBuilder, TestClient, TestNode, eventually, function, with_custom_section};
use weir_types::ErrorCode;
use weir_types::api::{EventPage, ShadowReport};

/// Starts a node with the function `f`, whose version 2 is a shadow with copies of all calls.
async fn start(builder: NodeBuilder) -> TestNode {
    let node = builder.start().await;
    node.deploy("f", function("hello")).await;
    let deployed = node.deploy_with("f", "shadow=100", function("misbehave")).await;
    assert_eq!((deployed.function.version.0, deployed.function.active), (2, false));
    assert_eq!((deployed.is_preview, &*deployed.path), (false, "/fn/f@2/"));
    assert_eq!(deployed.shadow.map(|shadow| (shadow.version.0, shadow.percent)), Some((2, 100)));
    node
}

async fn shadow_of(node: &TestClient, item: &str) -> ShadowReport {
    node.get(&format!("/v1/{item}/shadow")).await.ok().json()
}

/// The comparison, once it has this many equal and different results.
async fn compared(node: &TestClient, item: &str, results: [u64; 2]) -> ShadowReport {
    eventually("the comparison", async || {
        let report = shadow_of(node, item).await;
        ([report.equal, report.different] == results).then_some(report)
    })
    .await
}

/// Calls `/fn/f/PATH`, and asserts that version 1 answers.
async fn call(node: &TestClient, path: &str) {
    let answer = node.get(&format!("/fn/f/{path}")).await.ok();
    assert_eq!(answer.header("weir-version"), Some("1"));
    assert!(answer.text().starts_with("hello, "), "{}", answer.text());
}

#[tokio::test]
async fn callers_get_the_answers_of_the_active_version_and_copies_are_compared() {
    let node = start(TestNode::builder()).await;
    for (copies, path) in (1..).zip([vec!["behave"; 10], vec!["trap", "unknown"]].concat()) {
        call(&node, path).await;
        compared_at_least(&node, copies).await;
    }
    let report = compared(&node, "functions/f", [10, 2]).await;
    let counts = |calls: &weir_types::api::ComparedCalls| (calls.calls.calls, calls.calls.failed);
    assert_eq!((counts(&report.shadow_calls), counts(&report.active_calls)), ((12, 1), (12, 0)));
    let classes = |classes: &[(&str, u64)]| classes.iter().map(|(class, n)| ((*class).into(), *n)).collect();
    assert_eq!(report.shadow_calls.statuses, classes(&[("2xx", 10), ("4xx", 1), ("5xx", 1)]));
    assert_eq!(report.active_calls.statuses, classes(&[("2xx", 12)]));
    let p50_ms = report.shadow_calls.p50_ms.zip(report.active_calls.p50_ms);
    assert!(p50_ms.is_some_and(|(shadow, active)| shadow > 0.0 && active > 0.0), "{report:?}");
    assert!(report.skipped.is_empty(), "{report:?}");

    let shown = node.weir(&["functions", "show", "f"]).await.unwrap();
    for part in [
        "shadow       version 2 gets copies of 100 % of the calls",
        "10 with equal results, 2 with",
        "1 of 12 failed",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    // Copies count apart from the calls of clients, and their faults are no events.
    assert!((node.metric("weir_invocations_total", "function=\"f\"").await - 12.0).abs() < f64::EPSILON);
    let different = node.metric("weir_shadow_calls_total", "outcome=\"different\"").await;
    assert!((different - 2.0).abs() < f64::EPSILON, "{different}");
    let events: EventPage = node.get("/v1/events?name=f&kind=fault").await.ok().json();
    assert!(events.events.is_empty(), "{events:?}");
}

/// Waits until the copies of the calls so far have ended, so that the next copy has a permit.
async fn compared_at_least(node: &TestClient, copies: u64) {
    eventually("a comparison", async || {
        let report = shadow_of(node, "functions/f").await;
        (report.equal + report.different >= copies).then_some(())
    })
    .await;
}

#[tokio::test]
async fn exactly_the_percentage_of_the_calls_is_copied() {
    let node = TestNode::builder()
        .set("scheduler.shadow.tenant_calls_max", 1_000)
        .set("scheduler.shadow.calls_max", 1_000);
    let node = start(node).await;
    let changed = node.deploy_with("f", "shadow=30", function("misbehave")).await;
    assert_eq!((changed.created, changed.shadow.map(|shadow| shadow.percent)), (false, Some(30)));
    for _ in 0..100 {
        call(&node, "behave").await;
    }
    // A version that the call names is not the active one.
    node.get("/fn/f@2/behave").await.ok();
    let report = eventually("the copies", async || {
        let report = shadow_of(&node, "functions/f").await;
        let chosen = report.equal + report.different + report.skipped.values().sum::<u64>();
        (chosen == 30).then_some(report)
    })
    .await;
    assert!(report.equal > 0 && report.different == 0, "{report:?}");
}

#[tokio::test]
async fn only_copies_have_the_header_of_copies() {
    let node = TestNode::start().await;
    node.deploy("f", function("misbehave")).await;
    node.deploy_with("f", "shadow=100", with_custom_section(&function("misbehave"), "2")).await;
    let request = node.request(Method::GET, "/fn/f/copy").header("weir-shadow", "1");
    assert_eq!(node.send(request).await.status, 200, "the node removes the header of a client");
    let report = compared(&node, "functions/f", [0, 1]).await;
    assert_eq!(report.shadow_calls.statuses, [("2xx".to_owned(), 1)].into());
}

#[tokio::test]
async fn copy_of_a_tensor_function_is_compared() {
    let node = TestNode::start().await;
    node.deploy("t", function("echo-tensor")).await;
    node.deploy_with("t", "shadow=100", with_custom_section(&function("echo-tensor"), "2")).await;
    let input = r#"{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}"#;
    for path in ["/v2/models/t/infer", "/fn/t/"] {
        node.post(path, input).await.ok();
    }
    compared(&node, "functions/t", [2, 0]).await;
    let refused = node.try_deploy("t", "shadow=10", function("hello")).await.unwrap_err();
    assert_eq!((refused.status, refused.code), (409, ErrorCode::Conflict));
}

#[tokio::test]
async fn shadow_is_promoted_by_its_number_and_ended_by_a_rollback() {
    let node = start(TestNode::builder()).await;
    let refusal = node.post("/v1/functions/f/promote", "").await.refusal();
    assert_eq!(refusal.code, ErrorCode::CanaryNotFound);
    assert_eq!(node.weir(&["rollback", "f"]).await.unwrap(), "f is at version 1 now\n");
    assert_eq!(node.get("/v1/functions/f/shadow").await.code(), ErrorCode::ShadowNotFound);
    let again = node.deploy_with("f", "shadow=10", function("misbehave")).await;
    assert_eq!(again.function.version.0, 3);
    assert_eq!(node.weir(&["promote", "f", "3"]).await.unwrap(), "f is at version 3 now\n");
    let shown = node.function("f").await.unwrap();
    assert_eq!((shown.active.version.0, shown.shadow), (3, None));
}

#[tokio::test]
async fn canary_and_shadow_exist_together_until_a_deploy_replaces_both() {
    let node = start(TestNode::builder()).await;
    node.deploy_with("f", "canary=50", with_custom_section(&function("hello"), "3")).await;
    let shown = node.function("f").await.unwrap();
    let versions = (shown.canary.map(|canary| canary.version.0), shown.shadow.map(|shadow| shadow.version.0));
    assert_eq!(versions, (Some(3), Some(2)));
    node.roll_back("f", None).await.ok();
    let shown = node.function("f").await.unwrap();
    assert_eq!((shown.canary, shown.shadow.map(|shadow| shadow.version.0)), (None, Some(2)));
    node.deploy("f", with_custom_section(&function("hello"), "4")).await;
    assert_eq!(node.function("f").await.unwrap().shadow, None);
}

#[tokio::test]
async fn shadow_survives_restarts_and_is_neither_pruned_nor_removed() {
    let node = start(TestNode::builder().set("sandbox.versions_keep", 1)).await;
    let before = node.function("f").await.unwrap().shadow;
    let node = node.kill().await.start().await;
    assert_eq!(node.function("f").await.unwrap().shadow, before);
    call(&node, "behave").await;
    compared(&node, "functions/f", [1, 0]).await;
    let refusal = node.delete("/v1/functions/f/versions/2").await.refusal();
    assert_eq!((refusal.status, refusal.code), (409, ErrorCode::Conflict));
    assert!(refusal.text.contains("weir rollback f"), "{}", refusal.text);
}

#[tokio::test]
async fn asynchronous_invocations_are_copied() {
    let node = start(TestNode::builder()).await;
    let request = node.request(Method::GET, "/fn/f/behave").header("prefer", "respond-async");
    assert_eq!(node.send(request).await.status, 202);
    compared(&node, "functions/f", [1, 0]).await;
}

#[tokio::test]
async fn options_that_contradict_each_other_are_refused() {
    let node = TestNode::start().await;
    for query in ["shadow=0", "shadow=101", "shadow=x", "shadow=10&canary=10", "shadow=10&preview=true"] {
        let refusal = node.try_deploy("f", query, function("hello")).await.unwrap_err();
        assert_eq!((refusal.status, refusal.code), (400, ErrorCode::InvalidRequest), "{query}");
    }
    let first = node.deploy_with("f", "shadow=10", function("hello")).await;
    assert_eq!((first.function.active, first.shadow, &*first.path), (true, None, "/fn/f/"));
}
