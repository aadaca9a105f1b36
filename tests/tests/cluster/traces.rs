//! The trace of a call that several nodes run.

use reqwest::Method;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use weir_tests::{CollectedSpan, Collector, Etcd, TestCluster, eventually, function, has_function};
use weir_types::api::REQUEST_ID_HEADER;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// Functions in three languages, of which the last runs a model, and another model.
const WORKFLOW: &str = r#"
inputs = { image = "UINT8[rows, columns, 3]" }
outputs = { y = "tail" }
[steps.rust]
run = "echo-tensor"
inputs = { image = "image" }
outputs = { image = "UINT8[rows, columns, 3]" }
[steps.python]
run = "echo-tensor-py"
inputs = { image = "rust" }
outputs = { image = "UINT8[rows, columns, 3]" }
[steps.typescript]
run = "see-image-ts"
inputs = { image = "python" }
outputs = { means = "FP32[1, 3, rows, columns]" }
[steps.tail]
run = "tail"
inputs = { x = "typescript" }
"#;

/// Fake model of planes, of which a node has room for one.
fn planes(input: &str, output: &str) -> String {
    let port = |name: &str| json!([{ "name": name, "datatype": "FP32", "shape": [1, 3, null, null] }]);
    json!({
        "load_time_ms": 1_000,
        "run_time_ms": { "1": 1 },
        "resident_bytes": 1_000,
        "signature": { "inputs": port(input), "outputs": port(output) },
    })
    .to_string()
}

/// A cluster of two nodes with the workflow. The function in TypeScript needs a model of the second
/// node, and the last step a model of the first.
async fn start(collector: &Collector) -> TestCluster {
    let cluster = TestCluster::builder()
        .set("models.backend", "fake")
        .set("models.memory_bytes_max", 1_500)
        .set("traces.sample_ratio", 1)
        .set("traces.otlp.endpoint", collector.url())
        .set("traces.otlp.spans_interval_ms", 20)
        .start(2)
        .await;
    let [one, other] = &cluster.nodes[..] else { panic!("there are two") };
    one.put("/v1/models/channels/versions/1", planes("image", "means")).await.ok();
    one.put("/v1/models/tail/versions/1", planes("x", "y")).await.ok();
    for name in ["echo-tensor", "echo-tensor-py"] {
        one.deploy(name, function(name)).await;
    }
    one.deploy_with("see-image-ts", "models=channels", function("see-image-ts")).await;
    for name in ["echo-tensor", "echo-tensor-py", "see-image-ts"] {
        cluster.all_know(name).await;
    }
    one.put("/v1/workflows/w", WORKFLOW).await.ok();
    let heard = async || other.get("/v1/workflows/w").await.is_ok().then_some(());
    eventually("the news of a deploy", heard).await;
    cluster.settle().await;
    for (node, model) in [(one, "tail"), (other, "channels")] {
        node.post(&format!("/v2/repository/models/{model}/load"), "{}").await.ok();
    }
    cluster
}

/// Names of the nodes that sent spans with this name.
fn nodes(spans: &[CollectedSpan], name: &str) -> BTreeSet<String> {
    let named = spans.iter().filter(|span| span.name() == name);
    named.map(|span| span.resource["service.instance.id"].clone()).collect()
}

