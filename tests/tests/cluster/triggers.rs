//! Triggers in a cluster: each tick becomes one invocation, whichever nodes are there.

use reqwest::Method;
use serde_json::json;
use weir_tests::{Etcd, TestClient, TestCluster, eventually, eventually_within, function};
use weir_types::api::{InvocationStatus, Trigger};

/// More than the time for which the other nodes leave a tick to the dispatcher.
const EVERY_MS: u64 = 4_000;

async fn show(client: &TestClient) -> Option<Trigger> {
    let answer = client.try_get("/v1/triggers/t").await.ok()?;
    answer.is_ok().then(|| answer.json())
}

async fn until_fired(client: &TestClient, ticks: u64) -> Trigger {
    eventually_within(std::time::Duration::from_secs(60), "ticks", async || {
        show(client).await.filter(|trigger| trigger.ticks.fired >= ticks)
    })
    .await
}

#[tokio::test]
async fn each_tick_has_one_outcome_while_dispatchers_are_killed() {
    if !Etcd::is_installed() {
        return;
    }
    let mut cluster = TestCluster::builder().set("async.lease_ms", 1_000).start(3).await;
    cluster.nodes[0].deploy("echo", function("echo-http")).await;
    cluster.all_know("echo").await;
    let spec = json!({
        "source": {"every_ms": EVERY_MS},
        "target": {"function": "echo"},
        "request": {"body": "tick"},
    });
    let node = &cluster.nodes[0];
    node.send(node.request(Method::PUT, "/v1/triggers/t").json(&spec)).await.ok();
    for ticks in [1, 3] {
        until_fired(&cluster.nodes[0], ticks).await;
        let dispatcher = cluster.settle().await;
        cluster.nodes.remove(dispatcher).kill().await;
    }
    let survivor = &cluster.nodes[0];
    until_fired(survivor, 5).await;
    survivor.post("/v1/triggers/t/pause", "").await.ok();
    let last = eventually("the trigger", || show(survivor)).await;
    let elapsed_ms = last.last.as_ref().unwrap().scheduled_at_ms.unwrap() - last.created_at_ms;
    // A busy machine may handle a tick after the next one; the earlier one is missed then.
    assert_eq!(last.ticks.fired + last.ticks.missed, elapsed_ms / EVERY_MS, "{last:?}");
    let accepted = survivor.invocations("name=echo").await;
    assert_eq!(accepted.len() as u64, last.ticks.fired);
    for invocation in accepted {
        assert_eq!(survivor.ended(invocation.id).await.status, InvocationStatus::Done);
    }
}

#[tokio::test]
async fn all_nodes_show_and_change_a_trigger() {
    if !Etcd::is_installed() {
        return;
    }
    let cluster = TestCluster::builder().start(2).await;
    let [one, other] = &cluster.nodes[..] else { panic!("there are two") };
    one.deploy("echo", function("echo-http")).await;
    // The other node may not know the function yet.
    let spec = json!({"source": {"cron": "* * * * * *"}, "target": {"function": "echo"}, "overlap": "skip"});
    other.send(other.request(Method::PUT, "/v1/triggers/t").json(&spec)).await.ok();
    assert!(show(one).await.is_some());
    until_fired(one, 2).await;
    one.post("/v1/triggers/t/run", "").await.ok();
    let paused: Trigger = one.post("/v1/triggers/t/pause", "").await.ok().json();
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    assert_eq!(show(other).await.unwrap().ticks, paused.ticks, "a paused trigger has ticked");
    one.delete("/v1/triggers/t").await.ok();
    eventually("the deletion", async || {
        let listed: Vec<Trigger> = other.get("/v1/triggers").await.ok().json();
        listed.is_empty().then_some(())
    })
    .await;
}
