//! Calls of every operation.

mod functions;
mod inference;
mod invocations;
mod keys;
mod models;
mod node;
mod secrets;
mod triggers;
mod workflows;

use super::checker::ResponseChecker;
use super::document::OpenApiDocument;
use super::probes;
use serde_json::{Value, json};
use weir_tests::{TestClient, TestNode, component_of_0_1_0, function};

/// Documented errors that these tests do not provoke, because they depend on load, on a shutdown or
/// on a race between two requests.
const NOT_PROVOKED: [&str; 14] = [
    "readyz 503",
    "isReady 503",
    "rollBackFunction 409",
    "rollBackWorkflow 409",
    "putTrigger 409",
    "runTrigger 409",
    "pauseTrigger 409",
    "resumeTrigger 409",
    "deleteInvocation 409",
    "infer 409",
    "inferVersion 409",
    // `embeddings_have_openais_format` calls a function that answers in the documented format.
    "createEmbeddings 200",
    "createEmbeddings 409",
    // `isolation::model_that_ends_its_workers_is_quarantined_until_released` runs a hostile model.
    "releaseModelVersion 200",
];

/// Fake model from FP32[?, 1] to FP32[?, 1] that returns its input after `run_time_ms`.
pub(super) fn fake(run_time_ms: u64) -> String {
    let port = |name: &str| json!([{"name": name, "datatype": "FP32", "shape": [null, 1]}]);
    json!({
        "run_time_ms": {"1": run_time_ms},
        "resident_bytes": 1_000,
        "signature": {"inputs": port("x"), "outputs": port("y")},
    })
    .to_string()
}

/// Body of an inference of such a model.
fn row() -> Value {
    json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [0.5]}]})
}

/// Workflow of one step that runs `name`.
pub(super) fn workflow(name: &str) -> String {
    json!({
        "inputs": {"x": "FP32[n, 1]"},
        "outputs": {"y": "a"},
        "steps": {"a": {"run": name, "inputs": {"x": "x"}}},
    })
    .to_string()
}

/// Sets, rolls back and removes aliases of the versions 1 and `other` of the item at `path`, until its
/// limit. `noun` is the part of the operation ids.
pub(super) async fn aliases(checker: &mut ResponseChecker<'_>, noun: &str, path: &str, other: u32) {
    let [set, roll_back, delete] =
        [format!("set{noun}Alias"), format!("rollBack{noun}Alias"), format!("delete{noun}Alias")];
    let alias = format!("{path}/aliases/stable");
    let to = |version: u32| json!({ "version": version }).to_string();
    checker.put((&set, 200), &alias, to(1)).await;
    checker.put((&roll_back, 404), &format!("{alias}/rollback"), "").await;
    checker.put((&set, 200), &alias, to(other)).await;
    checker.put((&roll_back, 200), &format!("{alias}/rollback"), "").await;
    checker.put((&set, 400), &alias, "{]").await;
    checker.put((&set, 404), &alias, to(99)).await;
    for n in 0..31 {
        checker.put((&set, 200), &format!("{path}/aliases/a{n}"), to(1)).await;
    }
    checker.put((&set, 409), &format!("{path}/aliases/more"), to(1)).await;
    for n in 0..31 {
        checker.call((&delete, 204), &format!("{path}/aliases/a{n}")).await;
    }
    checker.call((&delete, 204), &alias).await;
    checker.call((&delete, 404), &alias).await;
    checker.call((&delete, 400), &format!("{path}/aliases/1")).await;
    checker.put((&roll_back, 400), &format!("{path}/aliases/1/rollback"), "").await;
}

/// Fake model for the function `embed-text`.
pub(super) fn minilm() -> String {
    let port = |name: &str| json!({"name": name, "datatype": "INT64", "shape": [null, null]});
    json!({
        "resident_bytes": 1_000,
        "signature": {
            "inputs": [port("input_ids"), port("attention_mask")],
            "outputs": [{"name": "embedding", "datatype": "FP32", "shape": [null, 384]}],
        },
    })
    .to_string()
}

/// Deploys the HTTP function `f`, which runs the model in its path, and the model `m`.
async fn prepare(node: &TestClient) {
    node.push_model("m", 1, fake(0)).await;
    node.deploy_with("f", "models=m", component_of_0_1_0("infer")).await;
}

#[tokio::test]
async fn every_operation_answers_as_documented() {
    let document = OpenApiDocument::new();
    let node = TestNode::builder()
        .set("models.backend", "fake")
        .set("models.slots", 8)
        .set("async.attempts_max", 1)
        .set("gateway.infer_wall_ms_max", 3_600_000)
        .start()
        .await;
    prepare(node.client()).await;
    let mut checker = ResponseChecker::new(&document, node.client());
    inference::call(&mut checker).await;
    node::call(&mut checker).await;
    invocations::call(&mut checker).await;
    functions::call(&mut checker).await;
    models::call(&mut checker).await;
    workflows::call(&mut checker).await;
    triggers::call(&mut checker).await;
    probes::names(&mut checker).await;
    probes::invocations(&mut checker).await;
    models::call_kernel_graphs(&mut checker).await;
    probes::large_bodies(&mut checker).await;
    probes::authentication(&mut checker).await;
    keys::call(&mut checker).await;
    secrets::call(&mut checker).await;

    // The dashboard answers 404 if the program was built without it, and else 200.
    let is_optional = |one: &str| one.starts_with("dashboard");
    let is_missing =
        |one: &String| !NOT_PROVOKED.contains(&one.as_str()) && !one.ends_with(" 429") && !is_optional(one);
    let missing: Vec<String> = checker.unseen().into_iter().filter(is_missing).collect();
    assert!(missing.is_empty(), "documented responses that no call above had: {missing:#?}");
    let provoked: Vec<_> =
        NOT_PROVOKED.iter().filter(|one| !checker.unseen().contains(&(**one).to_owned())).collect();
    assert!(provoked.is_empty(), "remove from NOT_PROVOKED: {provoked:?}");
    let mut unanswered = checker.unanswered();
    unanswered.retain(|id| !is_optional(id));
    unanswered.retain(|id| !NOT_PROVOKED.contains(&format!("{id} 200").as_str()));
    assert!(unanswered.is_empty(), "operations that only failed: {unanswered:?}");
}

/// The documented schema is that of OpenAI, which the function implements.
#[tokio::test]
async fn embeddings_have_openais_format() {
    let document = OpenApiDocument::new();
    let node = TestNode::builder().set("models.backend", "fake").start().await;
    node.push_model("minilm", 1, minilm()).await;
    node.deploy_with("embed-text", "models=minilm", function("embed-text")).await;
    let mut checker = ResponseChecker::new(&document, node.client());
    for format in ["float", "base64"] {
        let request = json!({"model": "embed-text", "input": ["a", "b"], "encoding_format": format});
        checker.put(("createEmbeddings", 200), "/v1/embeddings", request.to_string()).await;
    }
}
