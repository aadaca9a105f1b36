//! What steps of a workflow leave on the device for steps there, and what becomes of it.

use super::workers::{is_back, workers};
use super::{with_gpu, without_gpu};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use weir_tests::{Answer, Client, Node, NodeBuilder, eventually, function, model, signal};
use weir_types::ErrorCode;

const MODELS: [&str; 5] = ["twice", "raised", "plus", "atan", "slow"];

/// Three models, one after the other.
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

/// A step that reads what the first has left, and what takes as long as it is told.
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

async fn start(builder: NodeBuilder, workflows: &[(&str, &str)]) -> Node {
    let node = builder.start().await;
    prepare(&node, workflows).await;
    node
}

async fn prepare(node: &Client, workflows: &[(&str, &str)]) {
    for name in MODELS {
        // Whether requests may be run together is tried out with the first, over the host.
        let path = format!("/v1/models/{name}/versions/1?batching.mode=off");
        node.put(&path, model(&format!("good/{name}.onnx"))).await.ok();
    }
    for (name, document) in workflows {
        node.put(&format!("/v1/workflows/{name}"), (*document).to_owned()).await.ok();
    }
}

/// So many squares.
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

async fn ask(node: &Client, workflow: &str, request: String) -> Answer {
    node.post(&format!("/v2/models/{workflow}/infer"), request).await
}

fn output(answer: Answer) -> Value {
    answer.ok().json::<Value>()["outputs"][0]["data"].clone()
}

/// Bytes that were read on the device, and those that went over the host after all.
async fn handed_over(node: &Client) -> (f64, f64) {
    let bytes = async |through: &str| {
        let labels = format!("device=\"cuda:0\",through=\"{through}\"");
        node.metric("weir_device_handed_over_bytes_total", &labels).await
    };
    (bytes("device").await, bytes("host").await)
}

async fn left(node: &Client) -> f64 {
    node.metric("weir_device_intermediates", "device=\"cuda:0\"").await
}

/// Inferences of a model that are over. The device has what one leaves before its node has heard of that: only then is it lost without the inference.
pub(super) async fn inferred(node: &Client, model: &str) -> f64 {
    node.metric("nv_inference_request_success", &format!("model=\"{model}\"")).await
}

async fn nothing_is_left(node: &Client) {
    eventually("the device to let go", async || (left(node).await == 0.0).then_some(())).await;
    assert_eq!(node.metric("weir_device_intermediates_bytes", "device=\"cuda:0\"").await, 0.0);
}

#[tokio::test]
async fn models_on_one_device_read_what_the_last_has_left_there() {
    let chain = [("chain", CHAIN)];
    let (node, reference) = tokio::join!(start(with_gpu("cuda"), &chain), start(without_gpu("cpu"), &chain));
    for count in [8, 16, 8] {
        let (found, expected) =
            tokio::join!(ask(&node, "chain", request(count)), ask(&reference, "chain", request(count)));
        assert_eq!(output(found), output(expected));
    }
    // What the first and the second gave.
    assert_eq!(handed_over(&node).await, (2.0 * 32.0 * 4096.0, 0.0));
    nothing_is_left(&node).await;
    // What is small goes over the host, with the answer.
    ask(&node, "chain", request(1)).await.ok();
    assert_eq!(handed_over(&node).await, (2.0 * 32.0 * 4096.0, 0.0));
}

/// Those of many requests that wait together are run together, over the host.
#[tokio::test]
async fn many_at_once_get_their_own_answers() {
    let node = start(with_gpu("cuda").set("model_slots", 2), &[]).await;
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
async fn whoever_reads_elsewhere_gets_the_bytes() {
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
    // One reads what the first has left where it is, and one is brought it.
    assert_eq!(handed_over(&node).await, (32_768.0, 32_768.0));
    nothing_is_left(&node).await;
}

#[tokio::test]
async fn what_has_no_room_on_the_device_goes_over_the_host() {
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

/// Keep the processor of a node, which runs one model at a time, busy with [`MODELS`]' `slow`, until these are aborted.
pub(super) async fn busy(node: &Node) -> [JoinHandle<()>; 2] {
    let steps = json!({"name": "steps", "datatype": "INT64", "shape": [], "data": [1_000_000_000_u64]});
    let endless = json!({"inputs": [steps]}).to_string();
    let runs = [(); 2].map(|()| {
        let (client, endless) = (Client::clone(node), endless.clone());
        tokio::spawn(async move { _ = client.post("/v2/models/slow/infer", endless).await })
    });
    // That one waits tells that the other does not.
    let waits = async || {
        let devices = node.status().await.devices;
        devices.iter().any(|device| device.name == "cpu" && device.runs_waiting == 1).then_some(())
    };
    eventually("an endless run, and one behind it", waits).await;
    runs
}

/// A node on which the gate of [`WAITS`] waits for runs that do not end, and a call that has left something on the device.
async fn waiting(node: &Node) -> ([JoinHandle<()>; 2], JoinHandle<Answer>) {
    let (blockers, client) = (busy(node).await, Client::clone(node));
    let before = inferred(node, "twice").await;
    let call = tokio::spawn({
        let client = client.clone();
        async move { ask(&client, "waits", gated(8)).await }
    });
    let is_left = async || left(&client).await == 1.0 && inferred(&client, "twice").await == before + 1.0;
    eventually("something on the device", async || is_left().await.then_some(())).await;
    (blockers, call)
}

/// A node whose processor runs nothing but the gate of [`WAITS`], however long the GPU takes.
async fn gate_node() -> Node {
    let node = start(with_gpu("cuda,cpu").set("model_slots", 1), &[]).await;
    for name in ["twice", "plus"] {
        let path = format!("/v1/models/{name}/versions/2?batching.mode=off&device=cuda");
        node.put(&path, model(&format!("good/{name}.onnx"))).await.ok();
    }
    node.put("/v1/workflows/waits", WAITS.to_owned()).await.ok();
    node
}

#[tokio::test]
async fn what_is_lost_with_its_worker_is_an_error_to_try_again() {
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
async fn a_call_that_is_given_up_leaves_nothing_on_the_device() {
    let node = gate_node().await;
    ask(&node, "waits", gated(8)).await.ok();
    let (blockers, call) = waiting(&node).await;
    call.abort();
    nothing_is_left(&node).await;
    blockers.iter().for_each(JoinHandle::abort);
}
