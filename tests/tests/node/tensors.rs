//! Tensor functions over HTTP, with Open Inference Protocol bodies.

use serde_json::{Value, json};
use weir_tests::{Answer, TestClient, TestNode, function, has_function};
use weir_types::{ErrorCode, FunctionKind};

async fn infer(client: &TestClient, name: &str, inputs: Value) -> Answer {
    client.post(&format!("/fn/{name}"), json!({ "inputs": inputs }).to_string()).await
}

#[tokio::test]
async fn tensors_are_echoed_unchanged() {
    let node = TestNode::start().await;
    let mut names = vec!["echo-tensor"];
    // Python functions need optional tools.
    names.extend(Some("echo-tensor-py").filter(|name| has_function(name)));
    for name in names {
        let deployed = node.deploy(name, function(name)).await;
        assert_eq!(deployed.function.kind, FunctionKind::Tensor);
        let inputs = json!([
            { "name": "floats", "datatype": "FP32", "shape": [2, 2], "data": [1.5, -2.0, 0.0, 3.25] },
            { "name": "longs", "datatype": "INT64", "shape": [2], "data": [-9_007_199_254_740_993_i64, 7] },
            { "name": "words", "datatype": "BYTES", "shape": [2], "data": ["ab", "ü"] },
            { "name": "truths", "datatype": "BOOL", "shape": [2], "data": [true, false] },
            { "name": "none", "datatype": "UINT8", "shape": [0], "data": [] },
        ]);
        let answer: Value = infer(&node, name, inputs.clone()).await.ok().json();
        let outputs = answer["outputs"].as_array().unwrap();
        for (input, output) in inputs.as_array().unwrap().iter().zip(outputs) {
            for field in ["name", "datatype", "shape"] {
                assert_eq!(input[field], output[field], "{name}");
            }
            // Nested and flat data have equal elements.
            let flat = |value: &Value| value["data"].to_string().replace(['[', ']'], "");
            assert_eq!(flat(input), flat(output), "{name}");
        }
    }
}

#[tokio::test]
async fn response_limit_applies_to_json() {
    let node = TestNode::start().await;
    node.deploy_with("echo", "limits.response_body_bytes=100", function("echo-tensor")).await;
    let inputs = json!([{ "name": "a", "datatype": "UINT8", "shape": [40], "data": vec![0; 40] }]);
    let answer = infer(&node, "echo", inputs).await;
    assert_eq!((answer.status, answer.code()), (502, ErrorCode::ResponseTooLarge));
}

#[tokio::test]
async fn health_responds_while_large_tensors_are_parsed() {
    let node = TestNode::start().await;
    node.deploy("echo", function("echo-tensor")).await;
    let zeros = "0,".repeat(8 << 20) + "0";
    let body = format!(
        r#"{{"inputs":[{{"name":"a","datatype":"UINT8","shape":[{}],"data":[{zeros}]}}]}}"#,
        (8 << 20) + 1
    );
    let calls = (0..3).map(|_| node.post("/fn/echo", body.clone()));
    let answers = futures::future::join_all(calls);
    let mut answers = std::pin::pin!(answers);
    let mut slowest = std::time::Duration::ZERO;
    let answers = loop {
        let asked = std::time::Instant::now();
        tokio::select! {
            answers = &mut answers => break answers,
            health = node.get("/healthz") => drop(health.ok()),
        }
        slowest = slowest.max(asked.elapsed());
    };
    // A debug build parses such a body for seconds; parsing on a gateway thread would delay the
    // health check.
    assert!(slowest < std::time::Duration::from_secs(1), "health took {slowest:?}");
    for answer in answers {
        assert!(matches!(answer.status, 200 | 504 | 507), "{}", answer.status);
    }
}

#[tokio::test]
async fn invalid_tensors_are_rejected() {
    let node = TestNode::start().await;
    node.deploy("echo", function("echo-tensor")).await;
    let cases = [
        (
            "fewer elements than the shape",
            json!([{ "name": "a", "datatype": "FP32", "shape": [3], "data": [1.0] }]),
        ),
        (
            "more elements than the shape",
            json!([{ "name": "a", "datatype": "FP32", "shape": [1], "data": [1.0, 2.0] }]),
        ),
        ("an unknown type", json!([{ "name": "a", "datatype": "FP31", "shape": [1], "data": [1.0] }])),
        ("text for a number", json!([{ "name": "a", "datatype": "FP32", "shape": [1], "data": ["one"] }])),
        ("a number out of range", json!([{ "name": "a", "datatype": "UINT8", "shape": [1], "data": [256] }])),
        ("a negative dimension", json!([{ "name": "a", "datatype": "FP32", "shape": [-1], "data": [] }])),
        (
            "a huge shape",
            json!([{ "name": "a", "datatype": "FP32", "shape": [4294967295_u32, 4294967295_u32, 4294967295_u32], "data": [] }]),
        ),
        (
            "too many dimensions",
            json!([{ "name": "a", "datatype": "FP32", "shape": [1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1], "data": [1.0] }]),
        ),
        ("no data", json!([{ "name": "a", "datatype": "FP32", "shape": [1] }])),
        ("no list", json!({})),
    ];
    for (what, inputs) in cases {
        let answer = infer(&node, "echo", inputs).await;
        assert_eq!((answer.status, answer.code()), (400, ErrorCode::InvalidRequest), "{what}");
    }
    assert_eq!(node.post("/fn/echo", "not json").await.code(), ErrorCode::InvalidRequest);
    assert_eq!(node.get("/fn/echo").await.code(), ErrorCode::MethodNotAllowed);
    assert!(
        infer(&node, "echo", json!([{ "name": "a", "datatype": "FP32", "shape": [], "data": [1.0] }]))
            .await
            .is_ok()
    );
}
