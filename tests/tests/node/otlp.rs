//! Export of traces and metrics to an OpenTelemetry collector.

use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use reqwest::Method;
use serde_json::json;
use weir_tests::{
    CollectedSpan, Collector, NodeBuilder, Receiver, TestNode, eventually, function, model, write_private,
};
use weir_types::api::{Invocation, REQUEST_ID_HEADER};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// A node that sends the spans of sampled requests to `collector` at once.
fn node(collector: &Collector) -> NodeBuilder {
    TestNode::builder()
        .set("traces.sample_ratio", 0)
        .set("traces.otlp.endpoint", collector.url())
        .set("traces.otlp.spans_interval_ms", 20)
}

/// Sends a sampled request.
async fn call(node: &TestNode, method: Method, path: &str, headers: &[(&str, &str)]) -> u16 {
    let request = node.request(method, path).header("traceparent", format!("00-{TRACE}-{PARENT}-01"));
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let answer = request.body(vec![0; 16]).send().await.unwrap();
    let status = answer.status().as_u16();
    answer.bytes().await.unwrap();
    status
}

/// Waits for the trace of the call with this request id: for its span with this name, and for the
/// parents of all of its spans.
async fn trace(collector: &Collector, id: &str, name: &str) -> Vec<CollectedSpan> {
    let whole = async || {
        let spans = collector.trace_of(id);
        let has = |id: &str| id == PARENT || spans.iter().any(|span| span.id() == id);
        let is_whole = spans.iter().any(|span| span.name() == name)
            && spans.iter().any(|span| span.name() == "reply")
            && spans.iter().all(|span| has(&span.parent_id()));
        is_whole.then_some(spans)
    };
    eventually("the trace in the collector", whole).await
}

fn span<'s>(spans: &'s [CollectedSpan], name: &str) -> &'s CollectedSpan {
    let mut named = spans.iter().filter(|span| span.name() == name);
    let found = named.next().unwrap_or_else(|| panic!("{name} is not in {spans:#?}"));
    assert!(named.next().is_none(), "{name} is twice in {spans:#?}");
    found
}

#[tokio::test]
async fn spans_of_a_call_that_runs_a_model_form_a_tree_in_the_collector() {
    let collector = Collector::start().await;
    let node = node(&collector).start().await;
    node.push_model("m", 1, model("good/matmul.onnx")).await;
    node.deploy_with("infer", "models=m", function("infer")).await;
    let id = [(REQUEST_ID_HEADER, "one")];
    assert_eq!(call(&node, Method::POST, "/fn/infer/m?shape=1,4", &id).await, 200);
    let spans = trace(&collector, "one", "POST /fn/infer").await;
    let root = span(&spans, "POST /fn/infer");
    assert_eq!((root.trace_id(), root.parent_id()), (TRACE.to_owned(), PARENT.to_owned()));
    assert_eq!(root.span.kind, SpanKind::Server as i32);
    for (key, value) in [
        ("http.request.method", "POST"),
        ("http.route", "/fn/infer"),
        ("url.path", "/fn/infer/m"),
        ("http.response.status_code", "200"),
        ("faas.name", "infer"),
        ("faas.version", "1"),
        ("faas.coldstart", "true"),
        ("weir.function", "infer"),
        ("weir.tenant", "default"),
    ] {
        assert_eq!(root.attribute(key), Some(value), "{key} in {root:#?}");
    }
    let guest = span(&spans, "guest");
    for (name, parent) in [
        ("queue", root),
        ("fetch", root),
        ("instantiate", root),
        ("guest", root),
        ("reply", root),
        ("model_load", guest),
        ("model_run", guest),
    ] {
        let child = span(&spans, name);
        assert_eq!((child.trace_id(), child.parent_id()), (root.trace_id(), parent.id()), "{name}");
        let time = |span: &CollectedSpan| (span.span.start_time_unix_nano, span.span.end_time_unix_nano);
        assert!(time(parent).0 <= time(child).0 && time(child).0 < time(child).1, "{name} in {spans:#?}");
        assert!(time(child).1 <= time(root).1, "{name} in {spans:#?}");
    }
    assert_eq!(span(&spans, "model_run").attribute("weir.model"), Some("m"));
    assert_eq!(spans.len(), 8, "{spans:#?}");
    for (key, value) in [("service.name", "weir"), ("service.version", env!("CARGO_PKG_VERSION"))] {
        assert_eq!(root.resource.get(key).map(String::as_str), Some(value), "{:?}", root.resource);
    }
    for key in ["service.instance.id", "host.name"] {
        assert!(root.resource.contains_key(key), "{key} is not in {:?}", root.resource);
    }
    assert!(!node.log().contains("weir::invocation"), "spans go either to a collector or to the log");
    let counted = async || (node.metric("weir_otlp_spans_exported_total", "").await == 8.0).then_some(());
    eventually("the count of exported spans", counted).await;
}

