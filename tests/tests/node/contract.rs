//! Components built against `weir:inference@0.1.0` run on every 0.1.x node. See
//! `docs/reference/compatibility.md`.

use serde_json::{Value, json};
use weir_tests::{TestNode, component_of_0_1_0, model, onnxruntime};
use weir_types::ErrorCode;

/// Replaces all occurrences of `old` by `new`, which has the same length.
fn replaced(bytes: &[u8], old: &str, new: &str) -> Vec<u8> {
    assert_eq!(old.len(), new.len());
    let mut bytes = bytes.to_vec();
    let places: Vec<_> =
        (0..bytes.len() - old.len()).filter(|at| bytes[*at..].starts_with(old.as_bytes())).collect();
    assert!(!places.is_empty(), "there is no {old}");
    places.into_iter().for_each(|at| bytes[at..at + new.len()].copy_from_slice(new.as_bytes()));
    bytes
}

/// The components import every function of version 0.1.0 with its type, and trap when called.
#[tokio::test]
async fn all_imports_of_0_1_0_are_provided() {
    let node = TestNode::start().await;
    for kind in ["http", "tensor"] {
        let name = format!("everything-{kind}");
        let deployed = node.deploy(&name, component_of_0_1_0(&name)).await;
        assert_eq!(deployed.denied_imports, Vec::<String>::new());
    }
    assert_eq!(node.get("/fn/everything-http/").await.code(), ErrorCode::GuestTrap);
    let input = json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]});
    assert_eq!(node.post("/fn/everything-tensor", input.to_string()).await.code(), ErrorCode::GuestTrap);
}

#[tokio::test]
async fn tensor_function_of_0_1_0_runs() {
    let node = TestNode::start().await;
    node.deploy("echo", component_of_0_1_0("echo-tensor")).await;
    let input = json!({"name": "x", "datatype": "FP32", "shape": [2], "data": [1.0, 2.5]});
    let answer: Value = node.post("/fn/echo", json!({"inputs": [input]}).to_string()).await.ok().json();
    assert_eq!(answer["outputs"][0]["data"], json!([1.0, 2.5]));
}

#[tokio::test]
async fn function_of_0_1_0_runs_a_model() {
    if onnxruntime().is_none() {
        return eprintln!("skipped: there is no ONNX Runtime; `cargo xtask setup` brings it");
    }
    let node = TestNode::start().await;
    node.push_model("m", 1, model("good/matmul.onnx")).await;
    node.deploy_with("infer", "models=m", component_of_0_1_0("infer")).await;
    node.post("/fn/infer/m?shape=1,4", vec![0; 16]).await.ok();
}

/// Interfaces match by compatible versions. A newer interface is rejected only if the component
/// imports an item that this node lacks.
#[tokio::test]
async fn later_0_1_is_rejected_only_for_new_items() {
    let node = TestNode::start().await;
    let now = "weir:inference/tensors@0.1.0";
    let later = "weir:inference/tensors@0.1.7";
    let component = replaced(&component_of_0_1_0("everything-http"), now, later);
    node.deploy("later", component.clone()).await;
    let component = replaced(&component, "take-body-as-tensor", "take-body-as-tensox");
    let refusal = node.try_deploy("new", "", component).await.unwrap_err();
    assert_eq!(refusal.status, 422);
    assert!(refusal.text.contains("take-body-as-tensox"), "{}", refusal.text);
}
