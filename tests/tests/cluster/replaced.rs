//! Data of etcd that is replaced while the nodes run: restored from a copy, or wiped.

use std::collections::BTreeSet;
use weir_tests::{Etcd, TestCluster, TestNode, eventually, function};
use weir_types::ErrorCode;
use weir_types::api::{ClusterStatus, Status};

/// A cluster whose nodes stay unready for a while before they restart, so that a test sees it.
async fn start() -> TestCluster {
    TestCluster::builder().set("gateway.lame_duck_ms", 1_500).start(2).await
}

async fn cluster_of(node: &TestNode) -> Option<ClusterStatus> {
    let answer = node.try_get("/v1/status").await.ok()?;
    answer.is_ok().then(|| answer.json::<Status>().cluster).flatten()
}

async fn ids(cluster: &TestCluster) -> BTreeSet<u32> {
    let mut ids = BTreeSet::new();
    for node in &cluster.nodes {
        ids.insert(node.status().await.cluster.unwrap().node.0);
    }
    ids
}

/// Waits until every node has reported why it is not ready, and has then joined under a new node
/// number.
async fn rejoined(cluster: &TestCluster, before: &BTreeSet<u32>) {
    let told = cluster.nodes.iter().map(|node| {
        eventually("the reason", async move || {
            let ready = node.try_get("/readyz").await.ok()?;
            (ready.status == 503 && ready.text().contains("restored from a copy, or wiped")).then_some(())
        })
    });
    futures::future::join_all(told).await;
    let newest = before.last().copied().unwrap();
    for node in &cluster.nodes {
        eventually("the node to be ready again", async || {
            node.try_get("/readyz").await.ok()?.is_ok().then_some(())
        })
        .await;
    }
    eventually("one dispatcher of the new nodes", async || {
        let mut members = Vec::new();
        for node in &cluster.nodes {
            let status = cluster_of(node).await?;
            let known: BTreeSet<u32> = status.nodes.iter().map(|member| member.node.0).collect();
            members.push((status.dispatcher?.0, known));
        }
        let (dispatcher, known) = members[0].clone();
        let are_new = known.len() == 2 && known.iter().all(|id| *id > newest) && known.contains(&dispatcher);
        (are_new && members.iter().all(|other| *other == members[0])).then_some(())
    })
    .await;
    assert_eq!(ids(cluster).await.len(), 2);
}

#[tokio::test]
async fn nodes_join_anew_when_etcd_is_restored() {
    if !Etcd::is_installed() {
        return;
    }
    let mut cluster = start().await;
    cluster.nodes[0].deploy("kept", function("hello")).await;
    cluster.all_know("kept").await;
    let copy = cluster.etcd.save();
    eventually("etcd", async || {
        cluster.nodes[0].try_deploy("lost", "", function("hello")).await.ok().map(drop)
    })
    .await;
    cluster.all_know("lost").await;
    let before = ids(&cluster).await;
    cluster.etcd.restore(&copy);
    rejoined(&cluster, &before).await;
    let [a, b] = &cluster.nodes[..] else { unreachable!("there are two") };
    for node in [a, b] {
        assert_eq!(node.get("/fn/kept/ann").await.ok().text(), "hello, ann\n");
        assert_eq!(node.get("/fn/lost").await.refusal().code, ErrorCode::FunctionNotFound);
    }
    // The nodes follow each other's changes again.
    a.deploy("new", function("hello")).await;
    cluster.all_know("new").await;
    b.deploy("kept", function("echo-http")).await;
    eventually("the second version", async || {
        (a.function("kept").await.ok()?.versions.len() == 2).then_some(())
    })
    .await;
}

#[tokio::test]
async fn nodes_join_anew_when_etcd_is_wiped() {
    if !Etcd::is_installed() {
        return;
    }
    let mut cluster = start().await;
    cluster.nodes[0].deploy("lost", function("hello")).await;
    cluster.all_know("lost").await;
    let before = ids(&cluster).await;
    cluster.etcd.wipe();
    rejoined(&cluster, &before).await;
    let [a, b] = &cluster.nodes[..] else { unreachable!("there are two") };
    assert_eq!(b.get("/fn/lost").await.refusal().code, ErrorCode::FunctionNotFound);
    b.deploy("new", function("hello")).await;
    assert_eq!(a.get("/fn/new/ann").await.ok().text(), "hello, ann\n");
}

/// An outage of etcd is no reason to restart.
#[tokio::test]
async fn nodes_keep_their_numbers_over_an_outage_of_etcd() {
    if !Etcd::is_installed() {
        return;
    }
    let mut cluster = start().await;
    cluster.nodes[0].deploy("f", function("hello")).await;
    cluster.all_know("f").await;
    let before = ids(&cluster).await;
    cluster.etcd.kill();
    cluster.etcd.run();
    eventually("etcd", async || cluster.nodes[0].try_deploy("g", "", function("hello")).await.ok().map(drop))
        .await;
    cluster.all_know("g").await;
    for node in &cluster.nodes {
        node.get("/readyz").await.ok();
    }
    assert_eq!(ids(&cluster).await, before);
}
