//! Intermediates between GPUs of one node.

use super::handing_over::{busy, inferred};
use super::with_gpu;
use super::workers::{is_back, workers};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use weir_tests::{Answer, NodeBuilder, TestClient, TestNode, eventually, model, model_with_rows, signal};

/// Weights of each model: 9 MiB in rows of 4 KiB. A device of [`MEMORY_BYTES`] has room for one
/// model.
const ROWS: usize = 2304;
const MEMORY_BYTES: u64 = 24 << 20;

/// Two models that do not fit on one device; each runs on its own device.
const APART: &str = r#"
inputs = { x = "FP32[n, 32, 32]", row = "INT64[1]", more = "FP32[32, 32]" }
[steps.first]
run = "one"
inputs = { x = "x", row = "row", more = "more" }
[steps.second]
run = "other"
inputs = { x = "first", row = "row", more = "more" }
[outputs]
y = "second"
"#;

/// Like [`APART`], with a step of configurable duration in between.
pub(super) const WAITS: &str = r#"
inputs = { x = "FP32[n, 32, 32]", row = "INT64[1]", more = "FP32[32, 32]", steps = "INT64[]" }
[steps.first]
run = "one"
inputs = { x = "x", row = "row", more = "more" }
[steps.gate]
run = "slow"
inputs = { steps = "steps" }
[steps.second]
run = "other"
inputs = { x = "first", row = "row", more = "gate" }
[outputs]
y = "second"
"#;

async fn start(devices: &str, settings: &str) -> TestNode {
    start_with(with_gpu(devices), settings).await
}

/// Starts a node with two GPUs, extra driver settings, and both models.
pub(super) async fn start_with(node: NodeBuilder, settings: &str) -> TestNode {
    let driver = format!("devices=2,seed=3,memory_bytes={MEMORY_BYTES}{settings}");
    let node = node.env("WEIR_FAKE_CUDA", driver).set("models.slots", 1).start().await;
    for (name, value) in [("one", 2.0), ("other", 3.0)] {
        let path = format!("/v1/models/{name}/versions/1?batching.mode=off&device=cuda&precision=fp32");
        node.put(&path, model_with_rows(ROWS, value)).await.ok();
    }
    node
}

pub(super) async fn ask(node: &TestClient, workflow: &str, inputs: Vec<Value>) -> Answer {
    let request = json!({ "inputs": inputs }).to_string();
    node.post(&format!("/v2/models/{workflow}/infer"), request).await
}

/// Output values of a workflow.
pub(super) fn output(answer: Answer) -> Vec<f64> {
    let answer: Value = answer.ok().json();
    let values = answer["outputs"][0]["data"].as_array().expect("values").clone();
    values.iter().filter_map(Value::as_f64).collect()
}

/// Expected output of [`APART`] for [`inputs`].
fn expected() -> Vec<f64> {
    (0..8 * 1024).map(|at| x(at) + 2.0 + 0.5 + 3.0 + 0.5).collect()
}

fn x(at: usize) -> f64 {
    (at % 251) as f64
}

/// Inputs of [`WAITS`].
pub(super) fn gated() -> Vec<Value> {
    let mut inputs = inputs();
    inputs.push(json!({"name": "steps", "datatype": "INT64", "shape": [], "data": [2]}));
    inputs
}

fn inputs() -> Vec<Value> {
    let data: Vec<f64> = (0..8 * 1024).map(x).collect();
    vec![
        json!({"name": "x", "datatype": "FP32", "shape": [8, 32, 32], "data": data}),
        json!({"name": "row", "datatype": "INT64", "shape": [1], "data": [7]}),
        json!({"name": "more", "datatype": "FP32", "shape": [32, 32], "data": vec![0.5; 1024]}),
    ]
}

