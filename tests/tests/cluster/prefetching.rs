//! Fetches of models ahead of their first use.

use crate::fake;
use futures::future::join_all;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use weir_tests::{ClusterBuilder, Etcd, TestCluster, TestNode, eventually};

fn builder() -> ClusterBuilder {
    let builder = TestCluster::builder().set("models.backend", "fake");
    builder.set("cluster.prefetch.concurrency", 2).set("cluster.prefetch.free_bytes_min", 0)
}

/// Names of the files of a node's models.
fn files(node: &TestNode) -> BTreeSet<String> {
    let entries = std::fs::read_dir(node.data().join("models")).unwrap();
    let files = entries.map(|entry| entry.unwrap()).filter(|entry| entry.path().is_file());
    let names = files.map(|entry| entry.file_name().into_string().unwrap());
    names.filter(|name| !name.starts_with('.')).collect()
}

/// Names of the files that loads of the models read: the other files are uploads, which no node
/// fetches, and results of their preparation.
fn loaded_files(node: &TestNode) -> BTreeSet<String> {
    let is_prepared = |document: &Value| document["variants"].is_array();
    let read = |name: &String| std::fs::read(node.data().join("models").join(name)).unwrap();
    let prepared = files(node).into_iter().filter_map(|name| serde_json::from_slice(&read(&name)).ok());
    let prepared: Vec<Value> = prepared.filter(is_prepared).collect();
    let variants = prepared.iter().flat_map(|prepared| prepared["variants"].as_array().unwrap());
    variants.map(|variant| variant["skeleton"].as_str().unwrap().to_owned()).collect()
}

async fn prefetches(node: &TestNode, outcome: &str) -> f64 {
    node.metric("weir_model_prefetches_total", &format!("outcome=\"{outcome}\"")).await
}

async fn until_prefetch(node: &TestNode, outcome: &str, count: f64) {
    eventually("the fetch of a model", async || (prefetches(node, outcome).await == count).then_some(()))
        .await;
}

#[tokio::test]
async fn pushed_model_is_fetched_by_all_nodes_and_served_by_all() {
    if !Etcd::is_installed() {
        return;
    }
    let cluster = builder().start(2).await;
    let [pushed_to, other] = &cluster.nodes[..] else { unreachable!("there are two") };
    pushed_to.push_model("m", 1, fake(20, 60, 1_000)).await;
    until_prefetch(other, "fetched", 1.0).await;
    let loaded = loaded_files(pushed_to);
    assert!(!loaded.is_empty() && loaded.is_subset(&files(other)), "{loaded:?} of {:?}", files(other));
    assert_eq!(prefetches(pushed_to, "fetched").await, 0.0, "the node of the push has the files");
    // The first calls keep one node busy, and both nodes have the files.
    cluster.settle().await;
    let input = json!({"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [0.5]});
    let body = json!({"inputs": [input]}).to_string();
    let placed = eventually("both nodes to take part", async || {
        let call = || async {
            let request = pushed_to.request(reqwest::Method::POST, "/v2/models/m/infer");
            let answer = pushed_to.send(request.header("weir-explain", "1").body(body.clone())).await.ok();
            let placement: Value = serde_json::from_str(answer.header("weir-placement").unwrap()).unwrap();
            placement["node"].to_string()
        };
        let mut runs = BTreeMap::<String, usize>::new();
        for node in join_all((0..24).map(|_| call())).await {
            *runs.entry(node).or_default() += 1;
        }
        (runs.len() == 2).then_some(runs)
    })
    .await;
    assert_eq!(placed.values().sum::<usize>(), 24);
}

#[tokio::test]
async fn nothing_is_fetched_ahead_beyond_the_limits() {
    if !Etcd::is_installed() {
        return;
    }
    for (setting, value) in
        [("cluster.prefetch.cache_percent_max", "0"), ("cluster.prefetch.free_bytes_min", "1000000000000000")]
    {
        let cluster = builder().set(setting, value).start(2).await;
        let [pushed_to, other] = &cluster.nodes[..] else { unreachable!("there are two") };
        pushed_to.push_model("m", 1, fake(1, 1, 1_000)).await;
        until_prefetch(other, "no-room", 1.0).await;
        assert!(files(other).is_disjoint(&loaded_files(pushed_to)), "{setting}");
        assert_eq!(prefetches(other, "fetched").await, 0.0, "{setting}");
    }
}

#[tokio::test]
async fn deletion_of_a_model_cancels_its_fetch() {
    if !Etcd::is_installed() {
        return;
    }
    let mut cluster = builder().start(1).await;
    cluster.nodes[0].push_model("m", 1, fake(1, 1, 1_000)).await;
    // The store answers no read of the model's files.
    let loaded = loaded_files(&cluster.nodes[0]);
    cluster.s3.hold(loaded.iter().cloned().collect());
    let joined = cluster.node().start().await;
    cluster.nodes.push(joined);
    let [pushed_to, other] = &cluster.nodes[..] else { unreachable!("there are two") };
    assert_eq!(other.models().await.len(), 1);
    assert!(pushed_to.delete("/v1/models/m").await.is_ok());
    until_prefetch(other, "cancelled", 1.0).await;
    cluster.s3.hold(Vec::new());
    assert!(files(other).is_disjoint(&loaded));
    // Later pushes are fetched.
    pushed_to.push_model("n", 1, fake(2, 2, 2_000)).await;
    until_prefetch(other, "fetched", 1.0).await;
}
