//! A workflow that fits on no single node.

use super::fake;
use serde_json::{Value, json};
use weir_tests::{Etcd, TestCluster, eventually, model_with_rows};

const WORKFLOW: &str = r#"
inputs = { x = "FP32[n, 1]" }
outputs = { y = "two" }
[steps.one]
run = "a"
inputs = { x = "x" }
[steps.two]
run = "b"
inputs = { x = "one.y" }
"#;

#[tokio::test]
async fn workflow_steps_run_on_the_nodes_with_their_models() {
    if !Etcd::is_installed() {
        return;
    }
    let cluster = TestCluster::builder()
        .set("models.backend", "fake")
        .set("models.memory_bytes_max", 1_500)
        .start(2)
        .await;
    let [one, other] = &cluster.nodes[..] else { panic!("there are two") };
    for name in ["a", "b"] {
        one.put(&format!("/v1/models/{name}/versions/1"), fake(50, 1, 1_000)).await.ok();
        cluster.all_have_heard_of(name).await;
    }
    one.put("/v1/workflows/w", WORKFLOW).await.ok();
    let heard = async || other.get("/v1/workflows/w").await.is_ok().then_some(());
    eventually("the news of a deploy", heard).await;
    cluster.settle().await;
    let input = json!({ "name": "x", "datatype": "FP32", "shape": [2, 1], "data": [0.5, 1.5] });
    let request = json!({ "inputs": [input] }).to_string();
    for call in 0..6 {
        let node = &cluster.nodes[call % 2];
        let answer: Value = node.post("/v2/models/w/infer", request.clone()).await.ok().json();
        assert_eq!(answer["outputs"][0]["data"], json!([0.5, 1.5]));
    }
    // With an SLO, the dispatcher reserves places for the steps, also for calls at the other node.
    one.put("/v1/workflows/w?slo_ms=20000", WORKFLOW).await.ok();
    let kept = async || {
        for node in &cluster.nodes {
            node.post("/v2/models/w/infer", request.clone()).await.ok();
        }
        let kept = "model=\"w\",version=\"2\",outcome=\"kept\"";
        (cluster.metric("weir_slo_inferences_total", kept).await >= 4.0).then_some(())
    };
    eventually("calls of the new version at both nodes", kept).await;
    let mut resident = Vec::new();
    for node in &cluster.nodes {
        resident.extend(node.status().await.devices.into_iter().map(|device| device.resident));
    }
    resident.sort();
    assert_eq!(resident, [["a:1"], ["b:1"]], "each node has one of the models");
    assert_eq!(
        cluster.metric("weir_phase_seconds_count", "phase=\"model_load\"").await,
        2.0,
        "a model was loaded again"
    );
    let runs = async |labels: &str| cluster.metric("nv_inference_request_success", labels).await;
    assert_eq!(runs("model=\"w\",version=\"1\"").await, 6.0);
    let all = runs("model=\"w\"").await;
    assert_eq!([runs("model=\"a\"").await, runs("model=\"b\"").await], [all; 2]);
}

const ON_GPUS: &str = r#"
inputs = { x = "FP32[n, 32, 32]", row = "INT64[1]", more = "FP32[32, 32]" }
[steps.first]
run = "a"
inputs = { x = "x", row = "row", more = "more" }
[steps.second]
run = "b"
inputs = { x = "first", row = "row", more = "more" }
[outputs]
y = "second"
"#;

/// Each node has a GPU with room for one of two models. Both nodes are called.
#[tokio::test]
async fn device_resident_intermediates_reach_the_next_steps_node() {
    if !Etcd::is_installed() {
        return;
    }
    let cluster = TestCluster::builder()
        .env("WEIR_CUDA_LIBRARY", weir_fake_cuda::library().display().to_string())
        .env("WEIR_FAKE_CUDA", "devices=1,seed=3,memory_bytes=25165824")
        .set("devices", r#"["cuda"]"#)
        .set("models.slots", 1)
        .start(2)
        .await;
    let [one, other] = &cluster.nodes[..] else { panic!("there are two") };
    for (name, value) in [("a", 1.0), ("b", 2.0)] {
        let path = format!("/v1/models/{name}/versions/1?batching.mode=off&precision=fp32");
        one.put(&path, model_with_rows(2304, value)).await.ok();
        cluster.all_have_heard_of(name).await;
    }
    one.put("/v1/workflows/w", ON_GPUS).await.ok();
    let heard = async || other.get("/v1/workflows/w").await.is_ok().then_some(());
    eventually("the news of a deploy", heard).await;
    let request = json!({ "inputs": [
        {"name": "x", "datatype": "FP32", "shape": [16, 32, 32], "data": vec![0.25; 16 * 1024]},
        {"name": "row", "datatype": "INT64", "shape": [1], "data": [3]},
        {"name": "more", "datatype": "FP32", "shape": [32, 32], "data": vec![0.5; 1024]},
    ]});
    let request = request.to_string();
    let call = async |node: usize| {
        let answer = cluster.nodes[node].post("/v2/models/w/infer", request.clone()).await;
        let is_right = || answer.json::<Value>()["outputs"][0]["data"] == json!(vec![4.25; 16 * 1024]);
        answer.is_ok().then(is_right)
    };
    // A model stays where its files are: the node that has them in memory reloads it faster than the
    // other node can fetch them.
    for (node, model) in [(one, "a"), (other, "b")] {
        node.post(&format!("/v2/repository/models/{model}/load"), "{}").await.ok();
    }
    // Until both models are placed, a device may be full of arriving weights.
    let settled = async || {
        assert!(call(0).await?);
        let first = cluster.holder("a:1").await?;
        let second = cluster.holder("b:1").await?;
        (first != second).then_some(first)
    };
    let first = eventually("a node for each model", settled).await;
    let through_host =
        async || cluster.metric("weir_device_handed_over_bytes_total", "through=\"host\"").await;
    // The first model's output is on the called node's device, and has to go to the other node.
    let before = through_host().await;
    assert_eq!(call(first).await, Some(true));
    assert_eq!(through_host().await - before, 65_536.0);
    // When the other node requests the first model, the response has its output, and nothing stays
    // on a device.
    assert_eq!(call(1 - first).await, Some(true));
    assert_eq!(through_host().await - before, 65_536.0);
}
