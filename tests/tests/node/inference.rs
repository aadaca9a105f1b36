//! Functions that run models.

use bytes::Bytes;
use serde_json::json;
use weir_tests::{Answer, TestClient, TestNode, function, model};

fn fp32(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn values(bytes: &Bytes) -> Vec<f32> {
    bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

async fn infer(client: &TestClient, path: &str, input: &[f32]) -> Answer {
    client.post(&format!("/fn/infer/{path}"), fp32(input)).await
}

/// Starts a node with `infer`, granted `models`.
async fn node(models: &str) -> TestNode {
    let node = TestNode::start().await;
    node.deploy_with("infer", &format!("models={models}"), function("infer")).await;
    node
}

/// Expected output of `matmul` for a row.
fn product(row: [f32; 4], more: f32) -> [f32; 3] {
    std::array::from_fn(|column| (0..4).map(|i| row[i] * ((i * 3 + column) as f32 + more)).sum())
}

#[tokio::test]
async fn model_runs_on_the_request_body() {
    let node = node("m").await;
    node.push_model("m", 1, model("good/matmul.onnx")).await;
    let one = infer(&node, "m?shape=1,4", &[1.0, 2.0, 3.0, 4.0]).await.ok();
    assert_eq!(values(&one.body), product([1.0, 2.0, 3.0, 4.0], 0.0));
    let two = infer(&node, "m?shape=2,4", &[1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]).await.ok();
    let expected = [product([1.0, 0.0, 0.0, 0.0], 0.0), product([0.0, 0.0, 0.0, 1.0], 0.0)].concat();
    assert_eq!(values(&two.body), expected);
    assert_eq!(node.metric("weir_cold_starts_total", "cause=\"model\"").await, 1.0);
    let status = node.status().await;
    assert_eq!(status.devices[0].resident, ["m:1"]);
    assert!(status.devices[0].used_bytes > 0);
    let described: weir_types::api::ModelVersion = node.get("/v1/models/m/versions/1").await.ok().json();
    assert!(described.resident);
    assert!(
        !described.profile.run_time_ns.is_empty() && !described.profile.load_time_ns.is_empty(),
        "{:?}",
        described.profile
    );
}

#[tokio::test]
async fn invalid_inputs_are_errors_for_the_function() {
    let node = node("m,add,longs").await;
    node.push_model("m", 1, model("good/matmul.onnx")).await;
    node.push_model("add", 1, model("good/add.onnx")).await;
    node.push_model("longs", 1, model("good/slow.onnx")).await;
    for (what, path, input, case) in [
        ("a wrong dimension", "m?shape=1,5", vec![0.0; 5], "InvalidRun"),
        ("too few dimensions", "m?shape=4", vec![0.0; 4], "InvalidRun"),
        ("too many dimensions", "m?shape=1,1,4", vec![0.0; 4], "InvalidRun"),
        ("a body shorter than the shape", "m?shape=2,4", vec![0.0; 4], "InvalidArgument"),
        ("a body longer than the shape", "m?shape=1,4", vec![0.0; 8], "InvalidArgument"),
        ("a huge shape", "m?shape=4294967294,4294967294", vec![0.0; 4], "InvalidArgument"),
        ("a missing input", "add?shape=2,3", vec![0.0; 6], "InvalidRun"),
        ("a wrong type", "longs?shape=1", vec![0.0; 1], "InvalidRun"),
    ] {
        let answer = infer(&node, path, &input).await;
        assert_eq!(answer.status, 400, "{what}: {}", answer.text());
        assert!(answer.text().contains(case), "{what}: {}", answer.text());
    }
    let log = node.logs("infer").await;
    let logged =
        |text: &str| log.iter().filter(|line| line.stream == "weir" && line.text.starts_with(text)).count();
    assert_eq!(logged("a run of m:1 failed: input x: FP32[?, 4] is given in shape [1, 5]"), 1, "{log:?}");
    assert_eq!(logged("a run of "), 5, "{log:?}");
    infer(&node, "m?shape=1,4", &[0.0; 4]).await.ok();
}

#[tokio::test]
async fn name_opens_the_newest_version_and_number_a_specific_one() {
    let node = node("m").await;
    node.push_model("m", 1, model("good/matmul.onnx")).await;
    let row = [1.0, 1.0, 1.0, 1.0];
    assert_eq!(values(&infer(&node, "m?shape=1,4", &row).await.ok().body), product(row, 0.0));
    node.push_model("m", 2, model("good/matmul_v2.onnx")).await;
    assert_eq!(values(&infer(&node, "m?shape=1,4", &row).await.ok().body), product(row, 10.0));
    assert_eq!(values(&infer(&node, "m:1?shape=1,4", &row).await.ok().body), product(row, 0.0));
    assert_eq!(infer(&node, "m:3?shape=1,4", &row).await.status, 404);
    node.delete("/v1/models/m/versions/2").await.ok();
    assert_eq!(values(&infer(&node, "m?shape=1,4", &row).await.ok().body), product(row, 0.0));
}

/// The log lines about denied accesses.
async fn refusals(node: &TestNode, function: &str) -> Vec<String> {
    let lines = node.logs(function).await.into_iter().filter(|line| line.stream == "weir");
    lines.map(|line| line.text).filter(|text| text.starts_with("not-granted: ")).collect()
}

#[tokio::test]
async fn only_granted_models_can_be_opened() {
    let node = node("one:1").await;
    node.push_model("one", 1, model("good/matmul.onnx")).await;
    node.push_model("one", 2, model("good/matmul_v2.onnx")).await;
    node.push_model("two", 1, model("good/matmul.onnx")).await;
    infer(&node, "one:1?shape=1,4", &[0.0; 4]).await.ok();
    for path in ["two", "one:2", "two:1", "nobody"] {
        let answer = infer(&node, &format!("{path}?shape=1,4"), &[0.0; 4]).await;
        assert_eq!(answer.status, 403, "{path}: {}", answer.text());
        assert!(answer.text().contains("NotGranted"), "{path}: {}", answer.text());
    }
    // The author sees the denial in the log, regardless of the function's response.
    let told: Vec<String> = refusals(&node, "infer").await;
    assert_eq!(told.len(), 4, "{told:?}");
    assert!(told[0].contains("two") && told[0].contains("manifest"), "{told:?}");
    // A granted model that does not exist is a different error.
    node.deploy_with("infer", "models=nobody", function("infer")).await;
    assert_eq!(infer(&node, "nobody?shape=1,4", &[0.0; 4]).await.status, 404);
}

#[tokio::test]
async fn concurrent_runs_load_a_model_once() {
    let node = node("m").await;
    node.push_model("m", 1, model("good/matmul.onnx")).await;
    let calls = (0..64).map(|i| {
        let client = node.client().clone();
        async move {
            let row = [i as f32, 1.0, 2.0, 3.0];
            let answer = infer(&client, "m?shape=1,4", &row).await.ok();
            assert_eq!(values(&answer.body), product(row, 0.0));
        }
    });
    futures::future::join_all(calls).await;
    let described: weir_types::api::ModelVersion = node.get("/v1/models/m/versions/1").await.ok().json();
    let loads: u64 = described.profile.load_time_ns.values().map(|mean| mean.count).sum();
    assert_eq!(loads, 1);
}

#[tokio::test]
async fn models_are_evicted_for_each_other() {
    // Room for about one model.
    let probe = node("m").await;
    probe.push_model("m", 1, model("good/matmul.onnx")).await;
    infer(&probe, "m?shape=1,4", &[0.0; 4]).await.ok();
    let bytes = probe.status().await.devices[0].used_bytes;
    drop(probe);

    let node = TestNode::builder().set("models.memory_bytes_max", bytes * 3 / 2).start().await;
    for name in ["a", "b", "c"] {
        node.push_model(name, 1, model("good/matmul.onnx")).await;
        node.deploy_with(&format!("infer-{name}"), &format!("models={name}"), function("infer")).await;
    }
    for round in 0..3 {
        for name in ["a", "b", "c"] {
            let row = [1.0, 2.0, round as f32, 4.0];
            let answer = node.post(&format!("/fn/infer-{name}/{name}?shape=1,4"), fp32(&row)).await.ok();
            assert_eq!(values(&answer.body), product(row, 0.0));
            assert_eq!(node.status().await.devices[0].resident, [format!("{name}:1")]);
        }
    }
    // Concurrent calls take turns.
    let calls = (0..30).map(|i| {
        let client = node.client().clone();
        let name = ["a", "b", "c"][i % 3];
        async move { client.post(&format!("/fn/infer-{name}/{name}?shape=1,4"), fp32(&[0.0; 4])).await.ok() }
    });
    futures::future::join_all(calls).await;
    // Two models that never fit together are rejected immediately.
    node.deploy_with("both", "models=a,b", function("infer")).await;
    let answer = node.post("/fn/both/a?shape=1,4", fp32(&[0.0; 4])).await;
    assert_eq!((answer.status, answer.code()), (507, weir_types::ErrorCode::NoCapacity));
}

#[tokio::test]
async fn model_is_served_after_a_restart() {
    let node = node("m").await;
    node.push_model("m", 1, model("good/matmul.onnx")).await;
    infer(&node, "m?shape=1,4", &[0.0; 4]).await.ok();
    let node = node.kill().await.start().await;
    let row = [4.0, 3.0, 2.0, 1.0];
    assert_eq!(values(&infer(&node, "m?shape=1,4", &row).await.ok().body), product(row, 0.0));
}

/// Unused models can be evicted during their load, before the scheduler knows that the load is
/// complete.
#[tokio::test]
async fn loading_model_can_be_evicted_for_the_next() {
    let fake = |arrive_time_ms: u32| {
        let port = |name: &str| json!({"name": name, "datatype": "FP32", "shape": [1, 1]});
        let signature = json!({"inputs": [port("x")], "outputs": [port("y")]});
        let model = json!({"resident_bytes": 600, "arrive_time_ms": arrive_time_ms, "run_time_ms": {"1": 1}, "signature": signature});
        model.to_string()
    };
    let node =
        TestNode::builder().set("models.backend", "fake").set("models.memory_bytes_max", 1_000).start().await;
    node.push_model("slow", 1, fake(300)).await;
    node.push_model("next", 1, fake(0)).await;
    for _ in 0..3 {
        node.post("/v2/repository/models/slow/load", "").await.ok();
        let input = json!({"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1]});
        node.post("/v2/models/next/infer", json!({"inputs": [input]}).to_string()).await.ok();
    }
}
