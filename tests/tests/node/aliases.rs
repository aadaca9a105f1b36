//! Aliases of versions of models, functions and workflows.

use serde_json::{Value, json};
use weir_tests::{Answer, TestNode, function};
use weir_types::api::{AliasTarget, EventPage, Model, Workflow};
use weir_types::{ErrorCode, Version};

/// A fake model that returns its input, whose runs take this time.
fn fake(run_time_ms: u64) -> Vec<u8> {
    let port = |name: &str| json!([{"name": name, "datatype": "FP32", "shape": [null, 4]}]);
    let signature = json!({"inputs": port("x"), "outputs": port("y")});
    let model = json!({"run_time_ms": {"1": run_time_ms}, "resident_bytes": 1_000, "signature": signature});
    model.to_string().into_bytes()
}

/// Starts a node with three versions of the fake model `m`.
async fn start() -> TestNode {
    let node = TestNode::builder().set("models.backend", "fake").start().await;
    for version in 1..=3 {
        node.push_model("m", version, fake(u64::from(version) / 2)).await;
    }
    node
}

async fn infer(node: &TestNode, version: &str) -> Answer {
    let input = json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]});
    node.post(&format!("/v2/models/m/versions/{version}/infer"), input.to_string()).await
}

/// The version of `m` that runs for this version or alias.
async fn version_of(node: &TestNode, version: &str) -> String {
    let answer: Value = infer(node, version).await.ok().json();
    answer["model_version"].as_str().unwrap().to_owned()
}

async fn set(node: &TestNode, path: &str, version: u32) -> Answer {
    node.put(path, json!({ "version": version }).to_string()).await
}

#[tokio::test]
async fn inferences_name_a_version_by_its_alias() {
    let node = start().await;
    assert_eq!(version_of(&node, "stable").await, "3", "the active version, until the alias is set");
    let refusal = infer(&node, "eu").await.refusal();
    assert_eq!((refusal.status, refusal.code), (404, ErrorCode::VersionNotFound));
    assert!(refusal.text.contains("m has no alias eu; it has stable"), "{}", refusal.text);
    assert_eq!(infer(&node, "EU").await.code(), ErrorCode::InvalidRequest);
    let target: AliasTarget = set(&node, "/v1/models/m/aliases/stable", 1).await.ok().json();
    assert_eq!((target.version, target.previous), (Version(1), None));
    assert_eq!(version_of(&node, "stable").await, "1");
    set(&node, "/v1/models/m/aliases/stable", 2).await.ok();
    assert_eq!(version_of(&node, "stable").await, "2");
    let ready: Value = node.get("/v2/models/m/versions/stable").await.ok().json();
    assert_eq!(ready["versions"], json!(["2"]));
    node.post("/v1/models/m/aliases/stable/rollback", "").await.ok();
    assert_eq!(version_of(&node, "stable").await, "1");
    // A push does not move an alias that was set, nor does it need another active version.
    node.push_model("m", 4, fake(4)).await;
    let shown: Model = node.get("/v1/models/m").await.ok().json();
    assert_eq!((shown.active.version, shown.aliases["stable"].version), (Version(4), Version(1)));
    let node = node.kill().await.start().await;
    assert_eq!(version_of(&node, "stable").await, "1", "aliases are durable");
    let events: EventPage = node.get("/v1/events?name=m&kind=alias-changed").await.ok().json();
    assert!(events.events.is_empty(), "events are lost at a restart: {events:?}");
}

#[tokio::test]
async fn version_with_an_alias_is_not_removed() {
    let node = TestNode::builder()
        .set("models.backend", "fake")
        .set("models.versions_keep", 2)
        .set("sandbox.versions_keep", 2)
        .start()
        .await;
    node.push_model("m", 1, fake(0)).await;
    set(&node, "/v1/models/m/aliases/eu", 1).await.ok();
    let refusal = node.delete("/v1/models/m/versions/1").await.refusal();
    assert_eq!((refusal.status, refusal.code), (409, ErrorCode::Conflict));
    assert!(refusal.text.contains("has the alias eu"), "{}", refusal.text);
    for version in 2..=4 {
        node.push_model("m", version, fake(u64::from(version))).await;
    }
    let shown: Model = node.get("/v1/models/m").await.ok().json();
    assert_eq!(shown.versions, [1, 4].map(Version), "versions_keep keeps it");
    node.delete("/v1/models/m/aliases/eu").await;
    node.delete("/v1/models/m/versions/1").await.ok();

    node.deploy("f", function("hello")).await;
    set(&node, "/v1/functions/f/aliases/eu", 1).await.ok();
    for setting in ["a", "b", "c"] {
        node.deploy_with("f", &format!("env.A={setting}"), function("hello")).await;
    }
    let shown = node.function("f").await.unwrap();
    assert_eq!(shown.versions, [1, 4].map(Version));
    assert_eq!(node.delete("/v1/functions/f/versions/1").await.code(), ErrorCode::Conflict);
    node.delete("/v1/models/m").await.ok();
    node.delete("/v1/functions/f").await.ok();
    node.push_model("m", 1, fake(0)).await;
    assert_eq!(infer(&node, "eu").await.code(), ErrorCode::VersionNotFound, "removed with the model");
}

