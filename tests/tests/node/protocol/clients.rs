//! Third-party clients, unmodified.

use super::node;
use reqwest::Method;
use reqwest::multipart::{Form, Part};
use serde_json::Value;
use weir_tests::{TestNode, function, large_model, model, python_client};
use weir_types::ErrorCode;

#[tokio::test]
async fn triton_clients_work_unmodified() {
    let node = node().await;
    node.push_model("identity", 1, model("good/identity.onnx")).await;
    node.push_model("identity_bf16", 1, model("good/identity_bf16.onnx")).await;
    let labels = Form::new().text("labels", "cat\n\nlong: dog\n");
    let form = labels.part("model", Part::stream(model("good/matmul.onnx")));
    let pushed = node.request(Method::PUT, "/v1/models/animals").multipart(form).send().await.unwrap();
    assert_eq!(pushed.status(), 200);
    let mean = r#"
        inputs = { x = "FP32[n, 4]" }
        [steps.low]
        run = "matmul:1"
        inputs = { x = "x" }
        [steps.high]
        run = "matmul:2"
        inputs = { x = "x" }
        [steps.mean]
        combine = "mean"
        of = ["low", "high"]
        [outputs]
        y = "mean"
    "#;
    node.put("/v1/workflows/mean", mean).await.ok();
    for alias in ["models/matmul/aliases/old", "workflows/mean/aliases/live", "functions/echo/aliases/live"] {
        node.put(&format!("/v1/{alias}"), r#"{"version": 1}"#).await.ok();
    }
    run(&node, "triton_http.py").await;
    run(&node, "triton_grpc.py").await;
}

#[tokio::test]
async fn openai_client_works_unmodified() {
    let node = TestNode::start().await;
    node.push_model("minilm", 1, large_model("minilm.onnx")).await;
    node.deploy_with("embed-text", "models=minilm", function("embed-text")).await;
    run(&node, "openai_embeddings.py").await;
    node.deploy("echo", function("echo-tensor")).await;
    for (body, code) in [
        ("", ErrorCode::InvalidRequest),
        ("{}", ErrorCode::InvalidRequest),
        (r#"{"model": "../x"}"#, ErrorCode::InvalidName),
        (r#"{"model": "nobody"}"#, ErrorCode::FunctionNotFound),
        (r#"{"model": "echo"}"#, ErrorCode::InvalidRequest),
    ] {
        let answer = node.post("/v1/embeddings", body).await;
        assert_eq!(answer.json::<Value>()["error"]["code"], code.as_str(), "{body}");
        assert_eq!(answer.header("weir-error"), Some(code.as_str()), "{body}");
    }
    let other = node.post("/v1/embeddings", r#"{"model": "echo"}"#).await;
    assert!(other.text().contains("echo is a tensor function: `model` names an HTTP function"), "{other:?}");
    // The function's own error is passed on unchanged.
    node.deploy("misbehave", function("misbehave")).await;
    for (body, path, status) in [
        (r#"{"model": "embed-text", "input": ""}"#, "/fn/embed-text/v1/embeddings", 400),
        (r#"{"model": "misbehave"}"#, "/fn/misbehave/v1/embeddings", 404),
    ] {
        let (answer, said) = tokio::join!(node.post("/v1/embeddings", body), node.post(path, body));
        assert_eq!((answer.status, answer.text()), (status, said.text()), "{body}");
        assert_eq!(answer.header("weir-error"), None, "{body}");
    }
}

/// Runs a program of `tests/clients`, whose tests must all pass.
async fn run(node: &TestNode, program: &str) {
    let url = node.url("").to_string();
    let output = python_client(program).env("WEIR_URL", url.trim_end_matches('/')).output().await.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("\nRan ") && !said.contains("Ran 0 tests"), "{said}");
}
