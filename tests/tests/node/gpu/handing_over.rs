//! Device-resident intermediates of workflow steps.

use super::workers::{is_back, workers};
use super::{with_gpu, without_gpu};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use weir_tests::{Answer, NodeBuilder, TestClient, TestNode, eventually, function, model, signal};
use weir_types::ErrorCode;

const MODELS: [&str; 5] = ["twice", "raised", "plus", "atan", "slow"];

/// Chain of three models.
const CHAIN: &str = r#"
inputs = { x = "FP32[n, 32, 32]" }
[steps.first]
run = "twice"
inputs = { x = "x" }
[steps.second]
run = "raised"
inputs = { x = "first" }
[steps.third]
run = "twice"
inputs = { x = "second" }
[outputs]
y = "third"
"#;

/// The last step reads the first step's output, after a step of configurable duration.
const WAITS: &str = r#"
inputs = { x = "FP32[n, 32, 32]", steps = "INT64[]" }
[steps.first]
run = "twice"
inputs = { x = "x" }
[steps.gate]
run = "slow"
inputs = { steps = "steps" }
[steps.last]
run = "plus"
inputs = { x = "first", more = "gate" }
[outputs]
y = "last"
"#;

async fn start(builder: NodeBuilder, workflows: &[(&str, &str)]) -> TestNode {
    let node = builder.start().await;
    prepare(&node, workflows).await;
    node
}

pub(super) async fn prepare(node: &TestClient, workflows: &[(&str, &str)]) {
    for name in MODELS {
        // Batching is off: the check whether batching changes results would run the first model
        // over the host.
        let path = format!("/v1/models/{name}/versions/1?batching.mode=off");
        node.put(&path, model(&format!("good/{name}.onnx"))).await.ok();
    }
    for (name, document) in workflows {
        node.put(&format!("/v1/workflows/{name}"), (*document).to_owned()).await.ok();
    }
}

/// Input of `count` 32x32 matrices.
fn squares(count: usize) -> Value {
    let data: Vec<f32> = (0..count * 1024).map(|at| (at % 251) as f32 / 8.0).collect();
    json!({"name": "x", "datatype": "FP32", "shape": [count, 32, 32], "data": data})
}

fn request(count: usize) -> String {
    json!({"inputs": [squares(count)]}).to_string()
}

fn gated(count: usize) -> String {
    let steps = json!({"name": "steps", "datatype": "INT64", "shape": [], "data": [1]});
    json!({"inputs": [squares(count), steps]}).to_string()
}

async fn ask(node: &TestClient, workflow: &str, request: String) -> Answer {
    node.post(&format!("/v2/models/{workflow}/infer"), request).await
}

fn output(answer: Answer) -> Value {
    answer.ok().json::<Value>()["outputs"][0]["data"].clone()
}

/// Intermediate bytes read on the device, and bytes copied through the host.
pub(super) async fn handed_over(node: &TestClient) -> (f64, f64) {
    let bytes = async |through: &str| {
        let labels = format!("device=\"cuda:0\",through=\"{through}\"");
        node.metric("weir_device_handed_over_bytes_total", &labels).await
    };
    (bytes("device").await, bytes("host").await)
}

async fn left(node: &TestClient) -> f64 {
    node.metric("weir_device_intermediates", "device=\"cuda:0\"").await
}

/// Completed inferences of a model. The device has an intermediate before the node knows about it;
/// only after the completion can the intermediate be lost without the inference.
pub(super) async fn inferred(node: &TestClient, model: &str) -> f64 {
    node.metric("nv_inference_request_success", &format!("model=\"{model}\"")).await
}

pub(super) async fn nothing_is_left(node: &TestClient) {
    eventually("the release of all tensors on the device", async || (left(node).await == 0.0).then_some(()))
        .await;
    assert_eq!(node.metric("weir_device_intermediates_bytes", "device=\"cuda:0\"").await, 0.0);
}

#[tokio::test]
async fn models_on_one_device_read_device_resident_intermediates() {
    let chain = [("chain", CHAIN)];
    let (node, reference) = tokio::join!(start(with_gpu("cuda"), &chain), start(without_gpu("cpu"), &chain));
    for count in [8, 16, 8] {
        let (found, expected) =
            tokio::join!(ask(&node, "chain", request(count)), ask(&reference, "chain", request(count)));
        assert_eq!(output(found), output(expected));
    }
    // The outputs of the first and the second model.
    assert_eq!(handed_over(&node).await, (2.0 * 32.0 * 4096.0, 0.0));
    nothing_is_left(&node).await;
    // Small outputs go over the host with the response.
    ask(&node, "chain", request(1)).await.ok();
    assert_eq!(handed_over(&node).await, (2.0 * 32.0 * 4096.0, 0.0));
}

/// Requests that are queued together are batched, over the host.
#[tokio::test]
async fn concurrent_workflows_get_their_own_results() {
    let node = start(with_gpu("cuda").set("models.slots", 2), &[]).await;
    for (version, name) in [(2, "twice"), (2, "raised")] {
        node.push_model(name, version, model(&format!("good/{name}.onnx"))).await;
    }
    node.put("/v1/workflows/chain", CHAIN.to_owned()).await.ok();
    for _ in 0..2 {
        let asked = (0..24).map(|at| ask(&node, "chain", request(4 + at % 3)));
        for (at, answer) in futures::future::join_all(asked).await.into_iter().enumerate() {
            let values = output(answer);
            let values = values.as_array().expect("values");
            assert_eq!(values.len(), (4 + at % 3) * 1024);
            let is_right = |(at, value): (usize, &Value)| {
                value.as_f64() == Some(((at % 251) as f64 / 8.0 * 2.0 + 1.0) * 2.0)
            };
            assert!(values.iter().enumerate().all(is_right));
        }
    }
    assert!(handed_over(&node).await.0 > 0.0);
    nothing_is_left(&node).await;
}

