//! Asynchronous invocations in a cluster: any node can show them, and another node can finish them.

use weir_tests::{Etcd, TestClient, TestCluster, eventually, function};
use weir_types::api::{Invocation, InvocationStatus};
use weir_types::{ErrorCode, Version};

async fn knows(client: &TestClient, name: &str, version: u32) {
    eventually("the news of a deploy", async || {
        let function = client.function(name).await.ok()?;
        (function.active.version == Version(version)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn invocations_of_a_killed_node_finish_on_another_node() {
    if !Etcd::is_installed() {
        return;
    }
    let mut cluster = TestCluster::builder().set("async.lease_ms", 1_000).start(2).await;
    cluster.nodes[0].deploy_with("f", "limits.deadline_ms=60000", function("misbehave")).await;
    cluster.all_know("f").await;
    let later = cluster.nodes[1].post_later("/fn/f/sleep", "the body").await;
    let running = cluster.nodes[0].until(later.id, InvocationStatus::Running).await;
    assert_eq!(running.attempts, 1);
    // The next node to run the invocation has only a version that ends.
    cluster.nodes[0].deploy("f", function("echo-http")).await;
    cluster.nodes[0].delete("/v1/functions/f/versions/1").await.ok();
    knows(&cluster.nodes[0], "f", 2).await;
    cluster.nodes.remove(1).kill().await;
    let ended = cluster.nodes[0].ended(later.id).await;
    assert_eq!((ended.status, ended.attempts), (InvocationStatus::Done, 2), "{ended:?}");
    assert_eq!(cluster.nodes[0].result(later.id).await.text(), "the body");
}

#[tokio::test]
async fn stopping_node_releases_its_queued_invocations() {
    if !Etcd::is_installed() {
        return;
    }
    let mut cluster = TestCluster::builder().set("async.lease_ms", 60_000).start(1).await;
    cluster.nodes[0].deploy("echo", function("echo-http")).await;
    let idle = cluster.node().set("async.running_max", 0).start().await;
    knows(&idle, "echo", 1).await;
    let mut accepted = Vec::new();
    for number in 0..5 {
        accepted.push(idle.post_later("/fn/echo", format!("body {number}")).await);
    }
    for invocation in &accepted {
        let seen = cluster.nodes[0].invocation(invocation.id).await;
        assert_eq!(seen.status, InvocationStatus::Queued, "the invocation is claimed by a live node");
    }
    let stopped = idle.stop().await;
    for (number, invocation) in accepted.iter().enumerate() {
        let ended = cluster.nodes[0].ended(invocation.id).await;
        assert_eq!((ended.status, ended.attempts), (InvocationStatus::Done, 1));
        assert_eq!(cluster.nodes[0].result(invocation.id).await.text(), format!("body {number}"));
    }
    cluster.nodes.push(stopped.start().await);
}

#[tokio::test]
async fn any_node_answers_waits_and_cancels_for_others() {
    if !Etcd::is_installed() {
        return;
    }
    let cluster = TestCluster::builder().start(2).await;
    let [one, other] = &cluster.nodes[..] else { panic!("there are two") };
    one.deploy("echo", function("echo-http")).await;
    one.deploy_with("f", "limits.deadline_ms=60000", function("misbehave")).await;
    cluster.all_know("echo").await;
    cluster.all_know("f").await;
    let keyed = |client: &TestClient| {
        client.later(reqwest::Method::POST, "/fn/echo").header("idempotency-key", "k").body("body")
    };
    let later = one.accepted(keyed(one)).await;
    assert_eq!(other.ended(later.id).await.status, InvocationStatus::Done);
    assert_eq!(other.result(later.id).await.text(), "body");
    assert_eq!(other.accepted(keyed(other)).await.id, later.id, "an idempotency key is valid on all nodes");

    let endless = one.post_later("/fn/f/sleep", "").await;
    other.until(endless.id, InvocationStatus::Running).await;
    let cancelled: Invocation = other.delete(&format!("/v1/invocations/{}", endless.id)).await.ok().json();
    assert_eq!(cancelled.status, InvocationStatus::Cancelled);
    eventually("the end of the guest", async || {
        (cluster.metric("weir_invocations_running", "").await == 0.0).then_some(())
    })
    .await;
    assert_eq!(one.invocation(endless.id).await.status, InvocationStatus::Cancelled);
}

#[tokio::test]
async fn expired_invocations_are_deleted_from_the_blob_store() {
    if !Etcd::is_installed() {
        return;
    }
    let cluster = TestCluster::builder().set("async.retention_ms", 300).start(2).await;
    cluster.nodes[0].deploy("echo", function("echo-http")).await;
    cluster.all_know("echo").await;
    let kept = || std::fs::read_dir(cluster.s3.folder().join("invocations")).map_or(0, Iterator::count);
    let later = cluster.nodes[1].post_later("/fn/echo", "body").await;
    eventually("the end of the retention", async || {
        (cluster.nodes[0].get(&format!("/v1/invocations/{}", later.id)).await.status == 410).then_some(())
    })
    .await;
    eventually("an empty store", async || (kept() == 0).then_some(())).await;
    for node in &cluster.nodes {
        eventually("empty folders", async || {
            let folder = node.data().join("invocations");
            (std::fs::read_dir(folder).unwrap().count() == 0).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn invocations_are_rejected_during_a_datastore_outage_and_resume_after_it() {
    if !Etcd::is_installed() {
        return;
    }
    let mut cluster =
        TestCluster::builder().set("async.lease_ms", 1_000).set("async.backoff_ms", 1).start(1).await;
    cluster.nodes[0].deploy_with("f", "limits.deadline_ms=60000", function("misbehave")).await;
    cluster.nodes[0].deploy("echo", function("echo-http")).await;
    let running = cluster.nodes[0].post_later("/fn/f/nap?2000", "").await;
    cluster.etcd.kill();
    let node = &cluster.nodes[0];
    let refused = node.send(node.later(reqwest::Method::POST, "/fn/echo").body("x")).await;
    assert_eq!((refused.status, refused.code()), (503, ErrorCode::Unavailable));
    assert_eq!(node.post("/fn/echo", "at once").await.ok().text(), "at once");
    cluster.etcd.run();
    let node = &cluster.nodes[0];
    eventually("the return of the datastore", async || {
        node.get(&format!("/v1/invocations/{}", running.id)).await.is_ok().then_some(())
    })
    .await;
    assert_eq!(node.ended(running.id).await.status, InvocationStatus::Done);
    assert_eq!(node.result(running.id).await.text(), "napped\n");
    let later = eventually("the acceptance of an invocation", async || {
        let answer = node.send(node.later(reqwest::Method::POST, "/fn/echo").body("again")).await;
        (answer.status == 202).then(|| answer.json::<Invocation>())
    })
    .await;
    node.ended(later.id).await;
    assert_eq!(node.result(later.id).await.text(), "again");
}
