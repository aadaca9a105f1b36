//! The audit log, and failed authentications.

use reqwest::Method;
use serde_json::Value;
use std::path::Path;
use std::time::{Duration, Instant};
use weir_tests::{TestNode, eventually, function};

const TOKEN: &str = "0123456789abcdef";

/// Starts a node with two tenants and an audit log.
async fn start(log: &Path) -> TestNode {
    let tokens = ["0123456789abcdef acme", "fedcba9876543210 beta", "operator90123456 *"];
    TestNode::builder().tokens(&tokens).set("logs.audit.file", log.display()).start().await
}

/// The events so far, once there are `count`.
pub(crate) async fn events(log: &Path, count: usize) -> Vec<Value> {
    eventually("the events", async || {
        let text = std::fs::read_to_string(log).unwrap();
        let events: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        (events.len() >= count).then_some(events)
    })
    .await
}

#[tokio::test]
async fn changes_are_recorded_with_their_tenant_and_outcome() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("audit");
    let node = start(&log).await;
    let acme = node.with_token(TOKEN);
    acme.deploy("hello", function("hello")).await;
    acme.get("/fn/hello").await.ok();
    acme.get("/v1/functions").await.ok();
    let request = acme.request(Method::DELETE, "/v1/functions/missing?secret=1");
    let refused = request.header("weir-request-id", "mine").send().await.unwrap();
    assert_eq!(refused.status(), 404);
    node.with_token("operator90123456").get("/v1/functions").await;
    let events = events(&log, 3).await;
    assert_eq!(events.len(), 3, "{events:?}");
    let shown = |event: &Value, key: &str| event[key].as_str().map(str::to_owned);
    let deployed = &events[0];
    for (key, expected) in
        [("tenant", "acme"), ("address", "127.0.0.1"), ("method", "PUT"), ("path", "/v1/functions/hello")]
    {
        assert_eq!(shown(deployed, key).as_deref(), Some(expected), "{deployed}");
    }
    assert_eq!((&deployed["status"], &deployed["code"]), (&200.into(), &Value::Null), "{deployed}");
    assert_eq!(shown(deployed, "token_hash").unwrap().len(), 12);
    let removed = &events[1];
    assert_eq!(shown(removed, "code").as_deref(), Some("function-not-found"), "{removed}");
    assert_eq!(shown(removed, "request_id").as_deref(), Some("mine"), "{removed}");
    assert_eq!(shown(removed, "path").as_deref(), Some("/v1/functions/missing"), "{removed}");
    let operator = &events[2];
    assert_eq!((&operator["tenant"], &operator["status"]), (&Value::Null, &403.into()), "{operator}");
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(!text.contains(TOKEN), "a token is in the log");
}

#[tokio::test]
async fn failed_authentications_are_counted_and_slowed_and_others_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("audit");
    let node = start(&log).await;
    let stranger = node.with_token("wrong-token-of-some-length");
    for _ in 0..5 {
        assert_eq!(stranger.get("/v1/functions").await.status, 401);
    }
    let began = Instant::now();
    for _ in 0..3 {
        assert_eq!(stranger.get("/v1/functions").await.status, 401);
    }
    assert!(began.elapsed() >= Duration::from_millis(100 + 200 + 400), "{:?}", began.elapsed());
    // A slow attempt is in progress while others are served.
    let slow = stranger.clone();
    let slow = tokio::spawn(async move { slow.get("/v1/functions").await.status });
    assert_eq!(node.with_token(TOKEN).get("/v1/functions").await.status, 200);
    assert_eq!(
        node.client().get("/v1/functions").await.status,
        401,
        "a request without a token is answered at once"
    );
    assert!(!slow.is_finished(), "the ninth attempt waits 0.8 s");
    assert_eq!(slow.await.unwrap(), 401);
    let operator = node.with_token("operator90123456");
    assert_eq!(operator.metric("weir_authentication_failures_total", "").await, 10.0);
    let paths: Vec<_> = events(&log, 4).await.iter().map(|event| event["code"].clone()).collect();
    assert_eq!(paths, ["unauthorized"; 4], "the first, second, fourth and eighth");
}

#[tokio::test]
async fn unusable_audit_file_stops_the_start() {
    let node = TestNode::builder().set("logs.audit.file", "/proc/no/such/file");
    let log = node.try_start().await.map(|_| ()).unwrap_err();
    assert!(log.contains("cannot open the audit log"), "{log}");
}
