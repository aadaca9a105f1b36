//! Canaries of models: versions that get a share of the runs.

mod deciding;
mod managing;

use reqwest::Method;
use serde_json::{Value, json};
use weir_tests::{Answer, TestClient, TestNode, eventually, function};
use weir_types::Version;
use weir_types::api::{CanaryReport, Model, ModelPushed};

/// A fake model from FP32[?, 4] to FP32[?, 4], with these other settings.
fn fake(settings: &Value) -> Vec<u8> {
    let port = |name: &str| json!({"name": name, "datatype": "FP32", "shape": [null, 4]});
    let mut model = json!({
        "resident_bytes": 1_000,
        "signature": {"inputs": [port("x")], "outputs": [port("y")]},
    });
    model.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
    model.to_string().into_bytes()
}

/// A fake model whose runs take this time.
fn taking(run_time_ms: f64) -> Vec<u8> {
    fake(&json!({"run_time_ms": {"1": run_time_ms}}))
}

/// Starts a node with the fake model `m`, whose version 2 is `canary` with these options.
async fn start(options: &str, canary: Vec<u8>) -> TestNode {
    let node = TestNode::builder()
        .set("models.backend", "fake")
        .set("models.memory_bytes_max", 1_000_000)
        .start()
        .await;
    node.push_model("m", 1, taking(0.0)).await;
    let pushed = push(&node, options, canary).await;
    assert_eq!(pushed.canary.map(|canary| canary.version), Some(Version(2)));
    node
}

async fn push(node: &TestClient, options: &str, model: Vec<u8>) -> ModelPushed {
    node.put(&format!("/v1/models/m?{options}"), model).await.ok().json()
}

/// Runs `m` by the Open Inference Protocol.
async fn infer(node: &TestClient) -> Answer {
    infer_as(node, None).await
}

async fn infer_as(node: &TestClient, key: Option<&str>) -> Answer {
    let input = json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]});
    let mut request = node.request(Method::POST, "/v2/models/m/infer").body(input.to_string());
    if let Some(key) = key {
        request = request.header("weir-version-key", key);
    }
    node.send(request).await
}

/// The version that made an answer.
fn version_of(answer: &Answer) -> u32 {
    let answer: Value = answer.json();
    answer["model_version"].as_str().unwrap().parse().unwrap()
}

async fn shown(node: &TestClient) -> Model {
    node.get("/v1/models/m").await.ok().json()
}

async fn active(node: &TestClient) -> u32 {
    shown(node).await.active.version.0
}

/// The runs of the canary and of the active version, once there are as many.
async fn counted(node: &TestClient, runs: [u64; 2]) -> CanaryReport {
    eventually("the counts", async || {
        let report: CanaryReport = node.get("/v1/models/m/canary").await.ok().json();
        ([report.canary_calls.calls, report.active_calls.calls] == runs).then_some(report)
    })
    .await
}

#[tokio::test]
async fn canary_gets_its_share_of_inferences_and_named_versions_get_none() {
    let node = start("canary=20", taking(0.0)).await;
    let mut of_canary = 0;
    for _ in 0..200 {
        of_canary += usize::from(version_of(&infer(&node).await.ok()) == 2);
    }
    assert_eq!(of_canary, 40);
    let input = json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]});
    for version in [1, 2, 1, 2, 1] {
        let path = format!("/v2/models/m/versions/{version}/infer");
        assert_eq!(version_of(&node.post(&path, input.to_string()).await.ok()), version);
    }
    let report = counted(&node, [42, 163]).await;
    assert_eq!((report.active, report.canary_calls.failed, report.waits_for), (Version(1), 0, None));
    assert_eq!(node.metric("weir_canary_inferences_total", "version=\"2\",outcome=\"ok\"").await, 42.0);
    assert_eq!(node.get("/v2/models/m/stats").await.ok().json::<Value>()["model_stats"][0]["version"], "1");
}

#[tokio::test]
async fn inferences_with_the_same_key_use_the_same_version() {
    let node = start("canary=30", taking(0.0)).await;
    let mut of_canary = Vec::new();
    for number in 0..60 {
        let key = format!("user-{number}");
        let version = version_of(&infer_as(&node, Some(&key)).await.ok());
        for _ in 0..2 {
            assert_eq!(version_of(&infer_as(&node, Some(&key)).await.ok()), version, "{key}");
        }
        if version == 2 {
            of_canary.push(key);
        }
    }
    assert!((5..=35).contains(&of_canary.len()), "{} of 60 keys", of_canary.len());
    push(&node, "canary=90", taking(0.0)).await;
    for key in of_canary {
        assert_eq!(version_of(&infer_as(&node, Some(&key)).await.ok()), 2, "{key} left the canary");
    }
}

/// The function opens the model 21 times in each call, and runs it 20 times.
#[tokio::test]
async fn call_of_a_function_uses_one_version_and_the_canary_gets_its_share_of_calls() {
    let port = |name: &str| json!({"name": name, "datatype": "FP32", "shape": [null, 1]});
    let signature = json!({"inputs": [port("x")], "outputs": [port("y")]});
    let model = |run_time_ms: f64| fake(&json!({"run_time_ms": {"1": run_time_ms}, "signature": signature}));
    let node = TestNode::builder().set("models.backend", "fake").start().await;
    node.push_model("m", 1, model(0.0)).await;
    node.deploy_with("f", "models=m", function("host-calls")).await;
    push(&node, "canary=20", model(0.001)).await;
    for _ in 0..100 {
        node.get("/fn/f/m?calls=20").await.ok();
    }
    counted(&node, [400, 1_600]).await;
    for _ in 0..10 {
        node.send(node.request(Method::GET, "/fn/f/m?calls=20").header("weir-version-key", "ann")).await.ok();
    }
    let report = eventually("the counts", async || {
        let report: CanaryReport = node.get("/v1/models/m/canary").await.ok().json();
        (report.canary_calls.calls + report.active_calls.calls == 2_200).then_some(report)
    })
    .await;
    assert!([400, 600].contains(&report.canary_calls.calls), "a key keeps its version: {report:?}");
}

/// As documented for functions: a workflow keeps the versions with which it was deployed.
#[tokio::test]
async fn workflow_keeps_its_version_and_deploys_use_the_active_one() {
    let node = start("canary=50", taking(0.0)).await;
    let document = "inputs = { x = \"FP32[n, 4]\" }\n[steps.a]\nrun = \"m\"\ninputs = { x = \"x\" }\n[outputs]\ny = \"a.y\"\n";
    node.put("/v1/workflows/w", document).await.ok();
    let input = json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]});
    for _ in 0..20 {
        node.post("/v2/models/w/infer", input.to_string()).await.ok();
    }
    counted(&node, [0, 20]).await;
    node.post("/v1/models/m/promote", "").await.ok();
    let shown: Value = node.get("/v1/workflows/w").await.ok().json();
    assert_eq!(shown["steps"][0]["action"], "run m:1");
}

#[tokio::test]
async fn canary_gets_its_share_of_asynchronous_inferences() {
    let node = start("canary=20", taking(0.0)).await;
    let input = json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]});
    let mut of_canary = 0;
    for _ in 0..100 {
        let later = node.post_later("/v2/models/m/infer", input.to_string()).await;
        of_canary += usize::from(later.version == Some(Version(2)));
        node.ended(later.id).await;
        assert_eq!(
            Some(version_of(&node.result(later.id).await.ok())),
            later.version.map(|version| version.0)
        );
    }
    assert_eq!(of_canary, 20);
}
