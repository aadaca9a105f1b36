//! Models that leave the memory of a device when they are not used.

use super::{infer, node, push, resident};
use serde_json::json;
use weir_tests::{TestClient, eventually};
use weir_types::ErrorCode;

/// Waits until the devices have these models in memory, in alphabetical order.
async fn holds(node: &TestClient, expected: &[&str]) {
    eventually("the models in memory", async || {
        let mut resident = resident(node).await.concat();
        resident.sort();
        (resident == expected).then_some(())
    })
    .await;
}

#[tokio::test]
async fn required_copy_is_loaded_before_the_first_call_and_stays() {
    // A model leaves at once when it is not used. The device has room for three, of which one and a
    // half may be required.
    let node = node("cpu", 3_000).set("models.keep_alive_ms", 0).start().await;
    push(&node, "kept", "copies_min=1&keep_alive_ms=0", json!({"load_time_ms": 200})).await.ok();
    holds(&node, &["kept:1"]).await;
    infer(&node, "kept", 1).await.ok();
    assert_eq!(node.metric("weir_cold_starts_total", "cause=\"model\"").await, 0.0);
    // Models for the whole room beside it come and go.
    for name in ["a", "b", "c", "d"] {
        push(&node, name, "", json!({})).await.ok();
        infer(&node, name, 1).await.ok();
        assert!(
            resident(&node).await.concat().contains(&"kept:1".to_owned()),
            "the required copy was evicted for {name}"
        );
    }
    // An unload by hand, too, is no reason to let a call wait.
    node.post("/v2/repository/models/kept/unload", "").await.ok();
    eventually("the model is loaded again", async || {
        resident(&node).await.concat().contains(&"kept:1".to_owned()).then_some(())
    })
    .await;
    // The next version has no copies, so the model becomes one like any other, which leaves.
    node.put("/v1/models/kept/versions/2?keep_alive_ms=0", super::fake(json!({}))).await.ok();
    eventually("the earlier version leaves", async || {
        (!resident(&node).await.concat().contains(&"kept:1".to_owned())).then_some(())
    })
    .await;
}

#[tokio::test]
async fn required_copies_have_a_part_of_the_memory() {
    let node = node("cpu", 3_000).start().await;
    push(&node, "first", "copies_min=2", json!({})).await.ok();
    holds(&node, &["first:1"]).await;
    push(&node, "second", "copies_min=1", json!({})).await.ok();
    // One copy of the first model has no other device, and the second model no room.
    eventually("the missing copies", async || {
        (node.metric("weir_scheduler_copies_missing", "").await == 2.0).then_some(())
    })
    .await;
    // It still runs like any other model.
    infer(&node, "second", 1).await.ok();
    holds(&node, &["first:1", "second:1"]).await;
    assert_eq!(node.delete("/v1/models/first/versions/1").await.status, 204);
    eventually("room for the other model", async || {
        (node.metric("weir_scheduler_copies_missing", "").await == 0.0).then_some(())
    })
    .await;
    let refused = push(&node, "many", "copies_min=1001", json!({})).await.refusal();
    assert_eq!(refused.code, ErrorCode::LimitOverCap);
}

#[tokio::test]
async fn failed_load_of_a_required_copy_is_reported() {
    let node = node("cpu,fake:fast", 3_000).start().await;
    let fails_on_fast = json!({"on": {"fast": {"batch_max": 0}}});
    push(&node, "broken", "copies_min=2", fails_on_fast).await.ok();
    eventually("the event", async || {
        let events: serde_json::Value = node.get("/v1/events").await.ok().json();
        events.to_string().contains("could not load its copy of model broken:1 (copies_min)").then_some(())
    })
    .await;
    holds(&node, &["broken:1"]).await;
    assert_eq!(node.metric("weir_scheduler_copies_missing", "").await, 1.0);
}

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
    assert_eq!(refused.code, ErrorCode::LimitOverCap);
}
