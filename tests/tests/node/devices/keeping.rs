//! Models that leave the memory of a device when they are not used.

use super::{infer, node, push, resident};
use serde_json::json;
use weir_tests::eventually;

#[tokio::test]
async fn unused_model_leaves_its_device_after_its_keep_alive() {
    // Longer than the test: only the manifest makes a model leave.
    let node = node("cpu,fake:fast", 10_000).set("models.keep_alive_ms", 3_600_000).start().await;
    for (name, query) in [
        ("brief", "device=fake&keep_alive_ms=300"),
        ("long", "device=fake"),
        ("brief-cpu", "device=cpu&keep_alive_ms=300"),
        ("long-cpu", "device=cpu"),
    ] {
        push(&node, name, query, json!({})).await.ok();
        infer(&node, name, 1).await.ok();
    }
    let names = |models: &[String]| {
        models.iter().map(|model| model.split(':').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    eventually("unused models leave", async || {
        let resident = resident(&node).await;
        (names(&resident[0]) == ["long-cpu"] && names(&resident[1]) == ["long"]).then_some(())
    })
    .await;
    infer(&node, "brief", 1).await.ok();
}

#[tokio::test]
async fn default_keep_alive_applies_to_accelerators_only() {
    let node = node("cpu,fake:fast", 10_000).set("models.keep_alive_ms", 300).start().await;
    for (name, query) in [
        ("accelerated", "device=fake"),
        ("plain", "device=cpu"),
        ("kept", "device=fake&keep_alive_ms=3600000"),
    ] {
        push(&node, name, query, json!({})).await.ok();
        infer(&node, name, 1).await.ok();
    }
    eventually("the model leaves the accelerator", async || {
        let resident = resident(&node).await;
        let is_there =
            |device: usize, name: &str| resident[device].iter().any(|model| model.starts_with(name));
        let left = !is_there(1, "accelerated") && is_there(1, "kept") && is_there(0, "plain");
        left.then_some(())
    })
    .await;
    let refused = push(&node, "forever", "keep_alive_ms=2592000001", json!({})).await.refusal();
    assert_eq!(refused.code, weir_types::ErrorCode::LimitOverCap);
}
