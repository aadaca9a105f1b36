//! The dashboard at `/ui`, as browsers see it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use reqwest::Method;
use serde_json::json;
use weir_tests::{Browser, Etcd, TestClient, TestCluster, TestNode, digits, eventually, function, model};
use weir_types::ErrorCode;

/// Stores a trigger.
async fn put_trigger(node: &TestClient, name: &str, spec: serde_json::Value) {
    let answer = node.put(&format!("/v1/triggers/{name}"), spec.to_string()).await;
    assert_eq!(answer.status, 201, "{answer:?}");
}

/// Deploys items for the pages: functions in versions, models, a workflow with a trigger, and two
/// asynchronous invocations that have ended.
async fn deploy_all(node: &TestClient) {
    node.push_model("digits", 1, digits()).await;
    node.push_model("digits-prepare", 1, model("../../../examples/workflows/prepare.onnx")).await;
    node.push_model("digits-linear", 1, model("../../../examples/workflows/linear.onnx")).await;
    node.deploy_with("classify-digits", "models=digits", function("classify-digits")).await;
    node.deploy("misbehave", function("misbehave")).await;
    node.deploy_with("hello", "limits.deadline_ms=5000", function("hello")).await;
    node.deploy("hello", function("hello")).await;
    node.put("/v1/workflows/cascade", include_str!("../../examples/workflows/cascade.toml")).await.ok();
    let daily = json!({"source": {"cron": "@daily"}, "target": {"inference": "cascade"}});
    put_trigger(node, "nightly", daily).await;
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
async fn pages_manage_triggers_and_compare_a_canary() {
    let node = TestNode::start().await;
    let Some(browser) = Browser::find(&node).await else { return };
    node.deploy("hello", function("hello")).await;
    node.deploy_with("hello", "limits.deadline_ms=5000&canary=25", function("hello")).await;
    node.deploy("dice", function("dice")).await;
    node.deploy("gone", function("dice")).await;
    let hello = json!({"function": "hello"});
    let berlin = json!({"cron": "0 6 * * mon-fri", "timezone": "Europe/Berlin"});
    put_trigger(&node, "report", json!({"source": berlin, "target": hello, "missed": "run-once"})).await;
    let request = json!({
        "path": "/reports?kind=daily", "headers": {"x-kind": "daily"}, "body": "{\"day\": \"yesterday\"}",
    });
    let paused =
        json!({"source": {"cron": "@hourly"}, "target": hello, "request": request, "enabled": false});
    put_trigger(&node, "paused", paused).await;
    put_trigger(&node, "lost", json!({"source": {"every_ms": 1000}, "target": {"function": "gone"}})).await;
    assert_eq!(node.delete("/v1/functions/gone").await.status, 204);
    browser.run("triggers", &node, json!({})).await;
}

/// A node with two secrets, of which a function gets one.
async fn store_secrets(node: &TestClient) {
    for (name, value) in [("HOOK_KEY", "first"), ("UNUSED", "value")] {
        node.put(&format!("/v1/secrets/{name}"), value).await.ok();
    }
    node.deploy_with("stamp", "secrets.MARK=HOOK_KEY", function("stamp")).await;
}

#[tokio::test]
async fn pages_store_secrets_without_keeping_them() {
    let node = TestNode::start().await;
    let Some(browser) = Browser::find(&node).await else { return };
    store_secrets(&node).await;
    browser.run("secrets", &node, json!({})).await;
}

#[tokio::test]
async fn pages_show_the_errors_of_a_key_that_only_reads() {
    let token = "0123456789abcdef";
    let node = TestNode::builder().tokens(&[token]).start().await;
    let Some(browser) = Browser::find(&node).await else { return };
    let admin = node.with_token(token);
    store_secrets(&admin).await;
    let daily = json!({"source": {"cron": "@daily"}, "target": {"function": "stamp"}});
    put_trigger(&admin, "report", daily).await;
    let key = admin.request(Method::PUT, "/v1/keys/reader").json(&json!({"scopes": ["read"]}));
    let key: serde_json::Value = admin.send(key).await.ok().json();
    browser.run("scopes", &node, json!({"token": key["token"]})).await;
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
async fn operator_sees_the_quotas_of_all_tenants() {
    const OPERATOR: &str = "operator-0123456789";
    let node = TestNode::builder()
        .tokens(&["acme-token-0123456789 acme", "other-token-0123456789 other", "operator-0123456789 *"])
        .set("tenants.other.names_max", 2)
        .start()
        .await;
    let Some(browser) = Browser::find(&node).await else { return };
    node.with_token("other-token-0123456789").deploy("hello", function("hello")).await;
    browser.run("operator", &node, json!({"token": OPERATOR})).await;
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
        assert!(
            answer.text().starts_with("<!doctype html>"),
            "the page is compressed for a client that does not accept gzip"
        );
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
