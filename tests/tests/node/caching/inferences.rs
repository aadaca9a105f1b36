//! Response caching for inferences of models and tensor functions, in all request formats.

use super::KEPT;
use reqwest::Method;
use serde_json::{Value, json};
use weir_tests::{Answer, TestClient, TestNode, eventually, function};
use weir_types::ErrorCode;

const HEADER: &str = "inference-header-content-length";

/// Model of the fake backend that returns its inputs.
fn fake(run_time_ms: u64) -> Vec<u8> {
    let port = |name: &str| json!({"name": name, "datatype": "FP32", "shape": [null, 2]});
    let signature = json!({"inputs": [port("x"), port("y")], "outputs": [port("a"), port("b")]});
    json!({"run_time_ms": {"1": run_time_ms}, "resident_bytes": 1_000, "signature": signature})
        .to_string()
        .into()
}

async fn push(node: &TestNode, name: &str, query: &str, run_time_ms: u64) {
    node.put(&format!("/v1/models/{name}/versions/1?{query}"), fake(run_time_ms)).await.ok();
}

fn inputs(number: f64) -> Value {
    let input =
        |name: &str| json!({"name": name, "datatype": "FP32", "shape": [1, 2], "data": [number, 0.5]});
    json!({"inputs": [input("x"), input("y")]})
}

async fn infer(client: &TestClient, name: &str, asked: &Value, headers: &[(&str, &str)]) -> Answer {
    let request = client.request(Method::POST, &format!("/v2/models/{name}/infer")).body(asked.to_string());
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let headers = response.headers().clone();
    Answer { status, headers, body: response.bytes().await.unwrap() }
}

/// Total number of model runs.
async fn runs(node: &TestNode) -> f64 {
    node.metric("nv_inference_exec_count", "").await
}