#[tokio::test]
async fn failure_by_the_function_is_an_error_of_its_span() {
    let collector = Collector::start().await;
    let node = node(&collector).start().await;
    node.deploy("misbehave", function("misbehave")).await;
    let id = [(REQUEST_ID_HEADER, "trap")];
    assert_eq!(call(&node, Method::GET, "/fn/misbehave/trap", &id).await, 500);
    let spans = trace(&collector, "trap", "GET /fn/misbehave").await;
    let root = span(&spans, "GET /fn/misbehave");
    let status = root.span.status.as_ref().unwrap();
    assert_eq!((status.code, &*status.message), (StatusCode::Error as i32, "guest-trap"));
    assert_eq!(root.attribute("error.type"), Some("guest-trap"));
    assert_eq!(root.attribute("http.response.status_code"), Some("500"));
}

#[tokio::test]
async fn guest_and_its_requests_continue_the_trace() {
    let collector = Collector::start().await;
    let target = Receiver::start(&[]).await;
    let node = node(&collector).start().await;
    node.deploy_with("fetch", "outbound_hosts=*", function("fetch")).await;
    let path = format!("/fn/fetch?{}", target.url("/next"));
    let headers = [(REQUEST_ID_HEADER, "added"), ("tracestate", "vendor=7")];
    assert_eq!(call(&node, Method::GET, &path, &headers).await, 200);
    let own = format!("00-{TRACE}-1111111111111111-01");
    let headers = [(REQUEST_ID_HEADER, "kept"), ("send-traceparent", &own)];
    assert_eq!(call(&node, Method::GET, &path, &headers).await, 200);
    let [added, kept] = &target.received()[..] else { panic!("two requests were sent") };
    let all_ended = async || {
        let spans = collector.trace_of("added");
        (spans.iter().filter(|span| span.name() == "GET /fn/fetch").count() == 2).then_some(spans)
    };
    let spans = eventually("the traces of both calls", all_ended).await;
    let parents = |name: &str| {
        let named = spans.iter().filter(|span| span.name() == name);
        named.map(|span| format!("00-{TRACE}-{}-01", span.id())).collect::<Vec<_>>()
    };
    // The guest's request has the guest's span as its parent, and the receiver has the request's.
    assert!(parents("guest").contains(&added.header("seen-traceparent").unwrap().to_owned()));
    assert!(parents("GET").contains(&added.header("traceparent").unwrap().to_owned()));
    assert_eq!(added.header("tracestate"), Some("vendor=7"));
    assert_eq!(kept.header("traceparent"), Some(&*own));
    for span in spans.iter().filter(|span| span.name() == "GET") {
        assert!(parents("guest").contains(&format!("00-{TRACE}-{}-01", span.parent_id())));
        assert_eq!(span.span.kind, SpanKind::Client as i32);
        assert_eq!(span.attribute("http.response.status_code"), Some("200"));
        assert_eq!(span.attribute("server.address"), Some("127.0.0.1"));
    }
}

#[tokio::test]
async fn guest_of_an_unsampled_call_sees_the_clients_headers() {
    let collector = Collector::start().await;
    let target = Receiver::start(&[]).await;
    let node = node(&collector).start().await;
    node.deploy_with("fetch", "outbound_hosts=*", function("fetch")).await;
    let unsampled = format!("00-{TRACE}-{PARENT}-00");
    let request = node.request(Method::GET, &format!("/fn/fetch?{}", target.url("/")));
    assert!(request.header("traceparent", &unsampled).send().await.unwrap().status().is_success());
    let [received] = &target.received()[..] else { panic!("one request was sent") };
    assert_eq!(received.header("seen-traceparent"), Some(&*unsampled));
    assert_eq!(received.header("traceparent"), None);
}

#[tokio::test]
async fn attempts_of_an_asynchronous_invocation_continue_the_trace_of_its_acceptance() {
    let collector = Collector::start().await;
    let node = node(&collector).start().await;
    node.deploy("hello", function("hello")).await;
    let headers = [(REQUEST_ID_HEADER, "later"), ("prefer", "respond-async, wait=30")];
    assert_eq!(call(&node, Method::GET, "/fn/hello", &headers).await, 202);
    let done = async || {
        let spans = collector.trace_of("later");
        spans.iter().any(|span| span.name() == "GET /fn/hello").then_some(spans)
    };
    let spans = eventually("the attempt's span", done).await;
    let accepted = span(&spans, "accept hello");
    assert_eq!((accepted.parent_id(), accepted.span.kind), (PARENT.to_owned(), SpanKind::Producer as i32));
    assert_eq!(span(&spans, "GET /fn/hello").parent_id(), accepted.id());
    let list: serde_json::Value = node.get("/v1/invocations").await.ok().json();
    let _: Vec<Invocation> = serde_json::from_value(list["invocations"].clone()).unwrap();
}

