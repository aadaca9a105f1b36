//! Causes of cold starts, by function and by model.

use serde_json::json;
use weir_tests::{TestClient, TestNode, eventually, function};

/// Fake model of 1,000 bytes from FP32[?, 1] to FP32[?, 1].
fn fake() -> String {
    let port = |name: &str| json!({"name": name, "datatype": "FP32", "shape": [null, 1]});
    let signature = json!({"inputs": [port("x")], "outputs": [port("y")]});
    json!({"resident_bytes": 1_000, "signature": signature}).to_string()
}

/// Cold starts of a function by cause.
async fn of_function(node: &TestClient, name: &str, cause: &str) -> f64 {
    let labels = format!("function=\"{name}\",cause=\"{cause}\",");
    node.metric("weir_function_cold_starts_total", &labels).await
}

#[tokio::test]
async fn first_load_and_reload_after_an_eviction_are_counted_apart() {
    let node = TestNode::builder()
        .set("models.backend", "fake")
        .set("models.memory_bytes_max", 1_500)
        .argument("--devices")
        .argument("cpu")
        .start()
        .await;
    for name in ["a", "b"] {
        node.push_model(name, 1, fake()).await;
        node.deploy_with(&format!("infer-{name}"), &format!("models={name}"), function("infer")).await;
    }
    for name in ["a", "a", "b", "a"] {
        node.post(&format!("/fn/infer-{name}/{name}?shape=1,1"), 1_f32.to_le_bytes().to_vec()).await.ok();
    }
    for (name, cause, count) in
        [("infer-a", "model", 1.0), ("infer-a", "model-evicted", 1.0), ("infer-b", "model", 1.0)]
    {
        assert_eq!(of_function(&node, name, cause).await, count, "{name}: {cause}");
    }
    let of_model = async |labels: &str| node.metric("weir_model_cold_starts_total", labels).await;
    assert_eq!(of_model("model=\"a\",version=\"1\",cause=\"model\",").await, 1.0);
    assert_eq!(of_model("model=\"a\",version=\"1\",cause=\"model-evicted\",").await, 1.0);
    assert_eq!(of_model("model=\"b\",version=\"1\",cause=\"model\",").await, 1.0);
    assert_eq!(of_model("from=\"\"").await, 0.0, "every load has a source");

    let device = &node.status().await.devices[0];
    let memory = device.memory.as_ref().unwrap();
    let models: Vec<_> = memory.models.iter().map(|model| (model.model.as_str(), model.bytes)).collect();
    assert_eq!((models, memory.other_models_bytes, memory.free_bytes), (vec![("a:1", 1_000)], 0, 500));

    node.delete("/v1/functions/infer-a").await.ok();
    eventually("the series of the deleted function to end", async || {
        (node.metric("weir_function_cold_starts_total", "function=\"infer-a\"").await == 0.0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn function_that_reuses_instances_scales_out_when_all_are_busy() {
    let node = TestNode::start().await;
    node.deploy_with("nap", "reuse=true&limits.deadline_ms=2000", function("misbehave")).await;
    let call = || async { node.get("/fn/nap/sleep").await };
    // The calls end at their deadline, so they overlap.
    tokio::join!(call(), call(), call());
    assert_eq!(of_function(&node, "nap", "instance").await, 1.0);
    assert_eq!(of_function(&node, "nap", "scaled-out").await, 2.0);
    node.deploy("hello", function("hello")).await;
    node.get("/fn/hello/").await.ok();
    assert_eq!(of_function(&node, "hello", "instance").await, 0.0, "a fresh instance is no cold start");
}
