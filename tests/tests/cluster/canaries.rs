//! Canaries on several nodes.

use super::{INFER, fake};
use serde_json::json;
use weir_tests::{Etcd, TestClient, TestCluster, eventually, function};
use weir_types::Version;
use weir_types::api::{CanaryReport, EventKind, EventPage, Model};

/// The dispatcher rolls a canary back whose calls fail on another node.
#[tokio::test]
async fn canary_that_fails_on_one_node_is_rolled_back_on_all() {
    if !Etcd::is_installed() {
        return;
    }
    let cluster = TestCluster::builder().start(2).await;
    let [a, b] = &cluster.nodes[..] else { unreachable!("there are two") };
    a.deploy("f", function("hello")).await;
    cluster.all_know("f").await;
    a.deploy_with("f", "canary=10", function("misbehave")).await;
    for node in &cluster.nodes {
        eventually("the canary", async || node.function("f").await.ok()?.canary).await;
        let mut of_canary = 0;
        for _ in 0..100 {
            let answer = node.get("/fn/f/behave").await.ok();
            of_canary += u32::from(answer.header("weir-version") == Some("2"));
        }
        assert_eq!(of_canary, 10);
    }
    eventually("the calls of both nodes", async || {
        let report: CanaryReport = a.get("/v1/functions/f/canary").await.ok().json();
        (report.canary_calls.calls == 20 && report.active_calls.calls == 180).then_some(())
    })
    .await;
    let elected = cluster_dispatcher(&cluster).await;
    let other = if elected == 0 { b } else { a };
    eventually("the rollback", async || {
        other.get("/fn/f/trap").await;
        other.function("f").await.ok()?.canary.is_none().then_some(())
    })
    .await;
    for node in &cluster.nodes {
        eventually("the rollback everywhere", async || {
            node.function("f").await.ok()?.canary.is_none().then_some(())
        })
        .await;
        assert_eq!(node.get("/fn/f/behave").await.ok().header("weir-version"), Some("1"));
    }
    let events: EventPage = other.get("/v1/events?name=f&kind=canary-rolled-back").await.ok().json();
    let [event] = &events.events[..] else { panic!("expected one decision: {events:?}") };
    assert_eq!(event.kind, EventKind::CanaryRolledBack);
    assert!(event.text.contains("because more calls fail"), "{}", event.text);
}

/// The first node has no device for the model, so it forwards inferences and calls of the function.
#[tokio::test]
async fn node_that_receives_a_call_chooses_the_version_of_a_model() {
    if !Etcd::is_installed() {
        return;
    }
    let mut cluster = TestCluster::builder().set("models.backend", "fake").start(1).await;
    cluster.nodes.push(cluster.node().argument("--devices").argument("cpu,fake:x").start().await);
    cluster.settle().await;
    let [a, b] = &cluster.nodes[..] else { unreachable!("there are two") };
    a.put("/v1/models/m?device=fake", fake(1, 1, 1_000)).await.ok();
    a.deploy_with("infer", "models=m", function("infer")).await;
    cluster.all_have_heard_of("m").await;
    cluster.all_know("infer").await;
    a.put("/v1/models/m?device=fake&canary=10", fake(1, 2, 1_000)).await.ok();
    let shown = async |node: &TestClient| -> Model { node.get("/v1/models/m").await.ok().json() };
    for node in &cluster.nodes {
        eventually("the canary", async || shown(node).await.canary).await;
    }
    let input = json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [0.5]}]});
    let mut of_canary = 0;
    for _ in 0..100 {
        let answer: serde_json::Value = a.post("/v2/models/m/infer", input.to_string()).await.ok().json();
        of_canary += usize::from(answer["model_version"] == "2");
        a.post(INFER, &[0_u8; 4][..]).await.ok();
        b.post(INFER, &[0_u8; 4][..]).await.ok();
    }
    // Inferences and calls of the function share the split of their node.
    assert!((1..20).contains(&of_canary), "{of_canary} of 100 inferences");
    for node in &cluster.nodes {
        eventually("the runs of all nodes", async || {
            let report: CanaryReport = node.get("/v1/models/m/canary").await.ok().json();
            ((report.canary_calls.calls, report.active_calls.calls) == (30, 270)).then_some(())
        })
        .await;
    }
    b.post("/v1/models/m/promote", "").await.ok();
    eventually("the promotion", async || (shown(a).await.active.version == Version(2)).then_some(())).await;
}

/// The index of the node that is the dispatcher.
async fn cluster_dispatcher(cluster: &TestCluster) -> usize {
    eventually("a dispatcher", async || {
        for (index, node) in cluster.nodes.iter().enumerate() {
            let status = node.status().await.cluster?;
            if status.dispatcher == Some(status.node) {
                return Some(index);
            }
        }
        None
    })
    .await
}