#[tokio::test]
async fn http_protocol_sends_headers_from_a_private_file() {
    let collector = Collector::start().await;
    let folder = tempfile::tempdir().unwrap();
    let headers = folder.path().join("headers");
    write_private(&headers, "authorization: Bearer secret\n");
    let node = node(&collector)
        .set("traces.otlp.protocol", "http/protobuf")
        .set("traces.otlp.headers_file", headers.display())
        .set("traces.otlp.resource", "{ \"deployment.environment.name\" = \"test\" }")
        .start()
        .await;
    node.deploy("hello", function("hello")).await;
    call(&node, Method::GET, "/fn/hello", &[(REQUEST_ID_HEADER, "http")]).await;
    let spans = trace(&collector, "http", "GET /fn/hello").await;
    let root = span(&spans, "GET /fn/hello");
    assert_eq!(root.resource["deployment.environment.name"], "test");
    assert_eq!(collector.headers()["authorization"], "Bearer secret");
    assert!(!node.log().contains("secret"));
}

#[tokio::test]
async fn standard_variables_configure_the_export_and_a_shutdown_flushes_it() {
    let collector = Collector::start().await;
    let node = TestNode::builder()
        .set("traces.sample_ratio", 1)
        .set("traces.otlp.spans_interval_ms", 600_000)
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url())
        .env("OTEL_SERVICE_NAME", "edge")
        .start()
        .await;
    node.deploy("hello", function("hello")).await;
    node.get("/fn/hello").await.ok();
    node.stop().await;
    let spans = collector.spans();
    assert_eq!(span(&spans, "GET /fn/hello").resource["service.name"], "edge");
    assert!(collector.metric("weir_invocations_total").is_some(), "the last metrics are sent, too");
}

#[tokio::test]
async fn metrics_are_sent_at_an_interval() {
    let collector = Collector::start().await;
    let node = node(&collector).set("traces.otlp.metrics_interval_ms", 100).start().await;
    node.deploy("hello", function("hello")).await;
    for _ in 0..3 {
        node.get("/fn/hello").await.ok();
    }
    let counted = async || {
        let Data::Sum(sum) = collector.metric("weir_invocations_total")?.data? else { return None };
        let point = sum.data_points.iter().find(|point| point.value == Some(Value::AsDouble(3.0)))?.clone();
        (sum.is_monotonic && point.start_time_unix_nano < point.time_unix_nano).then_some(point)
    };
    let point = eventually("the count of invocations in the collector", counted).await;
    let labels = json!(format!("{:?}", point.attributes)).to_string();
    assert!(labels.contains("hello"), "{labels}");
}

#[tokio::test]
async fn spans_wait_for_a_busy_collector() {
    let collector = Collector::start().await;
    collector.set_busy(true);
    let node = node(&collector).start().await;
    node.deploy("hello", function("hello")).await;
    call(&node, Method::GET, "/fn/hello", &[(REQUEST_ID_HEADER, "busy")]).await;
    let failed =
        async || (node.metric("weir_otlp_export_failures_total", "traces").await > 0.0).then_some(());
    eventually("a refused request", failed).await;
    assert!(collector.spans().is_empty());
    collector.set_busy(false);
    trace(&collector, "busy", "GET /fn/hello").await;
    assert_eq!(node.metric("weir_otlp_spans_dropped_total", "unsent").await, 0.0);
}

#[tokio::test]
async fn unreachable_collector_costs_spans_and_no_calls() {
    // Bound and not listened on: connections are refused.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    let node = TestNode::builder()
        .set("traces.sample_ratio", 1)
        .set("traces.otlp.endpoint", format!("http://{address}"))
        .set("traces.otlp.queue_bytes_max", 40_000)
        .set("traces.otlp.metrics_interval_ms", 0)
        .set("traces.otlp.spans_interval_ms", 20)
        .start()
        .await;
    node.deploy("hello", function("hello")).await;
    let dropped = async || {
        for _ in 0..50 {
            node.get("/fn/hello").await.ok();
        }
        (node.metric("weir_otlp_spans_dropped_total", "queue").await > 0.0).then_some(())
    };
    eventually("dropped spans", dropped).await;
    let repeated =
        async || (node.metric("weir_otlp_export_failures_total", "traces").await >= 2.0).then_some(());
    eventually("a second attempt", repeated).await;
    let log = node.log();
    let warnings = log.lines().filter(|line| line.contains("the OpenTelemetry collector failed"));
    assert_eq!(warnings.count(), 1, "{log}");
}

#[tokio::test]
async fn unusable_endpoint_is_reported_at_the_start() {
    let start = TestNode::builder().set("traces.otlp.endpoint", "collector:4317").try_start().await;
    let log = start.err().unwrap();
    assert!(log.contains("traces.otlp.endpoint") && log.contains("http://127.0.0.1:4317"), "{log}");
}
