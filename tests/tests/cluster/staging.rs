//! Placement by where the files of cold models are: in memory, on disk, or in the object store.

use crate::fake;
use reqwest::Method;
use serde_json::{Value, json};
use std::fs::File;
use std::path::{Path, PathBuf};
use weir_tests::{Etcd, TestCluster, TestNode, eventually, function};

/// A placed call.
struct Placed {
    /// The node where it ran.
    at: usize,
    /// By node, the tier that a load was expected to read from, if there was to be one.
    tiers: Vec<Option<&'static str>>,
}

/// Runs a model through one node.
async fn infer(cluster: &TestCluster, through: usize, model: &str) -> Placed {
    let input = json!({"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [0.5]});
    let node = &cluster.nodes[through];
    let request = node.request(Method::POST, &format!("/v2/models/{model}/infer"));
    let request = request.header("weir-explain", "1").body(json!({"inputs": [input]}).to_string());
    let answer = node.send(request).await.ok();
    let placement: Value = serde_json::from_str(answer.header("weir-placement").unwrap()).unwrap();
    let nodes = ids(cluster).await;
    let at = nodes.iter().position(|id| placement["node"] == *id);
    Placed { at: at.expect("a known node"), tiers: tiers(&nodes, &placement) }
}

async fn ids(cluster: &TestCluster) -> Vec<Value> {
    let mut ids = Vec::new();
    for node in &cluster.nodes {
        ids.push(json!(node.status().await.cluster.unwrap().node));
    }
    ids
}

/// By node, the tier that a load was expected to read from, if there was to be one.
fn tiers(nodes: &[Value], explained: &Value) -> Vec<Option<&'static str>> {
    let alternatives = explained["why"]["alternatives"].as_array().unwrap();
    let tier_of = |id: &Value| {
        let other = alternatives.iter().find(|other| other["device"]["node"] == *id);
        let estimate = other.map_or(&explained["why"]["estimate"], |other| &other["estimate"]);
        let load_ns = |tier: &&str| estimate["load_by_tier"][tier].as_u64().unwrap_or(0);
        let all = ["memory_ns", "disk_ns", "object_store_ns"];
        all.into_iter().filter(|tier| load_ns(tier) > 0).max_by_key(load_ns)
    };
    nodes.iter().map(tier_of).collect()
}

/// The expected load times of a rejected call, by node.
fn load_times_ms(nodes: &[Value], explained: &Value) -> Vec<u64> {
    let alternatives = explained["why"]["alternatives"].as_array().unwrap();
    let time_of = |id: &Value| {
        let on_node = alternatives.iter().find(|device| device["device"]["node"] == *id);
        on_node.map_or(0, |device| device["estimate"]["load_time_ns"].as_u64().unwrap() / 1_000_000)
    };
    nodes.iter().map(time_of).collect()
}

/// Calls a function that is rejected once its run time is known, because it misses its SLO. Returns
/// how the rejection is explained.
async fn probe(node: &TestNode) -> Option<Value> {
    let request = node.request(Method::POST, "/fn/probe/m?shape=1,1").header("weir-request-id", "probe");
    let answer = node.send(request.body(1_f32.to_le_bytes().to_vec())).await;
    match answer.status {
        503 => Some(node.get("/v1/placements/probe").await.ok().json()),
        _ => {
            answer.ok();
            None
        }
    }
}

/// Pushes a model of 100 MB to one node.
async fn push(cluster: &TestCluster, at: usize, model: &str) {
    cluster.nodes[at].push_model(model, 1, named(model)).await;
    cluster.all_have_heard_of(model).await;
}

/// Models with different names have different files.
fn named(model: &str) -> String {
    let mut declared: Value = serde_json::from_str(&fake(20, 1, 100_000_000)).unwrap();
    declared["on"] = json!({ model: {} });
    declared.to_string()
}

/// The files of a node's models.
fn files(node: &TestNode) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(node.data().join("models")).unwrap();
    entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file())
}

/// Removes the files of a node's models from the page cache.
fn forget_pages(node: &TestNode) {
    for path in files(node) {
        let file = File::open(path).unwrap();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    }
}

fn read_pages(node: &TestNode) {
    for path in files(node) {
        std::fs::read(path).unwrap();
    }
}

/// Whether files there can leave the page cache: those of a file system in memory cannot.
fn has_disk(folder: &Path) -> bool {
    let magic = rustix::fs::statfs(folder).unwrap().f_type;
    let is_disk = ![0x0102_1994, 0x8584_58f6].contains(&magic);
    if !is_disk {
        eprintln!("skipped: {} is in memory", folder.display());
    }
    is_disk
}

#[tokio::test]
async fn cold_model_is_placed_on_the_node_that_has_its_files() {
    if !Etcd::is_installed() {
        return;
    }
    let cluster = TestCluster::builder().set("models.backend", "fake").start(2).await;
    // Only the node that a model was pushed to has its files. It is called through the other node,
    // until the dispatcher has heard of a model before its first call.
    for at in [0, 1] {
        let expected = ["memory_ns", "object_store_ns"];
        let expected = [expected[at], expected[1 - at]].map(Some);
        let mut number = 0;
        let placed = eventually("the news of where a model is", async || {
            let model = format!("m-{at}-{number}");
            number += 1;
            push(&cluster, at, &model).await;
            let placed = infer(&cluster, 1 - at, &model).await;
            (placed.tiers == expected).then_some(placed)
        });
        assert_eq!(placed.await.at, at);
    }
}

#[tokio::test]
async fn cold_model_is_placed_on_the_node_that_has_it_in_memory() {
    if !Etcd::is_installed() {
        return;
    }
    let cluster = TestCluster::builder().set("models.backend", "fake").start(2).await;
    if !has_disk(cluster.nodes[0].data()) {
        return;
    }
    // Both nodes have the files on disk, and one of them in memory, too. The call arrives at the
    // other node.
    for node in &cluster.nodes {
        node.push_model("m", 1, named("m")).await;
    }
    cluster.nodes[0].deploy_with("probe", "models=m&slo_ms=1", function("infer")).await;
    cluster.all_have_heard_of("m").await;
    cluster.all_know("probe").await;
    let nodes = ids(&cluster).await;
    eventually("a rejection", async || probe(&cluster.nodes[0]).await).await;
    for at in [0, 1] {
        let expected = ["memory_ns", "disk_ns"];
        let expected = [expected[at], expected[1 - at]].map(Some);
        // A slow node may read its file, and report that, before the call is placed.
        let placed = eventually("a placement while one node has the model on disk only", async || {
            for node in &cluster.nodes {
                node.post("/v2/repository/models/m/unload", "").await.ok();
            }
            read_pages(&cluster.nodes[at]);
            forget_pages(&cluster.nodes[1 - at]);
            eventually("the news of where the model is", async || {
                let load_ms = load_times_ms(&nodes, &probe(&cluster.nodes[0]).await?);
                // By the assumed bandwidth of disks, since none was measured.
                (load_ms[at] < 200 && load_ms[1 - at] >= 400).then_some(())
            })
            .await;
            let placed = infer(&cluster, 1 - at, "m").await;
            (placed.tiers == expected).then_some(placed)
        });
        assert_eq!(placed.await.at, at);
    }
}
