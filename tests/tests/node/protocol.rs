//! Open Inference Protocol under `/v2`: valid requests, and errors for invalid requests.

mod bad;
mod bodies;
mod clients;
mod running;

use bytes::Bytes;
use reqwest::Method;
use serde_json::{Value, json};
use weir_tests::{Answer, TestClient, TestNode, function, model};

const HEADER: &str = "inference-header-content-length";

/// Starts a node with `matmul`, versions 1 and 2, and the tensor function `echo`.
async fn node() -> TestNode {
    let node = TestNode::start().await;
    node.push_model("matmul", 1, model("good/matmul.onnx")).await;
    node.push_model("matmul", 2, model("good/matmul_v2.onnx")).await;
    node.deploy("echo", function("echo-tensor")).await;
    node
}

fn fp32(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Sends a body of JSON followed by binary data.
async fn binary(client: &TestClient, path: &str, json: &Value, behind: &[u8]) -> Answer {
    let json = json.to_string();
    let body = [json.as_bytes(), behind].concat();
    send(client, path, &[(HEADER, &json.len().to_string())], body).await
}

async fn send(client: &TestClient, path: &str, headers: &[(&str, &str)], body: Vec<u8>) -> Answer {
    let request = client.request(Method::POST, path).body(body);
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let headers = response.headers().clone();
    Answer { status, headers, body: response.bytes().await.unwrap() }
}

/// One row for `matmul`, as binary data.
fn row() -> Value {
    json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "parameters": {"binary_data_size": 16}}]})
}

/// Splits a response into its JSON and the binary data.
fn parts(answer: &Answer) -> (Value, Bytes) {
    let json_bytes = answer.header(HEADER).unwrap().parse().unwrap();
    let json = serde_json::from_slice(&answer.body[..json_bytes]).unwrap();
    (json, answer.body.slice(json_bytes..))
}
