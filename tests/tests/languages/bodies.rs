//! Request and response bodies in every language.

use weir_tests::{TestNode, function, has_function};

const ECHOES: [&str; 6] =
    ["echo-body", "echo-body-py", "echo-body-ts", "echo-body-js", "echo-body-c", "echo-body-go"];
/// An empty body, less than a stream's first chunk, the size of an image for a model, and more than
/// the node buffers in memory before a function starts.
const LENGTHS: [usize; 4] = [0, 16, 602_112, 9 << 20];

#[tokio::test]
async fn echo_returns_the_body_in_every_language() {
    let node = TestNode::start().await;
    for name in ECHOES.into_iter().filter(|name| has_function(name)) {
        node.deploy_with(name, "limits.memory_bytes=134217728", function(name)).await;
        for length in LENGTHS {
            let body = bytes(length);
            let answer = node.post(&format!("/fn/{name}/"), body.clone()).await.ok();
            assert!(answer.body == body, "{name} gave {} bytes of {length}", answer.body.len());
        }
    }
}

/// The function's memory limit is smaller than the body.
#[tokio::test]
async fn go_streams_bodies_larger_than_its_memory() {
    let name = "echo-body-go";
    if !has_function(name) {
        return eprintln!("skipped: {name} was not built");
    }
    let node = TestNode::start().await;
    let limits = "limits.memory_bytes=16777216&limits.request_body_bytes=67108864";
    node.deploy_with(name, limits, function(name)).await;
    let body = bytes(24 << 20);
    let answer = node.post(&format!("/fn/{name}/"), body.clone()).await.ok();
    assert!(answer.body == body, "the response has other content, of {} bytes", answer.body.len());
    // As a tensor, the body bypasses the function's memory.
    let answer = node.post(&format!("/fn/{name}/tensor"), body.clone()).await;
    let elements = (body.len() / 4).to_string();
    assert_eq!((answer.status, &answer.headers["echo-elements"]), (201, &elements.parse().unwrap()));
    assert!(answer.body == body, "the response has other content, of {} bytes", answer.body.len());
    let refusal = node.post(&format!("/fn/{name}/tensor"), "five!").await;
    assert_eq!(refusal.status, 400, "{}", refusal.text());
}

/// Generates `length` bytes with a long period.
fn bytes(length: usize) -> Vec<u8> {
    let mixed = |at: usize| at.wrapping_mul(0x9e37_79b9) >> 13;
    (0..length).map(|at| mixed(at).to_le_bytes()[0]).collect()
}