#[tokio::test]
async fn trace_of_a_workflow_over_two_nodes_and_three_languages_is_complete() {
    if !Etcd::is_installed() || ["echo-tensor-py", "see-image-ts"].iter().any(|name| !has_function(name)) {
        return eprintln!("skipped: etcd or a function is missing; `cargo xtask setup` brings them");
    }
    let collector = Collector::start().await;
    let cluster = start(&collector).await;
    let image =
        json!({ "name": "image", "datatype": "UINT8", "shape": [1, 2, 3], "data": [0, 1, 2, 3, 4, 5] });
    let request = cluster.nodes[0].request(Method::POST, "/v2/models/w/infer");
    let request = request.header("traceparent", format!("00-{TRACE}-{PARENT}-01"));
    let request = request.header(REQUEST_ID_HEADER, "chain").body(json!({ "inputs": [image] }).to_string());
    let answer = request.send().await.unwrap();
    assert!(answer.status().is_success(), "{}", answer.text().await.unwrap());
    let answer: Value = answer.json().await.unwrap();
    assert_eq!(answer["outputs"][0]["shape"], json!([1, 3, 1, 2]));

    let complete = async || {
        let spans = collector.trace_of("chain");
        let has = |id: &str| id == PARENT || spans.iter().any(|span| span.id() == id);
        let ended = spans.iter().any(|span| span.name() == "POST /v2/models/w/infer");
        (ended && spans.iter().all(|span| has(&span.parent_id()))).then_some(spans)
    };
    let spans = eventually("the whole trace in the collector", complete).await;
    assert!(spans.iter().all(|span| span.trace_id() == TRACE));
    for step in ["step rust", "step python", "step typescript", "step tail"] {
        assert_eq!(nodes(&spans, step).len(), 1, "{step} in {spans:#?}");
    }
    let first = nodes(&spans, "POST /v2/models/w/infer");
    let second = nodes(&spans, "POST /v2/models/see-image-ts/infer");
    assert!(first.len() == 1 && second.len() == 1 && first != second, "{first:?} {second:?} {spans:#?}");
    let count = |name: &str| spans.iter().filter(|span| span.name() == name).count();
    assert_eq!(count("guest"), 3, "one guest span for each language: {spans:#?}");
    assert_eq!(count("model_run"), 2, "{spans:#?}");
    let forwarded = spans.iter().find(|span| span.name() == "POST /v2/models/see-image-ts/infer").unwrap();
    let above = spans.iter().find(|span| span.id() == forwarded.parent_id()).unwrap();
    let step = spans.iter().find(|span| span.id() == above.parent_id()).unwrap();
    assert_eq!((above.name(), step.name()), ("forward", "step typescript"));
    assert_eq!(step.attribute("weir.function"), Some("see-image-ts"));
}

#[tokio::test]
async fn forwarded_call_without_sampling_has_no_spans_on_any_node() {
    if !Etcd::is_installed() {
        return;
    }
    let collector = Collector::start().await;
    // The second call of each node would be sampled, if the nodes chose separately.
    let builder = TestCluster::builder()
        .set("traces.sample_ratio", 0.5)
        .set("traces.otlp.endpoint", collector.url())
        .set("traces.otlp.spans_interval_ms", 20);
    let cluster = super::one_model_in(builder, 2, "", 1).await;
    let holder = async || {
        cluster.nodes[0].post(super::INFER, vec![0; 4]).await.ok();
        cluster.holder("m:1").await
    };
    let holder = eventually("a node with the model", holder).await;
    let called = &cluster.nodes[1 - holder];
    for call in 0..10 {
        let request = called.request(Method::POST, super::INFER).body(vec![0; 4]);
        let answer = request.header(REQUEST_ID_HEADER, format!("call-{call}")).send().await.unwrap();
        assert!(answer.status().is_success());
    }
    let is_ours = |span: &CollectedSpan| {
        span.name() == "POST /fn/infer" && span.attribute("weir.request_id").unwrap().starts_with("call-")
    };
    let ended = async || {
        let ours: Vec<_> = collector.spans().into_iter().filter(is_ours).collect();
        let has_parent = |span: &&CollectedSpan| !span.parent_id().is_empty();
        (ours.iter().filter(has_parent).count() >= 5).then_some(ours)
    };
    let ours = eventually("the spans of forwarded calls", ended).await;
    let roots = ours.iter().filter(|span| span.parent_id().is_empty());
    let nodes: BTreeSet<_> = roots.map(|span| span.resource["service.instance.id"].clone()).collect();
    assert_eq!(nodes.len(), 1, "only the node that received the call samples it: {ours:#?}");
}
