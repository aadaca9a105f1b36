//! Bodies in and out, through the memory of a function in every language.

use weir_tests::{Node, function, has_function};

const ECHOES: [&str; 6] =
    ["echo-body", "echo-body-py", "echo-body-ts", "echo-body-js", "echo-body-c", "echo-body-go"];
/// Nothing, less than a stream's first part, a picture as a model takes it, and more than is kept in memory before a function begins.
const LENGTHS: [usize; 4] = [0, 16, 602_112, 9 << 20];

#[tokio::test]
async fn a_body_comes_back_whole_in_every_language() {
    let node = Node::start().await;
    for name in ECHOES.into_iter().filter(|name| has_function(name)) {
        node.deploy_with(name, "limits.memory_bytes=134217728", function(name)).await;
        for length in LENGTHS {
            let body = bytes(length);
            let answer = node.post(&format!("/fn/{name}/"), body.clone()).await.ok();
            assert!(answer.body == body, "{name} gave {} bytes of {length}", answer.body.len());
        }
    }
}

/// A function with less memory than the body has bytes.
#[tokio::test]
async fn large_bodies_pass_through_go() {
    let name = "echo-body-go";
    if !has_function(name) {
        return eprintln!("skipped: {name} was not built");
    }
    let node = Node::start().await;
    let limits = "limits.memory_bytes=16777216&limits.request_body_bytes=67108864";
    node.deploy_with(name, limits, function(name)).await;
    let body = bytes(24 << 20);
    let answer = node.post(&format!("/fn/{name}/"), body.clone()).await.ok();
    assert!(answer.body == body, "{} bytes came back", answer.body.len());
    // As a tensor they pass it by.
    let answer = node.post(&format!("/fn/{name}/tensor"), body.clone()).await;
    let elements = (body.len() / 4).to_string();
    assert_eq!((answer.status, &answer.headers["echo-elements"]), (201, &elements.parse().unwrap()));
    assert!(answer.body == body, "{} bytes came back", answer.body.len());
    let refusal = node.post(&format!("/fn/{name}/tensor"), "five!").await;
    assert_eq!(refusal.status, 400, "{}", refusal.text());
}

/// So many bytes that do not repeat soon.
fn bytes(length: usize) -> Vec<u8> {
    let mixed = |at: usize| at.wrapping_mul(0x9e37_79b9) >> 13;
    (0..length).map(|at| mixed(at).to_le_bytes()[0]).collect()
}
