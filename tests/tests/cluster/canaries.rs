//! Canaries on several nodes.

use weir_tests::{Etcd, TestCluster, eventually, function};
use weir_types::api::{CanaryReport, EventKind, EventPage};

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
    let [event] = &events.events[..] else { panic!("one decision: {events:?}") };
    assert_eq!(event.kind, EventKind::CanaryRolledBack);
    assert!(event.text.contains("because more calls fail"), "{}", event.text);
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
