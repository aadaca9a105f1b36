//! The workflows of `examples/workflows`, as their README has them.

use crate::workflows::{asked, deploy};
use bytes::Bytes;
use serde_json::Value;
use std::path::Path;
use weir_tests::{Node, eventually};

fn example(path: &str) -> Bytes {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/workflows").join(path);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).into()
}

/// The most probable digit, and how probable it is.
async fn read(node: &Node, workflow: &str, request: &str) -> (usize, f64) {
    let answer = node.post(&format!("/v2/models/{workflow}/infer"), example(request)).await.ok();
    let answer: Value = answer.json();
    let probabilities =
        answer["outputs"][0]["data"].as_array().unwrap().iter().map(|value| value.as_f64().unwrap());
    probabilities.enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b)).unwrap()
}

#[tokio::test]
async fn digits_are_read_by_an_ensemble_and_by_a_cascade() {
    let node = Node::start().await;
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
    // Nothing of it stays behind in the memory for tensors.
    let free = async || (node.metric("weir_arena_used_bytes", "").await == 0.0).then_some(());
    eventually("the release of every tensor", free).await;
}
