//! Labels of classes: pushed with a model, and returned by classification.

use reqwest::Method;
use reqwest::multipart::{Form, Part};
use serde_json::{Value, json};
use std::path::Path;
use weir_tests::{Answer, TestNode, model};
use weir_types::api::{Model, ModelPushed};
use weir_types::{ErrorCode, LABELS_MAX, Version};

/// The classes of a row by the model `name`, whose output `y` is [0, 1, 2].
async fn classes(node: &TestNode, name: &str, count: u32) -> Value {
    let request = json!({
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 0, 0, 0]}],
        "outputs": [{"name": "y", "parameters": {"classification": count}}],
    });
    let answer: Value = node.post(&format!("/v2/models/{name}/infer"), request.to_string()).await.ok().json();
    assert_eq!(
        (&answer["outputs"][0]["datatype"], &answer["outputs"][0]["shape"]),
        (&json!("BYTES"), &json!([1, count]))
    );
    answer["outputs"][0]["data"].clone()
}

#[tokio::test]
async fn labels_of_a_push_are_in_classes_and_descriptions() {
    let node = TestNode::start().await;
    let folder = tempfile::tempdir().unwrap();
    let labels = folder.path().join("labels.txt");
    std::fs::write(&labels, "cat\r\n\r\ndog\r\n").unwrap();
    let onnx = folder.path().join("m.onnx");
    std::fs::write(&onnx, model("good/matmul.onnx")).unwrap();
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let of_output = format!("y={}", text(&labels));
    // A model with one output needs no name for it.
    for (name, labels) in [("m", &text(&labels)), ("named", &of_output)] {
        node.weir(&["models", "push", name, &text(&onnx), "--labels", labels]).await.unwrap();
        assert_eq!(classes(&node, name, 3).await, json!(["2.000000:2:dog", "1.000000:1", "0.000000:0:cat"]));
        let shown = node.weir(&["models", "show", name]).await.unwrap();
        assert!(shown.contains("labels       y: 3 labels: cat, , dog\n"), "{shown}");
    }
    let config: Value = node.get("/v2/models/m/config").await.ok().json();
    assert_eq!(config["output"][0]["label_filename"], "labels.y");
    assert_eq!(config["input"][0].get("label_filename"), None);
    let of = |model: &Value| model["manifest"].get("labels").cloned();
    let shown: Value = node.get("/v1/models/m").await.ok().json();
    assert_eq!(of(&shown), Some(json!({"y": ["cat", "", "dog"]})));
    let listed: Value = node.get("/v1/models").await.ok().json();
    assert_eq!(of(&listed[0]), None, "the list contains labels");

    // Each version has its own labels.
    node.weir(&["models", "push", "m", &text(&onnx)]).await.unwrap();
    assert_eq!(classes(&node, "m", 1).await, json!(["2.000000:2"]));
    let config: Value = node.get("/v2/models/m/config").await.ok().json();
    assert_eq!(config["output"][0].get("label_filename"), None);
    node.weir(&["models", "rollback", "m"]).await.unwrap();
    assert_eq!(classes(&node, "m", 1).await, json!(["2.000000:2:dog"]));
    let node = node.stop().await.start().await;
    assert_eq!(classes(&node, "m", 1).await, json!(["2.000000:2:dog"]));
    assert_eq!(classes(&node, "m/versions/2", 1).await, json!(["2.000000:2"]));
}

/// Pushes version 1 of `m` as a form with `fields` before the file.
async fn push(node: &TestNode, fields: &[(&'static str, &str)]) -> Answer {
    let form = fields.iter().fold(Form::new(), |form, (name, text)| form.text(*name, (*text).to_owned()));
    let form = form.part("model", Part::stream(model("good/matmul.onnx")));
    let request = node.request(Method::PUT, "/v1/models/m/versions/1").multipart(form);
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let headers = response.headers().clone();
    Answer { status, headers, body: response.bytes().await.unwrap() }
}

#[tokio::test]
async fn labels_that_do_not_fit_the_model_are_refused() {
    let node = TestNode::start().await;
    let many = "a\n".repeat(LABELS_MAX + 1);
    let long = "a".repeat(600 << 10);
    for (fields, text) in [
        (
            &[("labels", "a\nb\nc\nd")][..],
            "labels of output \"y\": there are 4, and the output has 3 elements",
        ),
        (&[("labels", "\n\n")], "labels of output \"y\": there are none"),
        (&[("labels", &many)], "there are 65537, and an output has at most 65536"),
        (&[("labels", &long)], "the field \"labels\" has more than 524288 bytes"),
        (&[("labels", "a\u{7}")], "label 0 has a control character"),
        (&[("labels.z", "a")], "the labels are of an output \"z\", and the model has y"),
        (&[("labels.y", "a"), ("labels", "b")], "the field \"labels\" gives labels again"),
        (&[("manifest", r#"{"labels": {"y": "a"}}"#)], "labels"),
    ] {
        let refused = push(&node, fields).await.refusal();
        assert_eq!((refused.status, refused.code), (400, ErrorCode::InvalidManifest), "{refused:?}");
        assert!(refused.text.contains(text), "{refused:?}");
    }
    assert_eq!(node.models().await.len(), 0);
}

#[tokio::test]
async fn equal_labels_are_the_same_version() {
    let node = TestNode::start().await;
    let pushed: ModelPushed = push(&node, &[("labels", "cat\ndog")]).await.ok().json();
    for fields in [
        &[("labels", "cat\ndog")][..],
        &[("labels.y", "cat\ndog\n")],
        &[("manifest", r#"{"labels": ["cat", "dog"]}"#)],
    ] {
        let again: ModelPushed = push(&node, fields).await.ok().json();
        assert_eq!((again.model.version, again.model.pushed_at_ms), (Version(1), pushed.model.pushed_at_ms));
    }
    for fields in [&[("labels", "cat\nbird")][..], &[]] {
        assert_eq!(push(&node, fields).await.code(), ErrorCode::VersionConflict);
    }
    let shown: Model = node.get("/v1/models/m").await.ok().json();
    assert_eq!(shown.active.manifest, pushed.model.manifest);
}
