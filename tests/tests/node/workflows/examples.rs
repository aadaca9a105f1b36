//! The workflows in `examples/workflows`.

use crate::workflows::{asked, deploy};
use bytes::Bytes;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use weir_tests::{TestNode, eventually};

fn example(path: &str) -> Bytes {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/workflows").join(path);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).into()
}

/// The most probable digit and its probability.
async fn read(node: &TestNode, workflow: &str, request: &str) -> (usize, f64) {
    let answer = node.post(&format!("/v2/models/{workflow}/infer"), example(request)).await.ok();
    let answer: Value = answer.json();
    let probabilities =
        answer["outputs"][0]["data"].as_array().unwrap().iter().map(|value| value.as_f64().unwrap());
    probabilities.enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b)).unwrap()
}

#[tokio::test]
async fn ensemble_and_cascade_examples_classify_digits() {
    let node = TestNode::start().await;
    for (name, file) in [
        ("digits-prepare", "prepare.onnx"),
        ("digits-linear", "linear.onnx"),
        ("digits-hidden", "hidden.onnx"),
        ("digits", "../../functions/classify-digits/model/digits.onnx"),
    ] {
        node.push_model(name, 1, example(file)).await;
    }
    for name in ["ensemble", "cascade"] {
        let document = String::from_utf8(example(&format!("{name}.toml")).to_vec()).unwrap();
        deploy(&node, &format!("digits-{name}"), &document).await.ok();
    }
    let digit = |request: &str| {
        let request: Value = serde_json::from_slice(&example(request)).unwrap();
        request["id"].as_str().unwrap().trim_start_matches("a ").parse::<usize>().unwrap()
    };
    let (read_as, sure) = read(&node, "digits-cascade", "sure.json").await;
    assert_eq!((read_as, asked(&node, "digits").await), (digit("sure.json"), 0.0));
    assert!(sure >= 0.8, "{sure}");
    let (read_as, _) = read(&node, "digits-cascade", "unsure.json").await;
    assert_eq!((read_as, asked(&node, "digits").await), (digit("unsure.json"), 1.0));
    let (read_as, _) = read(&node, "digits-ensemble", "sure.json").await;
    assert_eq!(read_as, digit("sure.json"));
    for (name, times) in
        [("digits-prepare", 3.0), ("digits-linear", 3.0), ("digits-hidden", 1.0), ("digits", 2.0)]
    {
        assert_eq!(asked(&node, name).await, times, "{name}");
    }
    // All tensors are released.
    let free = async || (node.metric("weir_arena_used_bytes", "").await == 0.0).then_some(());
    eventually("the release of every tensor", free).await;
}

/// The expected result in a request of an application, and the application's outputs by name.
async fn ask(node: &TestNode, application: &str, request: &str) -> (String, BTreeMap<String, Vec<f64>>) {
    let body = example(&format!("streambox/{request}.json"));
    let expected = serde_json::from_slice::<Value>(&body).unwrap()["id"].as_str().unwrap().to_owned();
    let answer: Value = node.post(&format!("/v2/models/{application}/infer"), body).await.ok().json();
    let numbers = |output: &Value| {
        output["data"].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
    };
    let outputs = answer["outputs"].as_array().unwrap().iter();
    let named = outputs.map(|output| (output["name"].as_str().unwrap().to_owned(), numbers(output)));
    (expected, named.collect())
}

fn largest(values: &[f64]) -> usize {
    (0..values.len()).max_by(|a, b| values[*a].total_cmp(&values[*b])).unwrap()
}

#[tokio::test]
async fn streambox_examples_run() {
    let node = TestNode::start().await;
    node.push_model("digits-prepare", 1, example("prepare.onnx")).await;
    node.push_model("digits", 1, weir_tests::digits()).await;
    for name in [
        "image-enhance",
        "traffic-detect",
        "traffic-vehicle",
        "traffic-crop",
        "traffic-person",
        "social-language",
        "social-translate",
        "social-text",
        "social-picture",
        "social-judge",
    ] {
        node.push_model(name, 1, example(&format!("streambox/{name}.onnx"))).await;
    }
    for name in ["image", "traffic", "social"] {
        let document = String::from_utf8(example(&format!("streambox/{name}.toml")).to_vec()).unwrap();
        deploy(&node, name, &document).await.ok();
    }

    let (expected, given) = ask(&node, "image", "image").await;
    assert_eq!((format!("a {}", largest(&given["probabilities"])), given["image"].len()), (expected, 64));

    let (expected, given) = ask(&node, "traffic", "traffic-vehicle").await;
    let kind = ["car", "bus", "lorry"][largest(&given["kind"])];
    assert_eq!(format!("a {kind}, {}", largest(&given["plate"])), expected);
    assert_eq!(given["who"], [0.0; 3]);
    let read = asked(&node, "digits").await;
    assert_eq!(asked(&node, "traffic-person").await, 0.0, "the branch of persons ran for a vehicle");
    let (expected, given) = ask(&node, "traffic", "traffic-person").await;
    assert_eq!(format!("a {}", ["adult", "child", "cyclist"][largest(&given["who"])]), expected);
    assert_eq!((&given["kind"][..], &given["plate"][..]), (&[0.0; 3][..], &[0.0; 10][..]));
    assert_eq!(asked(&node, "digits").await, read, "the branch of plates ran for a person");

    for (request, translated) in [("social-foreign", 1.0), ("social-ours", 1.0)] {
        let (expected, given) = ask(&node, "social", request).await;
        assert_eq!(["sport", "food", "travel"][largest(&given["topics"])], expected);
        assert_eq!(asked(&node, "social-translate").await, translated, "after {request}");
    }
}
