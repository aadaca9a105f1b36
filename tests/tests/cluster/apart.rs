//! A workflow that no node has room for as a whole.

use super::fake;
use weir_tests::{Cluster, eventually};

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
async fn its_steps_run_on_the_nodes_that_have_their_models() {
    let cluster =
        Cluster::builder().set("backend", "fake").set("model_memory_bytes_max", 1_500).start(2).await;
    let [one, other] = &cluster.nodes[..] else { panic!("there are two") };
    for name in ["a", "b"] {
        one.put(&format!("/v1/models/{name}/versions/1"), fake(50, 1, 1_000)).await.ok();
        cluster.all_have_heard_of(name).await;
    }
    one.put("/v1/workflows/w", WORKFLOW).await.ok();
    let heard = async || other.get("/v1/workflows/w").await.is_ok().then_some(());
    eventually("the news of a deploy", heard).await;
    cluster.settle().await;
    let input = serde_json::json!({ "name": "x", "datatype": "FP32", "shape": [2, 1], "data": [0.5, 1.5] });
    let request = serde_json::json!({ "inputs": [input] }).to_string();
    for call in 0..6 {
        let node = &cluster.nodes[call % 2];
        let answer: serde_json::Value = node.post("/v2/models/w/infer", request.clone()).await.ok().json();
        assert_eq!(answer["outputs"][0]["data"], serde_json::json!([0.5, 1.5]));
    }
    let mut resident = Vec::new();
    for node in &cluster.nodes {
        resident.extend(node.status().await.devices.into_iter().map(|device| device.resident));
    }
    resident.sort();
    assert_eq!(resident, [["a:1"], ["b:1"]], "each node has one of them");
    assert_eq!(cluster.metric("weir_phase_model_load_seconds_count", "").await, 2.0, "and kept it");
    for name in ["a", "b", "w"] {
        assert_eq!(
            cluster.metric("nv_inference_request_success", &format!("model=\"{name}\"")).await,
            6.0,
            "{name}"
        );
    }
}