/// Repeats calls until each model has its own device. Returns the first model's device.
pub(super) async fn settle(node: &TestNode) -> String {
    node.put("/v1/workflows/apart", APART.to_owned()).await.ok();
    eventually("a device for each model", async || {
        // The device may be full of weights in transfer.
        let answer = ask(node, "apart", inputs()).await;
        if !answer.is_ok() {
            return None;
        }
        assert!(output(answer) == expected());
        let devices = node.status().await.devices;
        let has = |name: &str| {
            let device = devices.iter().find(|device| device.resident.iter().any(|model| model == name))?;
            Some(device.name.clone())
        };
        let one = has("one:1")?;
        let other = has("other:1")?;
        (one != other).then_some(one)
    })
    .await
}

/// Bytes of a device's intermediates that were read on the device, from its sibling, and through
/// the host.
async fn handed_over(node: &TestClient, device: &str) -> [f64; 3] {
    let mut bytes = [0.0; 3];
    for (bytes, through) in bytes.iter_mut().zip(["device", "sibling", "host"]) {
        let labels = format!("device=\"{device}\",through=\"{through}\"");
        *bytes = node.metric("weir_device_handed_over_bytes_total", &labels).await;
    }
    bytes
}

pub(super) async fn nothing_is_left(node: &TestClient) {
    eventually("both devices to let go", async || {
        let mut left = 0.0;
        for device in ["cuda:0", "cuda:1"] {
            left += node.metric("weir_device_intermediates", &format!("device=\"{device}\"")).await;
        }
        (left == 0.0).then_some(())
    })
    .await;
}

/// Increase of [`handed_over`] on the first model's device by a call with both models in place.
async fn call(node: &TestNode) -> [f64; 3] {
    let device = settle(node).await;
    let before = handed_over(node, &device).await;
    assert!(output(ask(node, "apart", inputs()).await) == expected());
    let after = handed_over(node, &device).await;
    nothing_is_left(node).await;
    [0, 1, 2].map(|way| after[way] - before[way])
}

#[tokio::test]
async fn model_reads_intermediates_from_a_sibling_gpu() {
    let node = start("cuda", "").await;
    assert_eq!(call(&node).await, [0.0, 32_768.0, 0.0]);
}

#[tokio::test]
async fn gpus_without_peer_access_exchange_intermediates_through_the_host() {
    let (none, claimed) = tokio::join!(start("cuda", ",peer_access=0"), start("cuda", ",peer_access=2"));
    let exports_none = start("cuda", ",exports_memory=0").await;
    for node in [none, claimed, exports_none] {
        assert_eq!(call(&node).await, [0.0, 0.0, 32_768.0]);
    }
}

#[tokio::test]
async fn lost_intermediate_is_recomputed_for_a_sibling_gpu() {
    let node = start("cuda,cpu", "").await;
    node.put("/v1/models/slow/versions/1?batching.mode=off", model("good/slow.onnx")).await.ok();
    node.put("/v1/workflows/waits", WAITS.to_owned()).await.ok();
    let device = settle(&node).await;
    let expected = output(ask(&node, "waits", gated()).await);
    nothing_is_left(&node).await;

    let before = inferred(&node, "one").await;
    // The CPU is busy, and the step between the two models waits for it.
    let blockers = busy(&node).await;
    let client = TestClient::clone(&node);
    let call = tokio::spawn(async move { output(ask(&client, "waits", gated()).await) });
    let label = format!("device=\"{device}\"");
    let left = async || node.metric("weir_device_intermediates", &label).await;
    let is_left = async || left().await == 1.0 && inferred(&node, "one").await == before + 1.0;
    eventually("something on the device", async || is_left().await.then_some(())).await;
    let before = workers(&node);
    signal(before[&device], "KILL");
    is_back(&node, &device, before[&device]).await;
    blockers.iter().for_each(JoinHandle::abort);
    assert!(call.await.expect("an answer") == expected);
    let (other, untouched) = before.iter().find(|(name, _)| **name != device).expect("two devices");
    assert_eq!(workers(&node)[other], *untouched, "the worker of the other device was restarted");
    nothing_is_left(&node).await;
}
