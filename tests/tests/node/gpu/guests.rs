//! Outputs of functions' model runs, which stay on the device until they are read.

use super::handing_over::{handed_over, nothing_is_left, prepare};
use super::with_gpu;
use futures::future::join_all;
use weir_tests::{Answer, TestClient, TestNode, function, has_function};

/// Matrices in the body, and the bytes of each tensor of the chain.
const COUNT: usize = 8;
const BYTES: f64 = (COUNT * 4096) as f64;

fn body() -> Vec<u8> {
    (0..COUNT * 1024).flat_map(|at| value(at).to_le_bytes()).collect()
}

fn value(at: usize) -> f32 {
    (at % 251) as f32 / 8.0
}

async fn start(query: &str) -> (TestNode, Vec<&'static str>) {
    let node = with_gpu("cuda").start().await;
    prepare(&node, &[]).await;
    let functions: Vec<_> = ["chain", "chain-py"].into_iter().filter(|name| has_function(name)).collect();
    for name in &functions {
        let query = format!("models=twice,raised&{query}");
        node.deploy_with(name, &query, function(name)).await;
    }
    (node, functions)
}

async fn chain(node: &TestClient, name: &str, models: &str, query: &str) -> Answer {
    node.post(&format!("/fn/{name}/{models}?shape={COUNT},32,32{query}"), body()).await.ok()
}

/// Checks the output of `twice`, `raised` and `twice`.
fn check(answer: &Answer, name: &str) {
    let (values, rest) = answer.body.as_chunks::<4>();
    assert_eq!((values.len(), rest.len()), (COUNT * 1024, 0));
    for (at, found) in values.iter().enumerate() {
        assert_eq!(f32::from_le_bytes(*found), (value(at) * 2.0 + 1.0) * 2.0, "{name}, element {at}");
    }
}

#[tokio::test]
async fn functions_chain_models_without_the_host() {
    let (node, functions) = start("").await;
    assert!(functions.contains(&"chain"));
    let mut on_device = 0.0;
    let mut through_host = 0.0;
    for name in functions {
        // Nothing is read, so nothing goes through the host.
        let answer = chain(&node, name, "twice/raised", "&read=no").await;
        assert_eq!(answer.text(), BYTES.to_string());
        on_device += BYTES;
        assert_eq!(handed_over(&node).await, (on_device, through_host), "{name}");
        nothing_is_left(&node).await;
        // Of a longer chain, the function reads the last output.
        check(&chain(&node, name, "twice/raised/twice", "").await, name);
        on_device += 2.0 * BYTES;
        through_host += BYTES;
        assert_eq!(handed_over(&node).await, (on_device, through_host), "{name}");
        nothing_is_left(&node).await;
    }
}

/// A reused instance may keep a tensor between two calls, but not on the device.
#[tokio::test]
async fn tensors_kept_between_calls_leave_the_device() {
    let (node, _) = start("reuse=true").await;
    let answer = chain(&node, "chain", "twice/raised/twice", "&keep=yes").await;
    assert_eq!(answer.text(), BYTES.to_string());
    nothing_is_left(&node).await;
    assert_eq!(handed_over(&node).await, (2.0 * BYTES, BYTES));
    check(&node.post("/fn/chain/kept", "").await.ok(), "chain");
}

/// Without room on the device, outputs go through the host, like the outputs of workflow steps.
#[tokio::test]
async fn outputs_without_device_room_go_through_the_host() {
    let node = with_gpu("cuda").set("intermediates.len_max", 0).start().await;
    prepare(&node, &[]).await;
    node.deploy_with("chain", "models=twice,raised", function("chain")).await;
    check(&chain(&node, "chain", "twice/raised/twice", "").await, "chain");
    assert_eq!(handed_over(&node).await, (0.0, 0.0));
    nothing_is_left(&node).await;
}

/// Outputs that a function holds while it waits make room for those of later calls.
#[tokio::test]
async fn outputs_of_waiting_functions_spill_to_the_host() {
    const CALLS: usize = 16;
    let node = with_gpu("cuda")
        .env("WEIR_FAKE_CUDA", "devices=1,seed=3,memory_bytes=25165824")
        .set("intermediates.free_percent_max", 1)
        .start()
        .await;
    prepare(&node, &[]).await;
    node.deploy_with("chain", "models=twice,raised", function("chain")).await;
    // The first calls teach that the function mostly waits.
    for _ in 0..2 {
        check(&chain(&node, "chain", "twice/raised/twice", "&pause_ms=1000").await, "chain");
    }
    let spilled =
        async || node.metric("weir_device_spilled_bytes_total", "device=\"cuda:0\",to=\"host\"").await;
    assert_eq!(spilled().await, 0.0, "the tensors of one call were spilled");
    let calls = (0..CALLS).map(|_| chain(&node, "chain", "twice/raised/twice", "&pause_ms=1500"));
    for answer in join_all(calls).await {
        check(&answer, "chain");
    }
    let bytes = spilled().await;
    assert!(bytes > 0.0 && bytes % BYTES == 0.0, "{bytes}");
    nothing_is_left(&node).await;
}
