//! Health, status, metrics and traces of a node.

use reqwest::Method;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use weir_tests::{TestNode, eventually, function, model};
use weir_types::api::REQUEST_ID_HEADER;

#[tokio::test]
async fn health_readiness_and_status_answer() {
    let node = TestNode::start().await;
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
    let node = TestNode::start().await;
    node.deploy("hello", function("hello")).await;
    for _ in 0..5 {
        node.get("/fn/hello").await.ok();
    }
    eventually("the count of the ended calls", async || {
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
        let count = node.metric("weir_phase_seconds_count", &format!("phase=\"{phase}\"")).await;
        assert_eq!(count, 5.0, "{phase}");
    }
    assert!(node.metric("weir_guest_cpu_seconds_total", "function=\"hello\"").await > 0.0);
    assert_eq!(node.metric("weir_functions", "").await, 1.0);
}

/// Each type in Prometheus' format is that of the samples after it, and OpenMetrics is for clients
/// that ask for it.
#[tokio::test]
async fn metrics_have_the_text_format_that_the_client_accepts() {
    let node = TestNode::start().await;
    node.deploy("hello", function("hello")).await;
    node.get("/fn/hello").await.ok();
    let plain = node.get("/metrics").await.ok();
    assert_eq!(plain.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let mut family = "";
    let mut kind = "";
    let mut families = BTreeSet::new();
    for line in plain.text().lines() {
        if let Some(named) = line.strip_prefix("# TYPE ") {
            (family, kind) = named.split_once(' ').unwrap();
            assert!(families.insert(family), "{family} is declared twice");
        } else if let Some(named) = line.strip_prefix("# HELP ") {
            assert!(named.split_once(' ').is_some_and(|(_, help)| !help.is_empty()), "{line}");
        } else {
            let (sample, value) = line.rsplit_once(' ').unwrap();
            let name = sample.split('{').next().unwrap();
            let suffixes: &[&str] = if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            let is_of_family = suffixes.iter().any(|suffix| name == format!("{family}{suffix}"));
            assert!(is_of_family && value.parse::<f64>().is_ok(), "{line} of the {kind} {family}");
            assert!(kind != "counter" || name.ends_with("_total"), "{line}");
        }
    }
    assert!(families.contains("weir_invocations_total") && families.contains("weir_phase_seconds"));

    let request = node.request(Method::GET, "/metrics").header("accept", "application/openmetrics-text");
    let open = request.send().await.unwrap();
    assert!(open.headers()["content-type"].to_str().unwrap().starts_with("application/openmetrics-text"));
    assert!(open.text().await.unwrap().ends_with("# EOF\n"));
}

/// Log lines of invocation spans.
fn spans(node: &TestNode) -> Vec<Value> {
    let lines = node.log().lines().filter_map(|line| serde_json::from_str(line).ok()).collect::<Vec<Value>>();
    lines.into_iter().filter(|line| line["target"] == "weir::invocation").collect()
}

/// Spans of the request `id` by phase, after the invocation's end.
async fn trace(node: &TestNode, id: &str) -> BTreeMap<String, Value> {
    let mine = || spans(node).into_iter().filter(|span| span["request_id"] == id);
    eventually("the end of the trace", async || mine().find(|span| span["phase"] == "invocation")).await;
    mine().map(|span| (span["phase"].as_str().unwrap().to_owned(), span)).collect()
}

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

async fn call(node: &TestNode, path: &str, id: &str, traceparent: &str) {
    let request = node.request(Method::POST, path).body(vec![0; 16]);
    let answer =
        request.header("traceparent", traceparent).header(REQUEST_ID_HEADER, id).send().await.unwrap();
    assert!(answer.status().is_success(), "{traceparent:?} must be used or ignored");
    assert_eq!(answer.headers()[REQUEST_ID_HEADER], id);
    // Read the body: an early disconnect would cancel the guest.
    answer.bytes().await.unwrap();
}

#[tokio::test]
async fn sampled_trace_is_logged_with_a_span_per_phase() {
    let node = TestNode::builder().set("traces.sample_ratio", 0).start().await;
    node.push_model("m", 1, model("good/matmul.onnx")).await;
    node.deploy_with("infer", "models=m", function("infer")).await;
    let sampled = format!("00-{TRACE}-{PARENT}-01");
    call(&node, "/fn/infer/m?shape=1,4", "cold", &sampled).await;
    call(&node, "/fn/infer/m?shape=1,4", "warm", &sampled).await;
    let cold = trace(&node, "cold").await;
    let warm = trace(&node, "warm").await;
    let phases = |trace: &BTreeMap<String, Value>| trace.keys().cloned().collect::<Vec<_>>();
    assert_eq!(
        phases(&cold),
        ["fetch", "guest", "instantiate", "invocation", "model_load", "model_run", "queue", "reply"]
    );
    assert_eq!(phases(&warm), ["guest", "instantiate", "invocation", "model_run", "queue", "reply"]);
    for trace in [&cold, &warm] {
        let whole = &trace["invocation"];
        assert_eq!(whole["parent_id"], PARENT);
        let duration_ns = |span: &Value| span["duration_ns"].as_u64().unwrap();
        for (phase, span) in trace {
            assert_eq!((&span["trace_id"], &span["function"]), (&TRACE.into(), &"infer".into()), "{span}");
            assert_eq!(span["span_id"].as_str().unwrap().len(), 16, "{span}");
            // The guest loads and runs its models.
            let above = if phase.starts_with("model_") { &trace["guest"] } else { whole };
            assert!(phase == "invocation" || span["parent_id"] == above["span_id"], "{span}");
            assert!((1..=duration_ns(whole)).contains(&duration_ns(span)), "{span} in {whole}");
        }
        // The guest mostly waits for its model; other phases are not part of the guest's time.
        assert!(duration_ns(&trace["guest"]) >= duration_ns(&trace["model_run"]));
    }
    let ids: BTreeSet<_> =
        cold.values().chain(warm.values()).map(|span| span["span_id"].to_string()).collect();
    assert_eq!(ids.len(), cold.len() + warm.len(), "two spans share an id");
}

#[tokio::test]
async fn invalid_or_unsampled_trace_is_ignored() {
    let node = TestNode::builder().set("traces.sample_ratio", 0).start().await;
    node.deploy("hello", function("hello")).await;
    for bad in [
        "",
        "00-xyz",
        &format!("00-{TRACE}-{PARENT}-00"),
        &format!("ff-{TRACE}-{PARENT}-01"),
        "00-00000000000000000000000000000000-0000000000000000-01",
    ] {
        call(&node, "/fn/hello", "ignored", bad).await;
    }
    call(&node, "/fn/hello", "last", &format!("00-{TRACE}-{PARENT}-01")).await;
    trace(&node, "last").await;
    assert!(spans(&node).iter().all(|span| span["request_id"] == "last"), "{:?}", spans(&node));
}

#[tokio::test]
async fn sample_ratio_traces_a_share_of_invocations() {
    let node = TestNode::builder().set("traces.sample_ratio", 0.5).start().await;
    node.deploy("hello", function("hello")).await;
    for _ in 0..10 {
        node.get("/fn/hello").await.ok();
    }
    let roots = eventually("five traces", async || {
        let roots: Vec<_> = spans(&node).into_iter().filter(|span| span["phase"] == "invocation").collect();
        (roots.len() >= 5).then_some(roots)
    });
    let traces: BTreeSet<_> = roots.await.iter().map(|span| span["trace_id"].to_string()).collect();
    assert_eq!(traces.len(), 5);
    assert!(traces.iter().all(|id| id.len() == 34), "{traces:?}");
}
