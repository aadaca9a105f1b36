//! A workflow that lacks something it runs: it says so wherever somebody asks, and is ready again once it is there.

use super::{deploy, infer, rows, step, workflow};
use serde_json::{Value, json};
use weir_tests::{Node, model};
use weir_types::ErrorCode;
use weir_types::api::Workflow;

#[tokio::test]
async fn a_workflow_without_its_model_is_not_ready() {
    let node = Node::start().await;
    node.push_model("m", 1, model("good/matmul.onnx")).await;
    let document = workflow(&step("a", "m", "x"), "a");
    deploy(&node, "w", &document).await.ok();
    deploy(&node, "outer", &workflow(&step("b", "w", "x"), "b")).await.ok();
    // Its files are lost, so that the next start cannot read it.
    let files = node.data().join("models");
    let builder = node.stop().await;
    for file in std::fs::read_dir(&files).unwrap() {
        std::fs::remove_file(file.unwrap().path()).unwrap();
    }
    let node = builder.start().await;
    for (name, why) in
        [("w", "step a: model m:1 is not there any more"), ("outer", "step b: step a: model m:1")]
    {
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
    // What lacks something is no step either.
    let refused = deploy(&node, "more", &workflow(&step("c", "w", "x"), "c")).await.refusal();
    assert_eq!(refused.code, ErrorCode::InvalidWorkflow);
    assert!(refused.text.contains("step c: workflow w cannot be run"), "{}", refused.text);

    // Another model under its number is not what it ran, and the same is.
    node.delete("/v1/workflows/outer").await.ok();
    let other = node.try_push_model("m", 1, model("good/matmul_v2.onnx")).await;
    if other.is_ok() {
        let refused = infer(&node, "w", &rows(&[0.0; 4])).await.refusal();
        assert!(refused.text.contains("is not what it was"), "{}", refused.text);
        deploy(&node, "w", &document).await.ok();
    } else {
        node.push_model("m", 1, model("good/matmul.onnx")).await;
    }
    infer(&node, "w", &rows(&[0.0; 4])).await.ok();
}
