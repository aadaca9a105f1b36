//! Canaries: versions of a function or model that get a share of its calls or runs.

mod asynchronous;
mod deciding;
mod flipping;
mod managing;
mod models;

use futures::StreamExt;
use futures::stream;
use std::time::Instant;
use weir_tests::{Answer, TestClient, TestNode, function};
use weir_types::api::Function;

/// Answers of the two versions of [`start`] to `/fn/f/behave`.
const ANSWERS: [&str; 2] = ["hello, behave\n", "ok\n"];

/// Calls at once, so that no queue is full on a slow machine.
const IN_FLIGHT_MAX: usize = 32;

/// Starts a node with the function `f`, whose version 2 is a canary with these options.
async fn start(options: &str) -> TestNode {
    let node = TestNode::start().await;
    node.deploy("f", function("hello")).await;
    let deployed = node.deploy_with("f", options, function("misbehave")).await;
    assert_eq!((deployed.function.version.0, deployed.function.active), (2, false));
    node
}

/// The version that made an answer.
fn version_of(answer: &Answer) -> u32 {
    answer.header("weir-version").expect("the answer has a version").parse().expect("a number")
}

async fn active(node: &TestClient) -> u32 {
    node.function("f").await.unwrap().active.version.0
}

/// Calls `/fn/f/behave` `calls` times, several at once, on a node of [`start`]. Returns the number of
/// answers of the canary.
async fn canary_answers(node: &TestClient, calls: usize) -> usize {
    answers_of_canary(node, calls, ANSWERS).await
}

/// The same, for versions with these `answers`.
async fn answers_of_canary(node: &TestClient, calls: usize, answers: [&str; 2]) -> usize {
    let replies = stream::iter(0..calls).map(|_| node.get("/fn/f/behave")).buffer_unordered(16);
    let of_canary = replies.filter(|reply| {
        let version = version_of(reply);
        assert_eq!(reply.text(), answers[version as usize - 1], "version {version}");
        std::future::ready(version == 2)
    });
    of_canary.count().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn canary_gets_its_share_of_twenty_thousand_calls() {
    let node = TestNode::start().await;
    // The faster component is the canary: on a busy machine, the node would roll the other one back.
    node.deploy("f", function("misbehave")).await;
    node.deploy_with("f", "canary=10", function("hello")).await;
    let [hello, misbehave] = ANSWERS;
    let began = Instant::now();
    let of_canary = answers_of_canary(&node, 20_000, [misbehave, hello]).await;
    assert_eq!(of_canary, 2_000);
    println!("{of_canary} of 20000 calls used the canary, in {:?}", began.elapsed());
}

#[tokio::test]
async fn calls_with_the_same_key_use_the_same_version() {
    let node = start("canary=30").await;
    let call = async |key: &str| {
        let request = node.request(reqwest::Method::GET, "/fn/f/behave").header("weir-version-key", key);
        version_of(&node.send(request).await.ok())
    };
    let mut of_canary = Vec::new();
    for key in 0..60 {
        let key = format!("user-{key}");
        let version = call(&key).await;
        for _ in 0..3 {
            assert_eq!(call(&key).await, version, "{key}");
        }
        if version == 2 {
            of_canary.push(key);
        }
    }
    assert!((5..=35).contains(&of_canary.len()), "{} of 60 keys", of_canary.len());
    let changed = node.deploy_with("f", "canary=90", function("misbehave")).await;
    assert_eq!((changed.created, changed.canary.map(|canary| canary.percent)), (false, Some(90)));
    for key in of_canary {
        assert_eq!(call(&key).await, 2, "{key} left the canary");
    }
}

/// Errors name the version too, and so do inferences by the path of a tensor function.
#[tokio::test]
async fn every_answer_of_a_function_names_its_version() {
    let node = start("canary=50").await;
    let mut seen = [false; 2];
    for _ in 0..100 {
        let answer = node.get("/fn/f/trap").await;
        let version = version_of(&answer);
        assert_eq!(answer.status, if version == 2 { 500 } else { 200 });
        seen[version as usize - 1] = true;
    }
    assert_eq!(seen, [true; 2]);
    node.deploy("t", function("echo-tensor")).await;
    let input = r#"{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}"#;
    assert_eq!(version_of(&node.post("/fn/t/", input).await.ok()), 1);
}

#[tokio::test]
async fn canary_of_a_tensor_function_gets_its_share_of_inferences() {
    let node = TestNode::start().await;
    node.deploy("t", function("echo-tensor")).await;
    let other = weir_tests::with_custom_section(&function("echo-tensor"), "2");
    node.deploy_with("t", "canary=20", other).await;
    let input = r#"{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}"#;
    let mut of_canary = 0;
    for _ in 0..100 {
        let answer: serde_json::Value = node.post("/v2/models/t/infer", input).await.ok().json();
        of_canary += usize::from(answer["model_version"] == "2");
    }
    assert_eq!(of_canary, 20);
    let shown: serde_json::Value = node.get("/v2/models/t").await.ok().json();
    assert_eq!(shown["versions"], serde_json::json!(["1"]), "descriptions are of the active version");
    let function: Function = node.get("/v1/functions/t").await.ok().json();
    assert_eq!(function.canary.map(|canary| canary.version.0), Some(2));
}
