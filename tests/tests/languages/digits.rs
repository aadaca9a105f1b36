//! The same function in every language: equal responses, and no memory leaks.

use serde_json::Value;
use std::path::{Path, PathBuf};
use weir_tests::{Answer, TestNode, function, has_function, onnxruntime, rss_bytes};

const REFERENCE: &str = "classify-digits";
/// Equivalent functions, and whether each decodes PNGs.
const OTHERS: [(&str, bool); 4] = [
    ("classify-digits-py", true),
    ("classify-digits-ts", true),
    ("classify-digits-c", false),
    ("classify-digits-go", true),
];

/// Memory limit of a guest: enough for each language, and soon exhausted by a leak across calls.
const MEMORY_BYTES: u64 = 64 << 20;
const CALLS: usize = 1_000;
/// Warm-up calls before the memory is measured, for one-time allocations of the node.
const CALLS_BEFORE: usize = 100;
/// Two kilobytes per call: far less than a guest's memory for one call, or its response and logs.
const GROWTH_BYTES_MAX: u64 = 2_000 * CALLS as u64;
/// Rounds of the measurement. A node that starts to use another instance slot grows once, by a few
/// megabytes; a leak grows with every round.
const ROUNDS_MAX: usize = 4;

#[tokio::test]
async fn digits_are_classified_equally_in_every_language() {
    if onnxruntime().is_none() {
        return eprintln!("skipped: there is no ONNX Runtime; `cargo xtask setup` brings it");
    }
    let node = TestNode::start().await;
    let others: Vec<_> = OTHERS.into_iter().filter(|(name, _)| has_function(name)).collect();
    let all: Vec<_> = others.iter().map(|(name, _)| *name).chain([REFERENCE]).collect();
    a_model_that_is_not_there_is_no_fault_of_the_caller(&node, &all).await;
    the_answers_are_the_same(&node, &others).await;
    for (name, _) in &others {
        bad_pictures_are_refused(&node, name).await;
    }
    for name in &all {
        a_thousand_calls_leave_nothing_behind(&node, name).await;
    }
}

/// Deploys all functions, first without a grant for the model, then without the model, and then
/// pushes the model.
async fn a_model_that_is_not_there_is_no_fault_of_the_caller(node: &TestNode, all: &[&str]) {
    let limits = format!("limits.memory_bytes={MEMORY_BYTES}");
    for (models, why) in [("", "model digits is not granted"), ("&models=digits", "there is no model digits")]
    {
        let mut statuses = Vec::new();
        for name in all {
            node.deploy_with(name, &format!("{limits}{models}"), function(name)).await;
            let answer = node.post(&format!("/fn/{name}/"), rows(3)).await;
            assert!(answer.text().contains(why), "{name}: {}", answer.text());
            statuses.push(answer.status);
        }
        assert!(statuses.iter().all(|status| *status == 500), "{statuses:?} for {all:?}");
    }
    node.push_model("digits", 1, std::fs::read(folder().join("model/digits.onnx")).unwrap()).await;
}

async fn the_answers_are_the_same(node: &TestNode, others: &[(&str, bool)]) {
    for digit in 0..10 {
        let png = std::fs::read(folder().join(format!("samples/{digit}.png"))).unwrap();
        for (body, is_png) in [(png, true), (rows(digit).into_bytes(), false)] {
            let reference = node.post(&format!("/fn/{REFERENCE}/"), body.clone()).await.ok();
            assert_eq!(reference.json::<Value>()["digit"], digit);
            for (name, reads_png) in others {
                if is_png && !reads_png {
                    continue;
                }
                let answer = node.post(&format!("/fn/{name}/"), body.clone()).await.ok();
                assert_eq!(numbers(&answer), numbers(&reference), "{name} classifies {digit} differently");
            }
        }
    }
}

async fn bad_pictures_are_refused(node: &TestNode, name: &str) {
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

async fn a_thousand_calls_leave_nothing_behind(node: &TestNode, name: &str) {
    let path = format!("/fn/{name}/");
    let bodies: Vec<_> = (0..10).map(rows).collect();
    let mut answers = Vec::new();
    for body in &bodies {
        answers.push(node.post(&path, body.clone()).await.ok().body);
    }
    let call_often = async |calls| {
        for call in 0..calls {
            let at = call % bodies.len();
            let answer = node.post(&path, bodies[at].clone()).await.ok();
            assert_eq!(answer.body, answers[at], "{name} classifies image {at} differently in call {call}");
        }
    };
    call_often(CALLS_BEFORE).await;
    let mut growths = Vec::new();
    while growths.len() < ROUNDS_MAX && growths.iter().all(|growth| *growth > GROWTH_BYTES_MAX) {
        let before = rss_bytes(node.pid());
        call_often(CALLS).await;
        growths.push(rss_bytes(node.pid()).saturating_sub(before));
    }
    println!("{name}: {growths:?} bytes more in rounds of {CALLS} calls");
    let least = growths.iter().min().unwrap();
    assert!(*least <= GROWTH_BYTES_MAX, "{name} left {growths:?} bytes behind in rounds of {CALLS} calls");
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../functions").join(REFERENCE)
}

/// Request body with the model input of a sample.
fn rows(digit: usize) -> String {
    let expected = std::fs::read(folder().join("samples/expected.json")).unwrap();
    let expected: Value = serde_json::from_slice(&expected).unwrap();
    format!("{{\"pixels\": {}}}", expected[format!("{digit}.png")]["input"])
}

/// Numbers of the response, independent of the language's number format.
fn numbers(answer: &Answer) -> Vec<f64> {
    let answer: Value = answer.json();
    let all = answer["probabilities"].as_array().unwrap().iter();
    all.chain([&answer["digit"], &answer["confidence"]]).map(|number| number.as_f64().unwrap()).collect()
}
