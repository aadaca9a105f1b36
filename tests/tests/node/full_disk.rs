//! A full disk: requests that store anything are refused with 507, and succeed again without a
//! restart.

use bytes::Bytes;
use reqwest::Method;
use serde_json::json;
use std::fs;
use std::path::Path;
use weir_tests::{Answer, TestClient, TestNode, component_of_0_1_0, eventually, with_custom_section};
use weir_types::ErrorCode;

const CALL: &str = "/fn/f/m?shape=1,1";

/// Deploys the model `m` and the function `f`, which runs the model in its path.
async fn prepare(node: &TestClient) {
    let port = |name: &str| json!([{"name": name, "datatype": "FP32", "shape": [null, 1]}]);
    let signature = json!({"inputs": port("x"), "outputs": port("y")});
    let model = json!({"resident_bytes": 1_000, "signature": signature});
    node.push_model("m", 1, model.to_string()).await;
    node.deploy_with("f", "models=m", component_of_0_1_0("infer")).await;
    call(node).await;
}

async fn call(node: &TestClient) {
    node.post(CALL, vec![0; 4]).await.ok();
}

fn other_component() -> Bytes {
    with_custom_section(&component_of_0_1_0("infer"), "other")
}

/// Requests that store something.
async fn writes(node: &TestClient) -> Vec<Answer> {
    let later = node.later(Method::POST, CALL).body(vec![0; 4]);
    vec![
        node.put("/v1/functions/g", other_component()).await,
        node.put("/v1/objects/o?datatype=UINT8", vec![1; 200_000]).await,
        node.send(later).await,
    ]
}

/// Writes zeroes to `path` until the disk is full.
fn fill(path: &Path) {
    let mut file = fs::File::create(path).unwrap();
    let mut piece = vec![0; 1 << 20];
    while !piece.is_empty() {
        if std::io::Write::write_all(&mut file, &piece).is_err() {
            piece.truncate(piece.len() / 2);
        }
    }
}

/// One failed write made every later write fail until the node was started again, and was answered
/// with 500.
#[tokio::test]
async fn writes_on_a_full_disk_fail_with_507_until_there_is_space() {
    let Some(builder) = TestNode::builder().small_disk(64 << 20) else { return };
    let node = builder.set("gateway.disk_free_bytes_min", 0).set("models.backend", "fake").start().await;
    prepare(&node).await;
    node.deploy_with("f", "models=m&env.N=2", component_of_0_1_0("infer")).await;
    let filler = node.data_seen_by_node().join("filler");
    fill(&filler);
    for _ in 0..2 {
        for answer in writes(&node).await {
            let refusal = answer.refusal();
            assert_eq!((refusal.status, refusal.code), (507, ErrorCode::DiskFull), "{}", refusal.text);
        }
        // Writes only the registry. A small commit may find room in its file.
        let rollback = node.roll_back("f", Some(1)).await;
        assert!([200, 507].contains(&rollback.status), "{rollback:?}");
    }
    let refusal = node.get("/readyz").await.refusal();
    assert_eq!(refusal.status, 503);
    assert!(refusal.text.contains("full") || refusal.text.contains("No space"), "{}", refusal.text);
    assert_eq!(node.status().await.state, "unready");
    call(&node).await;
    assert!(node.metric("weir_disk_write_failures_total", "").await >= 1.0);

    fs::remove_file(&filler).unwrap();
    eventually("readiness", async || (node.get("/readyz").await.status == 200).then_some(())).await;
    writes(&node).await.into_iter().for_each(|answer| drop(answer.ok()));
    node.roll_back("f", Some(2)).await.ok();
    call(&node).await;
}

#[tokio::test]
async fn disk_below_the_minimum_of_free_space_refuses_writes() {
    let node = TestNode::builder().set("models.backend", "fake").start().await;
    prepare(&node).await;
    let node = node.stop().await.set("gateway.disk_free_bytes_min", i64::MAX).start().await;
    let mut answers = writes(&node).await;
    answers.push(node.put("/v1/models/n", "{}").await);
    for answer in answers {
        let refusal = answer.refusal();
        assert_eq!((refusal.status, refusal.code), (507, ErrorCode::DiskFull), "{}", refusal.text);
        assert!(refusal.text.contains("gateway.disk_free_bytes_min"), "{}", refusal.text);
    }
    for path in ["/readyz", "/v2/health/ready"] {
        let refusal = node.get(path).await.refusal();
        assert!(refusal.status == 503 && refusal.text.contains("free"), "{refusal:?}");
    }
    call(&node).await;
    assert!(node.metric("weir_disk_free_bytes", "").await > 0.0);
}
