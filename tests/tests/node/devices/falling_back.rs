//! Fallback to the CPU for models and shapes that an accelerator cannot run.

use super::{device, infer, node, push, ran_on, resident};
use serde_json::json;
use weir_tests::function;
use weir_types::ErrorCode;
use weir_types::api::ModelVersion;

#[tokio::test]
async fn model_without_accelerator_support_runs_on_the_cpu() {
    let node = node("cpu,fake:x", 5_000).start().await;
    let pushed: ModelVersion = push(&node, "m", "", json!({"platforms": ["cpu"]})).await.ok().json();
    assert_eq!(
        (&pushed.devices[0].why_not, &pushed.devices[1].why_not),
        (&None, &Some("it says so".to_owned()))
    );
    let answer = infer(&node, "m", 1).await.ok();
    // Placed on the CPU directly, without a fallback.
    assert_eq!((answer.header("weir-device"), answer.header("weir-fallback")), (Some("cpu"), None));
    assert_eq!(node.metric("weir_device_fallbacks_total", "").await, 0.0);
}

#[tokio::test]
async fn call_with_cpu_and_accelerator_models_runs_each_on_its_device() {
    let node = node("cpu,fake:x", 5_000).start().await;
    push(&node, "a", "device=fake", json!({})).await.ok();
    push(&node, "c", "", json!({"platforms": ["cpu"]})).await.ok();
    node.deploy_with("both", "models=a,c", function("infer")).await;
    for name in ["a", "c", "a", "c"] {
        node.post(&format!("/fn/both/{name}?shape=1,1"), 1_f32.to_le_bytes().to_vec()).await.ok();
    }
    assert_eq!(resident(&node).await, [["c:1"], ["a:1"]]);
    assert_eq!(node.metric("weir_device_fallbacks_total", "device=\"fake:1\"").await, 2.0);
    assert_eq!(node.metric("weir_cold_starts_total", "cause=\"model\"").await, 2.0);
}

#[tokio::test]
async fn shapes_unsupported_by_the_accelerator_fall_back_to_the_cpu() {
    let node = node("cpu,fake:x", 5_000).start().await;
    push(&node, "m", "", json!({"run_time_ms": {"1": 20}, "on": {"x": {"batch_max": 2}}})).await.ok();
    assert_eq!(ran_on(&node, "m").await, "fake:1");
    let answer = infer(&node, "m", 3).await.ok();
    assert_eq!(answer.header("weir-device"), Some("cpu"));
    let why = answer.header("weir-fallback").expect("the response has no reason for the fallback");
    assert!(why.contains("fake:1 cannot run m:1") && why.contains("a batch of 3 is too large"), "{why}");
    assert_eq!(node.metric("weir_device_fallbacks_total", "device=\"fake:1\"").await, 1.0);
    // The model stays placeable on the accelerator for other shapes.
    let model: ModelVersion = node.get("/v1/models/m/versions/1").await.ok().json();
    assert!(model.devices.iter().all(|known| known.why_not.is_none()), "{model:?}");
}

#[tokio::test]
async fn model_that_fails_to_load_is_not_placed_on_that_device_again() {
    let node = node("cpu,fake:x", 5_000).start().await;
    push(&node, "m", "", json!({"run_time_ms": {"1": 20}, "on": {"x": {"batch_max": 0}}})).await.ok();
    let first = infer(&node, "m", 1).await.ok();
    assert_eq!(first.header("weir-device"), Some("cpu"));
    assert!(first.header("weir-fallback").is_some_and(|why| why.contains("it says so")), "{first:?}");
    let second = infer(&node, "m", 1).await.ok();
    assert_eq!((second.header("weir-device"), second.header("weir-fallback")), (Some("cpu"), None));
    let model: ModelVersion = node.get("/v1/models/m/versions/1").await.ok().json();
    assert_eq!(model.devices[1].why_not.as_deref(), Some("it says so"));
    assert_eq!(device(&node, "fake:1").await.resident, [""; 0]);
    // If the manifest requires the accelerator, there is no fallback.
    push(&node, "only", "device=fake", json!({"on": {"x": {"batch_max": 0}}})).await.ok();
    let refused = infer(&node, "only", 1).await.refusal();
    assert_eq!(refused.code, ErrorCode::ModelError, "{refused:?}");
    assert!(refused.text.contains("cannot run"), "{refused:?}");
    let refused = infer(&node, "only", 1).await.refusal();
    assert_eq!(refused.code, ErrorCode::NoCapacity);
    let why =
        "no device of this node can run only:1: cpu: its manifest says device = \"fake\"; fake:1: it says so";
    assert_eq!(refused.text, why);
}

#[tokio::test]
async fn model_without_a_supported_run_is_not_placed_on_that_device_again() {
    let node = node("cpu,fake:x", 5_000).start().await;
    push(&node, "m", "", json!({"run_time_ms": {"1": 20}, "on": {"x": {"batch_max": 1}}})).await.ok();
    for call in 1..=3 {
        let answer = infer(&node, "m", 2).await.ok();
        let why = answer.header("weir-fallback").unwrap_or_default();
        assert_eq!(answer.header("weir-device"), Some("cpu"), "{call}");
        assert!(why.contains("a batch of 2 is too large"), "{call}: {why}");
    }
    let answer = infer(&node, "m", 2).await.ok();
    assert_eq!((answer.header("weir-device"), answer.header("weir-fallback")), (Some("cpu"), None));
    let model: ModelVersion = node.get("/v1/models/m/versions/1").await.ok().json();
    assert_eq!(model.devices[1].why_not.as_deref(), Some("a batch of 2 is too large"));
}

#[tokio::test]
async fn model_larger_than_every_device_is_stored_but_not_ready() {
    let node = node("cpu,fake:x", 999).start().await;
    let pushed: ModelVersion = push(&node, "m", "", json!({})).await.ok().json();
    let why = "the model needs 1000 bytes; the memory for models is 999 bytes (models.memory_bytes_max)";
    assert!(pushed.devices.iter().all(|known| known.why_not.as_deref() == Some(why)), "{pushed:?}");
    let refused = infer(&node, "m", 1).await.refusal();
    let text = format!("no device of this node can run m:1: cpu: {why}; fake:1: {why}");
    assert_eq!((refused.status, refused.text), (507, text.clone()));
    let unready = node.get("/v2/models/m/ready").await.refusal();
    assert_eq!((unready.status, unready.text), (503, format!("m is not ready: {text}")));
}