#[tokio::test]
async fn equal_inferences_in_json_and_binary_run_once() {
    let node = TestNode::builder().set("models.backend", "fake").start().await;
    push(&node, "m", KEPT, 0).await;
    let first = infer(&node, "m", &inputs(1.0), &[]).await.ok();
    assert_eq!(first.header("weir-cache"), Some("miss"));
    let again = infer(&node, "m", &inputs(1.0), &[]).await.ok();
    assert_eq!((&again.body, again.header("weir-cache")), (&first.body, Some("hit")));
    assert!(again.header("age").is_some());

    // Reordered inputs in binary form with another id are the same inference.
    let bytes: Vec<u8> = [1.0_f32, 0.5].iter().flat_map(|value| value.to_le_bytes()).collect();
    let input = |name: &str| json!({"name": name, "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}});
    let json = json!({"id": "mine", "inputs": [input("y"), input("x")]}).to_string();
    let body = [json.as_bytes(), &bytes, &bytes].concat();
    let binary = node.request(Method::POST, "/v2/models/m/infer").header(HEADER, json.len()).body(body);
    let binary = binary.send().await.unwrap();
    assert_eq!(binary.headers()["weir-cache"], "hit");
    let binary: Value = binary.json().await.unwrap();
    assert_eq!((&binary["id"], &binary["outputs"]), (&json!("mine"), &first.json::<Value>()["outputs"]));
    assert_eq!(runs(&node).await, 1.0);

    // Different inputs or selected outputs make a different inference.
    let mut some = inputs(1.0);
    some["outputs"] = json!([{"name": "b"}]);
    for asked in [inputs(2.0), some] {
        assert_eq!(infer(&node, "m", &asked, &[]).await.ok().header("weir-cache"), Some("miss"));
        assert_eq!(infer(&node, "m", &asked, &[]).await.ok().header("weir-cache"), Some("hit"));
    }
    let anew = infer(&node, "m", &inputs(1.0), &[("cache-control", "no-cache")]).await.ok();
    assert_eq!(anew.header("weir-cache"), Some("miss"));
    assert_eq!(
        infer(&node, "m", &inputs(1.0), &[("cache-control", "no-store")]).await.ok().header("weir-cache"),
        None
    );
    assert_eq!(runs(&node).await, 5.0);

    // Statistics use the names of Triton.
    let stats: Value = node.get("/v2/models/m/stats").await.ok().json();
    let stats = &stats["model_stats"][0];
    assert_eq!(
        (&stats["execution_count"], &stats["inference_stats"]["success"]["count"]),
        (&json!(5), &json!(9))
    );
    let cached = |name: &str| stats["inference_stats"][name]["count"].clone();
    assert_eq!((cached("cache_hit"), cached("cache_miss")), (json!(4), json!(4)));
    assert_eq!(node.metric("nv_cache_num_hits_per_model", "model=\"m\"").await, 4.0);
}

#[tokio::test]
async fn repushed_version_has_new_cache_entries_and_errors_are_not_cached() {
    let node = TestNode::builder().set("models.backend", "fake").start().await;
    push(&node, "m", KEPT, 0).await;
    infer(&node, "m", &inputs(1.0), &[]).await.ok();
    node.delete("/v1/models/m").await.ok();
    push(&node, "m", KEPT, 0).await;
    assert_eq!(infer(&node, "m", &inputs(1.0), &[]).await.ok().header("weir-cache"), Some("miss"));
    push(&node, "plain", "", 0).await;
    for _ in 0..2 {
        assert_eq!(infer(&node, "plain", &inputs(1.0), &[]).await.ok().header("weir-cache"), None);
        let wrong = infer(&node, "m", &json!({"inputs": []}), &[]).await;
        assert_eq!((wrong.status, wrong.code()), (400, ErrorCode::InvalidRequest));
    }
    assert_eq!(node.metric("weir_response_cache_hits_total", "").await, 0.0);
}

#[tokio::test]
async fn concurrent_equal_inferences_run_once() {
    let node = TestNode::builder().set("models.backend", "fake").set("models.slots", 1).start().await;
    push(&node, "first", "", 500).await;
    push(&node, "m", KEPT, 0).await;
    let call = |name: &'static str| {
        let client = node.client().clone();
        tokio::spawn(async move { infer(&client, name, &inputs(1.0), &[]).await.ok() })
    };
    // The other calls arrive during this run.
    let first = call("first");
    eventually("the run", async || (node.status().await.running == 1).then_some(())).await;
    let others: Vec<_> = (0..8).map(|_| call("m")).collect();
    first.await.unwrap();
    let mut hits = 0;
    for other in others {
        hits += usize::from(other.await.unwrap().header("weir-cache") == Some("hit"));
    }
    assert_eq!((hits, node.metric("nv_inference_exec_count", "model=\"m\"").await), (7, 1.0));
}

#[tokio::test]
async fn tensor_function_cache_serves_any_selection_of_outputs() {
    let node = TestNode::start().await;
    node.deploy_with("echo", KEPT, function("echo-tensor")).await;
    let first = infer(&node, "echo", &inputs(1.0), &[]).await.ok();
    assert_eq!(first.header("weir-cache"), Some("miss"));
    let mut one = inputs(1.0);
    one["outputs"] = json!([{"name": "y"}]);
    let picked = infer(&node, "echo", &one, &[]).await.ok();
    assert_eq!(picked.header("weir-cache"), Some("hit"));
    let picked: Value = picked.json();
    let first: Value = first.json();
    assert_eq!(picked["outputs"], json!([first["outputs"][1]]));
    let path = node.post("/fn/echo", inputs(1.0).to_string()).await.ok();
    assert_eq!(path.header("weir-cache"), Some("hit"));
    let ended = async || (node.metric("weir_invocations_total", "code=\"ok\"").await == 3.0).then_some(());
    eventually("the count", ended).await;
    assert_eq!(node.metric("weir_phase_seconds_count", "phase=\"guest\"").await, 1.0);
}
