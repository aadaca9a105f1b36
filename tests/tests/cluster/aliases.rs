//! Aliases on several nodes. The steps of a test do not wait for the news of a change, unless a node
//! may answer with the state before it.

use super::{INFER, fake};
use serde_json::{Value, json};
use weir_tests::{Answer, Etcd, TestClient, TestCluster, TestNode, eventually, function};
use weir_types::api::{AliasTarget, Model};
use weir_types::{ErrorCode, Version};

const WORKFLOW: &str = r#"
inputs = { x = "FP32[n, 1]" }
outputs = { y = "step" }
[steps.step]
run = "m:1"
inputs = { x = "x" }
"#;

async fn set(node: &TestClient, alias: &str, version: u32) -> Answer {
    node.put(&format!("/v1/{alias}"), json!({ "version": version }).to_string()).await
}

/// The version of the model or workflow that runs for this alias.
async fn infer(node: &TestClient, name: &str, alias: &str) -> Answer {
    let input = json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [0.5]}]});
    node.post(&format!("/v2/models/{name}/versions/{alias}/infer"), input.to_string()).await
}

async fn version_of(node: &TestClient, name: &str, alias: &str) -> String {
    let answer: Value = infer(node, name, alias).await.ok().json();
    answer["model_version"].as_str().unwrap().to_owned()
}

/// Starts two nodes with two versions of the function `f` and of the model `m`, and the workflow `w`.
async fn start(versions_keep: usize) -> TestCluster {
    let builder = TestCluster::builder().set("models.backend", "fake");
    let cluster = builder.set("models.versions_keep", versions_keep).start(2).await;
    let one = &cluster.nodes[0];
    one.deploy("f", function("hello")).await;
    one.deploy("f", function("misbehave")).await;
    for version in 1..=2 {
        one.push_model("m", version, fake(1, version, 1_000)).await;
    }
    one.put("/v1/workflows/w", WORKFLOW).await.ok();
    cluster
}

/// Waits until a node knows everything that [`start`] has made.
async fn has_heard(node: &TestNode) {
    eventually("the news of all items", async || {
        let shown: Model =
            node.get("/v1/models/m").await.is_ok().then_some(node.get("/v1/models/m").await)?.json();
        let versions = node.function("f").await.ok()?.versions.len();
        let has_workflow = node.get("/v1/workflows/w").await.is_ok();
        (shown.versions.len() == 2 && versions == 2 && has_workflow).then_some(())
    })
    .await;
}

#[tokio::test]
async fn alias_is_usable_and_changeable_at_every_node_as_soon_as_it_is_set() {
    if !Etcd::is_installed() {
        return;
    }
    let cluster = start(0).await;
    let [one, other] = &cluster.nodes[..] else { unreachable!("there are two") };
    has_heard(other).await;
    for item in ["functions/f", "models/m", "workflows/w"] {
        set(one, &format!("{item}/aliases/live"), 1).await.ok();
    }
    assert_eq!(other.get("/fn/f@live/x").await.ok().header("weir-version"), Some("1"));
    assert_eq!(version_of(other, "m", "live").await, "1");
    assert_eq!(version_of(other, "w", "live").await, "1");

    // The second node changes an alias that the first node has set, and the other way round.
    for item in ["functions/f", "models/m"] {
        let alias = format!("{item}/aliases/turns");
        set(one, &alias, 1).await.ok();
        let target: AliasTarget = set(other, &alias, 2).await.ok().json();
        assert_eq!((target.version, target.previous), (Version(2), Some(Version(1))), "{item}");
        let back = one.post(&format!("/v1/{alias}/rollback"), "").await.ok().json::<AliasTarget>();
        assert_eq!((back.version, back.previous), (Version(1), Some(Version(2))), "{item}");
        // An acknowledged change is made, even if the node still knows the alias with this version.
        let mut before = back.changed_at_ms;
        for round in 0..20 {
            set(other, &alias, 2).await.ok();
            let target: AliasTarget = set(one, &alias, 1).await.ok().json();
            assert_ne!(target.changed_at_ms, before, "{item}: the change of round {round} was lost");
            before = target.changed_at_ms;
        }
        assert_eq!(other.delete(&format!("/v1/{alias}")).await.status, 204, "{item}");
        let gone = one.post(&format!("/v1/{alias}/rollback"), "").await;
        assert_eq!(gone.code(), ErrorCode::VersionNotFound, "{item}");
    }
    eventually("the removal", async || (infer(one, "m", "turns").await.status == 404).then_some(())).await;
    eventually("the removal", async || (one.get("/fn/f@turns/x").await.status == 404).then_some(())).await;
}

