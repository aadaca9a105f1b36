//! Workflows: deployed like functions, called like models.

mod apart;
mod commands;
mod deploying;
mod examples;
mod hedging;
mod lacking;
mod objectives;
mod refusing;
mod running;

use serde_json::{Value, json};
use weir_tests::{Answer, TestClient, TestNode};

/// Fake model from FP32[?, 4] to FP32[?, 4] that returns its input after `run_time_ms`.
fn fake(run_time_ms: f64) -> Vec<u8> {
    let port = |name: &str| json!({"name": name, "datatype": "FP32", "shape": [null, 4]});
    let model = json!({
        "run_time_ms": {"1": run_time_ms},
        "resident_bytes": 1_000,
        "signature": {"inputs": [port("x")], "outputs": [port("y")]},
    });
    model.to_string().into_bytes()
}

/// Starts a node with fake models: those in `quick` run instantly, those in `held` for an hour.
async fn fake_node(quick: &[&str], held: &[&str]) -> TestNode {
    let node = TestNode::builder()
        .set("models.backend", "fake")
        .set("models.slots", 8)
        .set("gateway.infer_wall_ms_max", 3_600_000)
        .start()
        .await;
    for (names, run_time_ms) in [(quick, 0.0), (held, 3_600_000.0)] {
        for name in names {
            node.push_model(name, 1, fake(run_time_ms)).await;
        }
    }
    node
}

async fn deploy(node: &TestClient, name: &str, document: &str) -> Answer {
    node.put(&format!("/v1/workflows/{name}"), document.to_owned()).await
}

/// Request of a workflow whose input `x` has rows of four numbers.
fn rows(values: &[f32]) -> Value {
    json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [values.len() / 4, 4], "data": values}]})
}

async fn infer(node: &TestClient, name: &str, request: &Value) -> Answer {
    node.post(&format!("/v2/models/{name}/infer"), request.to_string()).await
}

/// Number of calls of a model or workflow, including failed calls.
async fn asked(node: &TestClient, name: &str) -> f64 {
    let model = format!("model=\"{name}\"");
    node.metric("nv_inference_request_success", &model).await
        + node.metric("nv_inference_request_failure", &model).await
}

/// Number of pending inferences of a model.
async fn pending(node: &TestClient, name: &str) -> f64 {
    node.metric("nv_inference_pending_request_count", &format!("model=\"{name}\"")).await
}

/// A step that runs `model` on `source`.
fn step(name: &str, model: &str, source: &str) -> String {
    format!("[steps.{name}]\nrun = \"{model}\"\ninputs = {{ x = \"{source}\" }}\n")
}

/// A workflow with the input `x` and the output `source`.
fn workflow(steps: &str, source: &str) -> String {
    format!("inputs = {{ x = \"FP32[n, 4]\" }}\n{steps}\n[outputs]\ny = \"{source}\"\n")
}