#[tokio::test]
async fn intermediates_are_copied_for_readers_on_other_devices() {
    let elsewhere = r#"
inputs = { x = "FP32[n, 32, 32]" }
[steps.first]
run = "twice"
inputs = { x = "x" }
[steps.device]
run = "raised"
inputs = { x = "first" }
[steps.processor]
run = "atan"
inputs = { x = "first" }
[steps.both]
combine = "mean"
of = ["device", "processor"]
[steps.guest]
run = "echo"
inputs = { both = "both" }
outputs = { both = "FP32[n, 32, 32]" }
[steps.sure]
run = "twice"
inputs = { x = "guest.both" }
unless = "max(both) < 0"
[steps.end]
combine = "first"
of = ["sure", "both"]
[outputs]
y = "end"
"#;
    let builder = |node: NodeBuilder| async {
        let node = start(node, &[]).await;
        node.deploy("echo", function("echo-tensor")).await;
        node.put("/v1/workflows/elsewhere", elsewhere.to_owned()).await.ok();
        node
    };
    let (node, reference) = tokio::join!(builder(with_gpu("cuda,cpu")), builder(without_gpu("cpu")));
    let (found, expected) =
        tokio::join!(ask(&node, "elsewhere", request(8)), ask(&reference, "elsewhere", request(8)));
    assert_eq!(output(found), output(expected));
    // One reader is on the device; the other reader gets a copy over the host.
    assert_eq!(handed_over(&node).await, (32_768.0, 32_768.0));
    nothing_is_left(&node).await;
}

#[tokio::test]
async fn intermediates_without_device_room_go_over_the_host() {
    let limited = |limit: &str| with_gpu("cuda").set(&format!("intermediates.{limit}"), 0);
    let full = start(limited("len_max"), &[("chain", CHAIN)]);
    let off = start(limited("free_percent_max"), &[("chain", CHAIN)]);
    let (full, off, reference) = tokio::join!(full, off, start(without_gpu("cpu"), &[("chain", CHAIN)]));
    let expected = output(ask(&reference, "chain", request(8)).await);
    for node in [&full, &off] {
        assert_eq!(output(ask(node, "chain", request(8)).await), expected);
        assert_eq!(handed_over(node).await, (0.0, 0.0));
        nothing_is_left(node).await;
    }
}

/// Keeps the CPU of a node with one run slot busy with endless runs of `slow`, until the tasks are
/// aborted.
pub(super) async fn busy(node: &TestNode) -> [JoinHandle<()>; 2] {
    let steps = json!({"name": "steps", "datatype": "INT64", "shape": [], "data": [1_000_000_000_u64]});
    let endless = json!({"inputs": [steps]}).to_string();
    let runs = [(); 2].map(|()| {
        let client = TestClient::clone(node);
        let endless = endless.clone();
        tokio::spawn(async move { _ = client.post("/v2/models/slow/infer", endless).await })
    });
    // A waiting run implies that the other one has started.
    let waits = async || {
        let devices = node.status().await.devices;
        devices.iter().any(|device| device.name == "cpu" && device.runs_waiting == 1).then_some(())
    };
    eventually("a run that waits behind the endless run", waits).await;
    runs
}

/// Starts a call of [`WAITS`] after endless CPU runs, and waits until the call has left an
/// intermediate on the device.
async fn waiting(node: &TestNode) -> ([JoinHandle<()>; 2], JoinHandle<Answer>) {
    let blockers = busy(node).await;
    let client = TestClient::clone(node);
    let before = inferred(node, "twice").await;
    let call = tokio::spawn({
        let client = client.clone();
        async move { ask(&client, "waits", gated(8)).await }
    });
    let is_left = async || left(&client).await == 1.0 && inferred(&client, "twice").await == before + 1.0;
    eventually("a tensor on the device", async || is_left().await.then_some(())).await;
    (blockers, call)
}

/// Node whose CPU runs only the gate of [`WAITS`], regardless of the GPU's speed.
async fn gate_node() -> TestNode {
    let node = start(with_gpu("cuda,cpu").set("models.slots", 1), &[]).await;
    for name in ["twice", "plus"] {
        let path = format!("/v1/models/{name}/versions/2?batching.mode=off&device=cuda");
        node.put(&path, model(&format!("good/{name}.onnx"))).await.ok();
    }
    node.put("/v1/workflows/waits", WAITS.to_owned()).await.ok();
    node
}

#[tokio::test]
async fn intermediate_lost_with_its_worker_is_a_retryable_error() {
    let node = gate_node().await;
    let expected = output(ask(&node, "waits", gated(8)).await);
    let (blockers, call) = waiting(&node).await;
    let former = workers(&node)["cuda:0"];
    signal(former, "KILL");
    is_back(&node, "cuda:0", former).await;
    blockers.iter().for_each(JoinHandle::abort);
    let refusal = call.await.expect("an answer").refusal();
    assert_eq!((refusal.status, refusal.code), (503, ErrorCode::IntermediateLost), "{refusal:?}");
    assert!(refusal.text.contains("step last") && refusal.text.contains("try again"), "{refusal:?}");
    assert_eq!(output(ask(&node, "waits", gated(8)).await), expected);
    nothing_is_left(&node).await;
}

#[tokio::test]
async fn aborted_call_releases_its_intermediates() {
    let node = gate_node().await;
    ask(&node, "waits", gated(8)).await.ok();
    let (blockers, call) = waiting(&node).await;
    call.abort();
    nothing_is_left(&node).await;
    blockers.iter().for_each(JoinHandle::abort);
}
