//! Concurrent deploys, pushes and deletes, with clients that disconnect.

use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use weir_tests::{TestClient, TestNode, eventually, function, model, with_custom_section};
use weir_types::ErrorCode;

/// Sends a complete `PUT`, and disconnects after `after` without reading the response.
async fn put_and_hang_up(client: &TestClient, path: &str, body: &[u8], after: Duration) {
    let mut stream = TcpStream::connect(client.address()).await.unwrap();
    let head = format!("PUT {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body).await.unwrap();
    tokio::time::sleep(after).await;
}

/// The artefact of a new deployment survives a sweep that began earlier.
#[tokio::test]
async fn deploys_concurrent_with_deletes_need_no_recompilation() {
    const DEPLOYS: usize = 12;
    let node = TestNode::start().await;
    let client = node.client().clone();
    let churn = tokio::spawn(async move {
        for round in 0_u32.. {
            let component = with_custom_section(&function("hello"), &format!("churn {}", round % 2));
            client.deploy("churn", component).await;
            client.delete("/v1/functions/churn").await.ok();
        }
    });
    for at in 0..DEPLOYS {
        let component = with_custom_section(&function("hello"), &format!("kept {at}"));
        node.deploy(&format!("kept-{at}"), component).await;
    }
    churn.abort();
    for at in 0..DEPLOYS {
        assert_eq!(node.get(&format!("/fn/kept-{at}/x")).await.ok().text(), "hello, x\n");
    }
    assert_eq!(node.metric("weir_cold_starts_total", "cause=\"compile\"").await, 0.0);
}

#[tokio::test]
async fn functions_and_models_stay_usable_after_client_disconnects() {
    let node = TestNode::start().await;
    node.deploy("f", function("hello")).await;
    for at in 0..40_u32 {
        let after = Duration::from_micros(u64::from(at) * 300);
        put_and_hang_up(&node, &format!("/v1/functions/f?env.N={at}"), &function("hello"), after).await;
        if at % 8 == 0 {
            let after = Duration::from_millis(u64::from(at) * 5);
            put_and_hang_up(&node, "/v1/models/m", &model("good/matmul.onnx"), after).await;
        }
    }
    let deployed = node.deploy_with("f", "env.N=last", function("hello")).await;
    assert_eq!(node.function("f").await.unwrap().active.version, deployed.function.version);
    assert_eq!(node.get("/fn/f/x").await.ok().text(), "hello, x\n");
    node.put("/v1/models/m", model("good/matmul.onnx")).await.ok();
    let before = (node.functions().await, node.models().await);
    let node = node.stop().await.start().await;
    assert_eq!((node.functions().await, node.models().await), before, "memory and disk differ");
}

fn row() -> Vec<u8> {
    [1.0_f32, 2.0, 3.0, 4.0].iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// A call that resolved a model before its deletion must not load it under the id of a newly pushed
/// model.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repushed_model_replaces_the_deleted_one_under_its_id() {
    let node = TestNode::start().await;
    node.deploy_with("infer", "models=m", function("infer")).await;
    let mut answers = Vec::new();
    for path in ["good/matmul.onnx", "good/matmul_v2.onnx"] {
        node.push_model("m", 1, model(path)).await;
        answers.push(node.post("/fn/infer/m?shape=1,4", row()).await.ok().body);
        node.delete("/v1/models/m").await.ok();
    }
    assert_ne!(answers[0], answers[1]);
    let callers: Vec<_> = (0..4)
        .map(|_| {
            let client = node.client().clone();
            tokio::spawn(async move {
                loop {
                    client.post("/fn/infer/m?shape=1,4", row()).await;
                }
            })
        })
        .collect();
    for round in 0..30 {
        let path = ["good/matmul.onnx", "good/matmul_v2.onnx"][round % 2];
        let expected = &answers[round % 2];
        node.push_model("m", 1, model(path)).await;
        let answer = node.post("/fn/infer/m?shape=1,4", row()).await.ok().body;
        assert_eq!(answer, *expected, "round {round}: another model answered");
        node.delete("/v1/models/m").await.ok();
    }
    callers.iter().for_each(tokio::task::JoinHandle::abort);
    assert_eq!(node.post("/fn/infer/m?shape=1,4", row()).await.status, 404);
    eventually("the removal of the deleted model", async || {
        (node.status().await.devices[0].used_bytes == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn model_delete_does_not_wait_for_runs() {
    let node = TestNode::start().await;
    node.push_model("slow", 1, model("good/slow.onnx")).await;
    node.deploy_with("f", "models=slow&limits.deadline_ms=60000", function("overlap")).await;
    let client = node.client().clone();
    let busy = tokio::spawn(async move {
        let path = "/fn/f/deadline/slow?after_ms=50000";
        client.post(path, i64::MAX.to_le_bytes().to_vec()).await
    });
    // Counted after the call has pinned the model.
    eventually("the load of the model", async || {
        (node.metric("weir_phase_seconds_count", "phase=\"model_load\"").await >= 1.0).then_some(())
    })
    .await;
    node.delete("/v1/models/slow").await.ok();
    assert!(!busy.is_finished(), "the delete waited for the run");
    assert_eq!(node.delete("/v1/models/slow").await.code(), ErrorCode::ModelNotFound);
    // A new push does not wait for the call either.
    node.push_model("slow", 1, model("good/slow.onnx")).await;
    let short = node.post("/fn/f/deadline/slow?after_ms=100", i64::MAX.to_le_bytes().to_vec()).await;
    assert_eq!((short.status, short.text()), (504, "DeadlineExceeded\n"));
    assert!(!busy.is_finished(), "the new model waited for the old one's run");
    busy.abort();
}
