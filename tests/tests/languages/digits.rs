//! One function in every language: the answers are the same.

use serde_json::Value;
use std::path::Path;
use weir_tests::{Answer, Node, function, has_function, onnxruntime};

/// What does the same as `classify-digits`, each with whether it reads PNGs.
const OTHERS: [(&str, bool); 2] = [("classify-digits-py", true), ("classify-digits-ts", true)];

#[tokio::test]
async fn digits_are_read_alike_in_every_language() {
    if onnxruntime().is_none() {
        return eprintln!("skipped: there is no ONNX Runtime; `cargo xtask setup` brings it");
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../functions/classify-digits");
    let node = Node::start().await;
    node.push_model("digits", 1, std::fs::read(folder.join("model/digits.onnx")).unwrap()).await;
    let here: Vec<_> = OTHERS.into_iter().filter(|(name, _)| has_function(name)).collect();
    for name in here.iter().map(|(name, _)| *name).chain(["classify-digits"]) {
        node.deploy_with(name, "models=digits", function(name)).await;
    }
    for digit in 0..10 {
        let png = std::fs::read(folder.join(format!("samples/{digit}.png"))).unwrap();
        let rows = rows(&folder, digit);
        for (body, is_png) in [(png, true), (rows.into_bytes(), false)] {
            let reference = node.post("/fn/classify-digits/", body.clone()).await.ok();
            assert_eq!(reference.json::<Value>()["digit"], digit);
            for (name, reads_png) in &here {
                if is_png && !reads_png {
                    continue;
                }
                let answer = node.post(&format!("/fn/{name}/"), body.clone()).await.ok();
                assert_eq!(numbers(&answer), numbers(&reference), "{name} reads {digit} otherwise");
            }
        }
    }
    for (name, _) in &here {
        for (body, status) in [
            (&b"GIF89a"[..], 415),
            (b"", 400),
            (b"{\"pixels\": 3}", 400),
            (b"{\"pixels\": [[0, 1], [1]]}", 400),
            (b"{\"pixels\": [[0, -1]]}", 400),
            (b"{\"pixels\": [[3, 3]]}", 422),
        ] {
            let answer = node.post(&format!("/fn/{name}/"), body).await;
            assert_eq!(answer.status, status, "{name}: {}", answer.text());
            assert!(answer.json::<Value>()["error"].is_string(), "{name}: {}", answer.text());
        }
        assert_eq!(node.get(&format!("/fn/{name}/nowhere")).await.status, 404);
        assert_eq!(node.delete(&format!("/fn/{name}/")).await.status, 405);
    }
}

/// What the model is given for a sample, as the body of a request.
fn rows(folder: &Path, digit: usize) -> String {
    let expected = std::fs::read(folder.join("samples/expected.json")).unwrap();
    let expected: Value = serde_json::from_slice(&expected).unwrap();
    format!("{{\"pixels\": {}}}", expected[format!("{digit}.png")]["input"])
}

/// The answer's numbers, however its language writes 1.0.
fn numbers(answer: &Answer) -> Vec<f64> {
    let answer: Value = answer.json();
    let all = answer["probabilities"].as_array().unwrap().iter();
    all.chain([&answer["digit"], &answer["confidence"]]).map(|number| number.as_f64().unwrap()).collect()
}