#[tokio::test]
async fn concurrent_changes_at_two_nodes_keep_all_aliases() {
    if !Etcd::is_installed() {
        return;
    }
    let cluster = start(0).await;
    let [one, other] = &cluster.nodes[..] else { unreachable!("there are two") };
    has_heard(other).await;
    for item in ["functions/f", "models/m"] {
        let all = (0..10).flat_map(|number| {
            [one, other].into_iter().enumerate().map(move |(at, node)| async move {
                set(node, &format!("{item}/aliases/a{number}-{at}"), 1 + number % 2).await.ok();
            })
        });
        futures::future::join_all(all).await;
        for node in [one, other] {
            eventually("all aliases", async || {
                let shown: Value = node.get(&format!("/v1/{item}")).await.ok().json();
                (shown["aliases"].as_object()?.len() == 20).then_some(())
            })
            .await;
        }
    }
}

/// The other node has not heard of the alias when it removes versions.
#[tokio::test]
async fn version_with_an_alias_of_another_node_is_not_removed() {
    if !Etcd::is_installed() {
        return;
    }
    let cluster = start(2).await;
    let [one, other] = &cluster.nodes[..] else { unreachable!("there are two") };
    has_heard(other).await;
    set(one, "models/m/aliases/live", 1).await.ok();
    assert_eq!(other.delete("/v1/models/m/versions/1").await.code(), ErrorCode::Conflict);
    set(one, "functions/f/aliases/live", 1).await.ok();
    assert_eq!(other.delete("/v1/functions/f/versions/1").await.code(), ErrorCode::Conflict);
    one.delete("/v1/models/m/aliases/live").await;
    set(one, "models/m/aliases/live", 1).await.ok();
    for version in 3..=4 {
        other.push_model("m", version, fake(1, version, 1_000)).await;
    }
    for node in [one, other] {
        assert_eq!(version_of(node, "m", "live").await, "1");
    }
}

/// The first node has no device for the model, so it forwards all calls of the function to the second
/// node, which hears of a changed alias later.
#[tokio::test]
async fn node_that_receives_a_call_resolves_the_alias_of_a_model() {
    if !Etcd::is_installed() {
        return;
    }
    let mut cluster = TestCluster::builder().set("models.backend", "fake").start(1).await;
    cluster.nodes.push(cluster.node().argument("--devices").argument("cpu,fake:x").start().await);
    cluster.settle().await;
    let [one, other] = &cluster.nodes[..] else { unreachable!("there are two") };
    for version in 1..=2 {
        let path = format!("/v1/models/m/versions/{version}?device=fake");
        one.put(&path, fake(1, version, 1_000)).await.ok();
    }
    one.deploy_with("infer", "models=m:live", function("infer")).await;
    cluster.all_know("infer").await;
    eventually("the news of both versions", async || {
        let shown: Model = other.get("/v1/models/m").await.ok().json();
        (shown.versions.len() == 2).then_some(())
    })
    .await;
    let runs = async |version: u32| {
        let labels = format!("model=\"m\",version=\"{version}\"");
        cluster.metric("nv_inference_exec_count", &labels).await
    };
    let path = INFER.replace("/m?", "/m:live?");
    for round in 0..20_u32 {
        let version = 1 + round % 2;
        let before = runs(version).await;
        set(one, "models/m/aliases/live", version).await.ok();
        one.post(&path, &[0_u8; 4][..]).await.ok();
        assert!(runs(version).await > before, "call {round} ran another version than {version}");
    }
}