/// Calls the function `f`, which runs the model in its path.
async fn call(node: &TestNode, model: &str) -> Answer {
    node.post(&format!("/fn/f/{model}?shape=1,4"), vec![0_u8; 16]).await
}

/// The function opens the model that its path names.
#[tokio::test]
async fn guests_open_models_by_alias_if_it_is_granted() {
    let node = start().await;
    set(&node, "/v1/models/m/aliases/stable", 2).await.ok();
    node.deploy_with("f", "models=m:stable", function("infer")).await;
    call(&node, "m:stable").await.ok();
    let runs = async |version: u32| {
        let stats: Value = node.get(&format!("/v2/models/m/versions/{version}/stats")).await.ok().json();
        stats["model_stats"][0]["inference_stats"]["success"]["count"].as_u64().unwrap()
    };
    assert_eq!((runs(2).await, runs(3).await), (1, 0));
    set(&node, "/v1/models/m/aliases/stable", 3).await.ok();
    call(&node, "m:stable").await.ok();
    assert_eq!((runs(2).await, runs(3).await), (1, 1));
    let refused = call(&node, "m:3").await;
    assert!(
        refused.text().contains("not granted"),
        "a grant of an alias is no grant of a version: {refused:?}"
    );
}

#[tokio::test]
async fn functions_and_workflows_have_aliases() {
    let node = start().await;
    node.deploy("f", function("hello")).await;
    node.deploy("f", function("misbehave")).await;
    set(&node, "/v1/functions/f/aliases/old", 1).await.ok();
    assert_eq!(node.get("/fn/f@old/behave").await.ok().header("weir-version"), Some("1"));
    assert_eq!(node.get("/fn/f@stable/behave").await.ok().header("weir-version"), Some("2"));
    assert_eq!(node.get("/fn/f@none/behave").await.code(), ErrorCode::VersionNotFound);
    node.deploy_with("f", "canary=1", function("hello")).await;
    assert_eq!(node.get("/fn/f@canary/behave").await.ok().header("weir-version"), Some("3"));
    assert_eq!(node.get("/fn/f@stable/behave").await.ok().header("weir-version"), Some("2"));

    set(&node, "/v1/models/m/aliases/stable", 1).await.ok();
    let document = "inputs = { x = \"FP32[n, 4]\" }\n[steps.a]\nrun = \"m:stable\"\ninputs = { x = \"x\" }\n[outputs]\ny = \"a.y\"\n";
    node.put("/v1/workflows/w", document).await.ok();
    set(&node, "/v1/workflows/w/aliases/live", 1).await.ok();
    let shown: Workflow = node.get("/v1/workflows/w").await.ok().json();
    assert_eq!(shown.active.steps[0].action, "run m:1", "a deploy resolves the alias");
    assert_eq!(shown.aliases["live"].version, Version(1));
    let input = json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]});
    node.post("/v2/models/w/versions/live/infer", input.to_string()).await.ok();
}

/// The request names an alias, which moves while the invocation waits.
#[tokio::test]
async fn asynchronous_inference_keeps_the_version_of_its_alias() {
    let node = start().await;
    set(&node, "/v1/models/m/aliases/eu", 1).await.ok();
    let input = json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]});
    let later = node.post_later("/v2/models/m/versions/eu/infer", input.to_string()).await;
    set(&node, "/v1/models/m/aliases/eu", 2).await.ok();
    node.ended(later.id).await;
    let result: Value = node.result(later.id).await.ok().json();
    assert_eq!((later.version, result["model_version"].as_str()), (Some(Version(1)), Some("1")));
}

#[tokio::test]
async fn aliases_are_managed_by_the_command() {
    let node = start().await;
    let weir = async |arguments: &[&str]| node.weir(arguments).await.unwrap();
    assert_eq!(weir(&["models", "alias", "m", "stable", "2"]).await, "m:stable is version 2 now\n");
    weir(&["models", "alias", "m", "stable", "3"]).await;
    assert_eq!(weir(&["models", "alias", "m", "stable", "--rollback"]).await, "m:stable is version 2 now\n");
    assert!(weir(&["models", "alias", "m"]).await.contains("stable"), "it is listed");
    assert!(weir(&["models", "show", "m"]).await.contains("aliases      stable = 2"));
    let json: Value = serde_json::from_str(&weir(&["--json", "models", "alias", "m"]).await).unwrap();
    assert_eq!((json["stable"]["version"].clone(), json["stable"]["previous"].clone()), (json!(2), json!(3)));
    let input = r#"{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}"#;
    let ran = weir(&["models", "run", "m", "-d", input, "--version", "stable"]).await;
    assert!(ran.contains(r#""model_version":"2""#) || ran.contains(r#""model_version": "2""#), "{ran}");
    weir(&["models", "alias", "m", "stable", "--remove"]).await;
    assert_eq!(version_of(&node, "stable").await, "3");
    let told = node.weir(&["models", "alias", "m", "eu"]).await.unwrap_err().to_string();
    assert!(told.contains("needs a version, --rollback or --remove"), "{told}");
}
