//! Recent calls and their timelines.

use serde_json::Value;
use weir_tests::{TestClient, TestNode, eventually, function};
use weir_types::ErrorCode;
use weir_types::api::{CallTimeline, REQUEST_ID_HEADER, RecentCallPage};

async fn timeline(client: &TestClient, id: &str) -> CallTimeline {
    eventually("the timeline of a call that has ended", async || {
        let answer = client.get(&format!("/v1/calls/{id}")).await;
        (answer.status == 200).then(|| answer.json())
    })
    .await
}

async fn list(client: &TestClient, query: &str) -> RecentCallPage {
    client.get(&format!("/v1/calls?{query}")).await.ok().json()
}

#[tokio::test]
async fn calls_have_timelines_that_only_their_tenant_sees() {
    let node = TestNode::builder()
        .tokens(&["acme-token-0123456789 acme", "other-token-0123456789 other"])
        .set("traces.sample_ratio", 0)
        .start()
        .await;
    let acme = node.with_token("acme-token-0123456789");
    let other = node.with_token("other-token-0123456789");
    acme.deploy("hello", function("hello")).await;
    acme.deploy("misbehave", function("misbehave")).await;
    let answer = acme.get("/fn/hello/").await.ok();
    let id = answer.header(REQUEST_ID_HEADER).unwrap();
    let shown = timeline(&acme, id).await;
    assert_eq!((shown.call.name.as_str(), shown.call.version.0, shown.call.status), ("hello", 1, Some(200)));
    let names: Vec<_> = shown.spans.iter().map(|span| span.name.as_str()).collect();
    assert!(["queue", "instantiate", "guest"].iter().all(|phase| names.contains(phase)), "{names:?}");
    let whole_ns = shown.call.duration_ns;
    assert!(shown.spans.iter().all(|span| span.start_ns + span.duration_ns <= whole_ns), "{shown:?}");

    let failed = acme.get("/fn/misbehave/trap").await;
    let shown = timeline(&acme, failed.header(REQUEST_ID_HEADER).unwrap()).await;
    assert_eq!(shown.call.error.as_deref(), Some("guest-trap"));
    let only_failed = list(&acme, "outcome=failed").await;
    assert_eq!(only_failed.calls, [shown.call]);
    assert_eq!(list(&acme, "name=hello&kind=function&outcome=ok").await.calls.len(), 1);
    assert!(list(&acme, "kind=workflow").await.calls.is_empty());

    assert_eq!(other.get(&format!("/v1/calls/{id}")).await.code(), ErrorCode::InvocationNotFound);
    assert!(list(&other, "").await.calls.is_empty());
}

#[tokio::test]
async fn busy_node_records_some_calls_and_all_that_ask_for_an_explanation() {
    let node = TestNode::builder().set("traces.recent_calls_per_s", 1).start().await;
    node.deploy("hello", function("hello")).await;
    let start = std::time::Instant::now();
    for _ in 0..50 {
        node.get("/fn/hello/").await.ok();
    }
    let call = node.request(reqwest::Method::GET, "/fn/hello/").header("weir-explain", "1");
    let explained = node.send(call.header(REQUEST_ID_HEADER, "mine")).await.ok();
    assert_eq!(explained.header(REQUEST_ID_HEADER), Some("mine"));
    timeline(&node, "mine").await;
    let recorded = list(&node, "limit=500").await.calls.len() as u64;
    let allowed = start.elapsed().as_secs() + 3;
    assert!((2..=allowed).contains(&recorded), "{recorded} of at most {allowed}");

    let node = TestNode::builder().set("traces.recent_calls_max", 0).start().await;
    node.deploy("hello", function("hello")).await;
    let call = node.request(reqwest::Method::GET, "/fn/hello/").header("weir-explain", "1");
    node.send(call).await.ok();
    assert!(list(&node, "").await.calls.is_empty(), "the node records calls although it may keep none");
}

#[tokio::test]
async fn attempts_of_asynchronous_invocations_have_the_id_of_the_request() {
    let node = TestNode::start().await;
    node.deploy("hello", function("hello")).await;
    let call = node.request(reqwest::Method::GET, "/fn/hello/").header("prefer", "respond-async");
    let accepted: Value = node.send(call).await.json();
    let shown = timeline(&node, accepted["request_id"].as_str().unwrap()).await;
    assert!(shown.spans.iter().any(|span| span.name == "guest"), "{shown:?}");
}
