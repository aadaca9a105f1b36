//! Shadows of models.

use super::{compared, shadow_of};
use serde_json::{Value, json};
use weir_tests::{TestClient, TestNode, eventually};
use weir_types::api::{Model, ModelPushed};
use weir_types::{ErrorCode, Version};

/// A fake model that takes `resident_bytes`, with the input `x` and this output. An output with the
/// type and shape of an input echoes it, and any other output is zero.
fn fake(resident_bytes: u64, output: &str) -> Vec<u8> {
    let port = |name: &str, datatype: &str| json!({"name": name, "datatype": datatype, "shape": [null, 4]});
    let signature = json!({"inputs": [port("x", "FP32")], "outputs": [port("y", output)]});
    json!({"resident_bytes": resident_bytes, "signature": signature}).to_string().into_bytes()
}

async fn node(memory_bytes_max: u64) -> TestNode {
    let node = TestNode::builder().set("models.backend", "fake");
    node.set("models.memory_bytes_max", memory_bytes_max).start().await
}

async fn push(node: &TestClient, options: &str, model: Vec<u8>) -> ModelPushed {
    node.put(&format!("/v1/models/m?{options}"), model).await.ok().json()
}

/// Runs `m`, and asserts that version 1 answers.
async fn infer(node: &TestClient) {
    let input = json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]});
    let answer: Value = node.post("/v2/models/m/infer", input.to_string()).await.ok().json();
    assert_eq!(
        (&answer["model_version"], &answer["outputs"][0]["data"]),
        (&json!("1"), &json!([1.0, 2.0, 3.0, 4.0]))
    );
}

#[tokio::test]
async fn outputs_of_the_shadow_are_compared() {
    let node = node(1_000_000).await;
    push(&node, "", fake(1_000, "FP32")).await;
    let pushed = push(&node, "shadow=100", fake(1_001, "FP32")).await;
    assert_eq!(pushed.shadow.map(|shadow| (shadow.version, shadow.percent)), Some((Version(2), 100)));
    assert!(!pushed.is_preview);
    for copies in 1..=3 {
        infer(&node).await;
        compared(&node, "models/m", [copies, 0]).await;
    }
    let other = push(&node, "shadow=100&allow_signature_change=true", fake(1_000, "INT32")).await;
    assert_eq!(other.shadow.map(|shadow| shadow.version), Some(Version(3)));
    infer(&node).await;
    let report = compared(&node, "models/m", [0, 1]).await;
    assert_eq!((report.shadow_calls.calls.calls, report.shadow_calls.calls.failed), (1, 0));
    let shown = node.weir(&["models", "show", "m"]).await.unwrap();
    for part in
        ["shadow       version 3 gets copies of 100 % of the inferences", "0 with equal results, 1 with"]
    {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let equal = node.metric("weir_shadow_inferences_total", "outcome=\"equal\"").await;
    assert!((equal - 3.0).abs() < f64::EPSILON, "{equal}");
    // Copies are no inferences of clients.
    let statistics: Value = node.get("/v2/models/m/versions/3/stats").await.ok().json();
    assert_eq!(statistics["model_stats"][0]["inference_count"], json!(0));
}

#[tokio::test]
async fn shadow_that_fails_is_counted_and_its_inferences_are_answered() {
    let node = node(1_000_000).await;
    push(&node, "", fake(1_000, "FP32")).await;
    let mut other: Value = serde_json::from_slice(&fake(1_000, "FP32")).unwrap();
    other["signature"]["inputs"][0]["name"] = json!("z");
    push(&node, "shadow=100&allow_signature_change=true", other.to_string().into_bytes()).await;
    infer(&node).await;
    let report = compared(&node, "models/m", [0, 1]).await;
    assert_eq!((report.shadow_calls.calls.failed, report.active_calls.calls.failed), (1, 0));
}

/// The device has room for one of the two versions.
#[tokio::test]
async fn copy_never_evicts_the_active_version() {
    let node = node(100_000).await;
    push(&node, "", fake(60_000, "FP32")).await;
    push(&node, "shadow=100", fake(60_001, "FP32")).await;
    for _ in 0..3 {
        infer(&node).await;
    }
    let report = eventually("the skipped inferences", async || {
        let report = shadow_of(&node, "models/m").await;
        (report.skipped.get("no-room") == Some(&3)).then_some(report)
    })
    .await;
    assert_eq!((report.equal, report.different), (0, 0));
    let shown: Model = node.get("/v1/models/m").await.ok().json();
    assert!(shown.active.resident);
}

#[tokio::test]
async fn shadow_of_a_model_is_promoted_by_its_number_and_ended_by_a_rollback() {
    let node = node(1_000_000).await;
    push(&node, "", fake(1_000, "FP32")).await;
    push(&node, "shadow=100", fake(1_001, "FP32")).await;
    let changed = push(&node, "shadow=50", fake(1_001, "FP32")).await;
    assert_eq!(changed.shadow.map(|shadow| (shadow.version, shadow.percent)), Some((Version(2), 50)));
    let refusal = node.delete("/v1/models/m/versions/2").await.refusal();
    assert_eq!((refusal.status, refusal.code), (409, ErrorCode::Conflict));
    let node = node.kill().await.start().await;
    let shown: Model = node.get("/v1/models/m").await.ok().json();
    assert_eq!((shown.active.version, shown.shadow), (Version(1), changed.shadow));
    assert_eq!(node.weir(&["models", "rollback", "m"]).await.unwrap(), "m is at version 1 now\n");
    assert_eq!(node.get("/v1/models/m/shadow").await.code(), ErrorCode::ShadowNotFound);
    infer(&node).await;
    push(&node, "shadow=10", fake(1_002, "FP32")).await;
    assert_eq!(node.weir(&["models", "promote", "m", "3"]).await.unwrap(), "m is at version 3 now\n");
    let shown: Model = node.get("/v1/models/m").await.ok().json();
    assert_eq!((shown.active.version, shown.shadow), (Version(3), None));
    push(&node, "shadow=10", fake(1_003, "FP32")).await;
    push(&node, "", fake(1_004, "FP32")).await;
    let shown: Model = node.get("/v1/models/m").await.ok().json();
    assert_eq!((shown.active.version, shown.shadow), (Version(5), None));
}
