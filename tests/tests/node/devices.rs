//! Nodes with several devices: a CPU and fake accelerators.

mod deciding;
mod falling_back;
mod keeping;
mod losing;
mod placing;

use serde_json::{Value, json};
use weir_tests::{Answer, NodeBuilder, TestClient, TestNode};
use weir_types::api::DeviceStatus;

/// Builds a node with these devices, each with `memory_bytes` for models.
fn node(devices: &str, memory_bytes: u64) -> NodeBuilder {
    let node = TestNode::builder().set("models.backend", "fake").set("models.memory_bytes_max", memory_bytes);
    node.argument("--devices").argument(devices)
}

/// Fake model of 1,000 bytes from FP32[?, 1] to FP32[?, 1]; `more` adds settings.
fn fake(more: Value) -> String {
    let port = |name: &str| json!({"name": name, "datatype": "FP32", "shape": [null, 1]});
    let mut model = json!({
        "resident_bytes": 1_000,
        "signature": {"inputs": [port("x")], "outputs": [port("y")]},
    });
    let (Value::Object(model_keys), Value::Object(more)) = (&mut model, more) else { panic!("no object") };
    model_keys.extend(more);
    model.to_string()
}

/// Pushes a model with a manifest in the query.
async fn push(node: &TestClient, name: &str, query: &str, more: Value) -> Answer {
    node.put(&format!("/v1/models/{name}/versions/1?{query}"), fake(more)).await
}

/// Runs an inference with `rows` rows.
async fn infer(node: &TestClient, name: &str, rows: usize) -> Answer {
    let input = json!({"name": "x", "datatype": "FP32", "shape": [rows, 1], "data": vec![0.5; rows]});
    node.post(&format!("/v2/models/{name}/infer"), json!({"inputs": [input]}).to_string()).await
}

/// Runs an inference and returns the name of its device.
async fn ran_on(node: &TestClient, name: &str) -> String {
    let answer = infer(node, name, 1).await.ok();
    answer.header("weir-device").expect("the response does not name the device").to_owned()
}

async fn device(node: &TestClient, name: &str) -> DeviceStatus {
    let devices = node.status().await.devices;
    devices.into_iter().find(|device| device.name == name).expect("the device is not listed")
}

/// Resident models of each device, by ordinal.
async fn resident(node: &TestClient) -> Vec<Vec<String>> {
    node.status().await.devices.into_iter().map(|device| device.resident).collect()
}
