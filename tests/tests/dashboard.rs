//! The dashboard at `/ui`, as browsers see it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use reqwest::Method;
use serde_json::json;
use weir_tests::{Browser, Etcd, TestClient, TestCluster, TestNode, digits, eventually, function, model};
use weir_types::ErrorCode;

/// Deploys what the pages show: functions in versions, models, a workflow, and two asynchronous
/// invocations that have ended.
async fn deploy_all(node: &TestClient) {
    node.push_model("digits", 1, digits()).await;
    node.push_model("digits-prepare", 1, model("../../../examples/workflows/prepare.onnx")).await;
    node.push_model("digits-linear", 1, model("../../../examples/workflows/linear.onnx")).await;
    node.deploy_with("classify-digits", "models=digits", function("classify-digits")).await;
    node.deploy("misbehave", function("misbehave")).await;
    node.deploy_with("hello", "limits.deadline_ms=5000", function("hello")).await;
    node.deploy("hello", function("hello")).await;
    node.put("/v1/workflows/cascade", include_str!("../../examples/workflows/cascade.toml")).await.ok();
    node.post(
        "/fn/classify-digits/",
        include_bytes!("../../functions/classify-digits/samples/7.png").as_slice(),
    )
    .await
    .ok();
    for _ in 0..2 {
        let call = node.request(Method::GET, "/fn/hello/").header("prefer", "respond-async");
        assert_eq!(node.send(call).await.status, 202);
    }
    eventually("two asynchronous invocations that have ended", async || {
        let page: serde_json::Value = node.get("/v1/invocations?status=done").await.ok().json();
        (page["invocations"].as_array().unwrap().len() == 2).then_some(())
    })
    .await;
}

#[tokio::test]
async fn pages_show_a_node() {
    let node = TestNode::start().await;
    let Some(browser) = Browser::find(&node).await else { return };
    deploy_all(&node).await;
    browser.run("node", &node, json!({})).await;
}

#[tokio::test]
async fn pages_show_a_cluster_of_three_nodes() {
    if !Etcd::is_installed() {
        return;
    }
    let cluster = TestCluster::builder().start(3).await;
    let node = &cluster.nodes[0];
    let Some(browser) = Browser::find(node).await else { return };
    deploy_all(node).await;
    let members = node.status().await.cluster.unwrap().nodes;
    let ids: Vec<String> = members.iter().map(|member| json!(member.node).to_string()).collect();
    assert_eq!(ids.len(), 3);
    browser.run("cluster", node, json!({"nodes": ids})).await;
}

#[tokio::test]
async fn empty_pages_say_what_to_do_next() {
    let node = TestNode::start().await;
    let Some(browser) = Browser::find(&node).await else { return };
    browser.run("empty", &node, json!({})).await;
}

#[tokio::test]
async fn page_asks_for_the_token_and_forgets_it() {
    let token = "0123456789abcdef";
    let node = TestNode::builder().tokens(&[token]).start().await;
    let Some(browser) = Browser::find(&node).await else { return };
    let client = node.with_token(token);
    client.deploy("hello", function("hello")).await;
    browser.run("tokens", &node, json!({"token": token})).await;
}

#[tokio::test]
async fn dashboard_needs_no_token_and_allows_no_frames() {
    let node = TestNode::builder().tokens(&["0123456789abcdef"]).start().await;
    for path in ["/ui", "/ui/"] {
        let answer = node.get(path).await;
        if answer.status == 404 {
            let refusal = answer.refusal();
            assert_eq!(refusal.code, ErrorCode::RouteNotFound);
            assert!(refusal.text.contains("cargo xtask ui"), "{}", refusal.text);
            continue;
        }
        let answer = answer.ok();
        assert_eq!(answer.header("content-type"), Some("text/html; charset=utf-8"));
        assert!(answer.text().starts_with("<!doctype html>"), "unpacked for clients without gzip");
        assert!(answer.header("content-security-policy").unwrap().contains("frame-ancestors 'none'"));
        let known = answer.header("etag").unwrap();
        let again = node.request(Method::GET, path).header("if-none-match", known);
        assert_eq!(node.send(again).await.status, 304);
        let packed = node.request(Method::GET, path).header("accept-encoding", "gzip");
        assert_eq!(node.send(packed).await.header("content-encoding"), Some("gzip"));
    }
    assert_eq!(node.get("/v1/status").await.code(), ErrorCode::Unauthorized);
    assert_eq!(node.get("/ui/no-such-file").await.code(), ErrorCode::RouteNotFound);
    assert_eq!(node.post("/ui", "").await.code(), ErrorCode::MethodNotAllowed);
}

#[tokio::test]
async fn functions_cannot_reach_the_dashboard_by_headers() {
    let node = TestNode::start().await;
    node.deploy("dice", function("dice")).await;
    let path = "/fn/dice/?service-worker-allowed=/&cross-origin-opener-policy=same-origin&x-own=kept";
    let answer = node.get(path).await.ok();
    assert_eq!(answer.header("x-own"), Some("kept"));
    assert_eq!(answer.header("service-worker-allowed"), None);
    assert_eq!(answer.header("cross-origin-opener-policy"), None);
}
