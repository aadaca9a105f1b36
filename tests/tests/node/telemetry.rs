//! What a node tells about itself and its functions.

use reqwest::Method;
use weir_tests::{Node, function};
use weir_types::api::REQUEST_ID_HEADER;

#[tokio::test]
async fn health_readiness_and_status_answer() {
    let node = Node::start().await;
    assert_eq!(node.get("/healthz").await.ok().text(), "ok\n");
    assert!(node.get("/readyz").await.is_ok());
    assert!(node.get("/").await.ok().text().contains("/v1/functions"));
    node.deploy("hello", function("hello")).await;
    let status = node.status().await;
    assert_eq!((status.state.as_str(), status.functions, status.models), ("ready", 1, 0));
    assert_eq!((status.running, status.queued), (0, 0));
    assert_eq!(status.devices.len(), 1);
    assert!(status.devices[0].capacity_bytes > 0 && status.devices[0].slots > 0);
}

#[tokio::test]
async fn invocations_are_counted_by_function_outcome_and_phase() {
    let node = Node::start().await;
    node.deploy("hello", function("hello")).await;
    for _ in 0..5 {
        node.get("/fn/hello").await.ok();
    }
    weir_tests::eventually("the count of what has ended", async || {
        let count = node.metric("weir_invocations_total", "function=\"hello\"").await;
        (count == 5.0).then_some(())
    })
    .await;
    assert_eq!(node.metric("weir_cold_starts_total", "cause=\"component\"").await, 1.0);
    assert_eq!(
        node.metric("weir_invocation_seconds_count", "tenant=\"default\",function=\"hello\"").await,
        5.0
    );
    for phase in ["queue", "instantiate", "guest", "reply"] {
        let count = node.metric(&format!("weir_phase_{phase}_seconds_count"), "").await;
        assert_eq!(count, 5.0, "{phase}");
    }
    assert!(node.metric("weir_guest_cpu_seconds_total", "function=\"hello\"").await > 0.0);
    assert_eq!(node.metric("weir_functions", "").await, 1.0);
}

#[tokio::test]
async fn a_trace_of_the_client_is_taken_up() {
    let node = Node::start().await;
    node.deploy("hello", function("hello")).await;
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let request = node
        .request(Method::GET, "/fn/hello")
        .header("traceparent", format!("00-{trace}-00f067aa0ba902b7-01"));
    assert!(request.header(REQUEST_ID_HEADER, "traced").send().await.unwrap().status().is_success());
    for bad in [
        "",
        "00-xyz",
        "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-00000000000000000000000000000000-0000000000000000-01",
    ] {
        let request = node.request(Method::GET, "/fn/hello").header("traceparent", bad);
        assert!(request.send().await.unwrap().status().is_success(), "{bad:?} must be ignored");
    }
}
