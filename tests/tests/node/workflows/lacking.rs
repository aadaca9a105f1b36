//! Workflows with a missing model: not ready, with a reason, and ready again when the model is
//! back.

use super::{deploy, infer, rows, step, workflow};
use serde_json::{Value, json};
use weir_tests::{TestNode, model};
use weir_types::ErrorCode;
use weir_types::api::Workflow;

#[tokio::test]
async fn workflow_without_its_model_is_not_ready() {
    let node = TestNode::start().await;
    node.push_model("m", 1, model("good/matmul.onnx")).await;
    let document = workflow(&step("a", "m", "x"), "a");
    deploy(&node, "w", &document).await.ok();
    deploy(&node, "outer", &workflow(&step("b", "w", "x"), "b")).await.ok();
    // Delete the model's files, so that the next start cannot read them.
    let files = node.data().join("models");
    let builder = node.stop().await;
    for file in std::fs::read_dir(&files).unwrap() {
        std::fs::remove_file(file.unwrap().path()).unwrap();
    }
    let node = builder.start().await;
    for (name, why) in [("w", "step a: model m:1 no longer exists"), ("outer", "step b: step a: model m:1")] {
        let shown: Workflow = node.get(&format!("/v1/workflows/{name}")).await.ok().json();
        assert!(!shown.active.ready && shown.active.reason.as_deref().unwrap().starts_with(why), "{shown:?}");
        for refused in [
            node.get(&format!("/v2/models/{name}/ready")).await.refusal(),
            infer(&node, name, &rows(&[0.0; 4])).await.refusal(),
        ] {
            assert_eq!((refused.status, refused.code), (503, ErrorCode::Unavailable));
            assert!(refused.text.contains(why), "{}", refused.text);
        }
        let index: Value = node.post("/v2/repository/index", "").await.ok().json();
        let entry = index.as_array().unwrap().iter().find(|entry| entry["name"] == name).unwrap();
        assert_eq!(entry["state"], "UNAVAILABLE");
        assert!(entry["reason"].as_str().unwrap().starts_with(why), "{entry}");
    }
    let ready: Value = node.post("/v2/repository/index", r#"{"ready": true}"#).await.ok().json();
    assert_eq!(ready, json!([]));
    // A workflow that is not ready cannot be a step.
    let refused = deploy(&node, "more", &workflow(&step("c", "w", "x"), "c")).await.refusal();
    assert_eq!(refused.code, ErrorCode::InvalidWorkflow);
    assert!(refused.text.contains("step c: workflow w cannot be run"), "{}", refused.text);

    // Another model with the same version number does not make the workflow ready; the same model
    // does.
    node.delete("/v1/workflows/outer").await.ok();
    let other = node.try_push_model("m", 1, model("good/matmul_v2.onnx")).await;
    if other.is_ok() {
        let refused = infer(&node, "w", &rows(&[0.0; 4])).await.refusal();
        assert!(refused.text.contains("has changed since"), "{}", refused.text);
        deploy(&node, "w", &document).await.ok();
    } else {
        node.push_model("m", 1, model("good/matmul.onnx")).await;
    }
    infer(&node, "w", &rows(&[0.0; 4])).await.ok();
}
