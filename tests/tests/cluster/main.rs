//! End-to-end tests of clusters.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod activator;
mod aliases;
mod apart;
mod asynchronous;
mod backup;
mod canaries;
mod enrolment;
mod faults;
mod function_secrets;
mod handing_over;
mod hedging;
mod keys;
mod lost_folder;
mod placing;
mod prefetching;
mod replaced;
mod secrets;
mod sharing;
mod staging;
mod tls;
mod traces;
mod triggers;
mod visibility;
mod websockets;

use weir_tests::{ClusterBuilder, TestCluster, function};

/// Fake model with these load and run times.
fn fake(load_time_ms: u32, run_time_ms: u32, resident_bytes: u64) -> String {
    serde_json::json!({
        "load_time_ms": load_time_ms,
        "run_time_ms": { "1": run_time_ms },
        "resident_bytes": resident_bytes,
        "signature": {
            "inputs": [{ "name": "x", "datatype": "FP32", "shape": [null, 1] }],
            "outputs": [{ "name": "y", "datatype": "FP32", "shape": [null, 1] }],
        },
    })
    .to_string()
}

/// Path that runs the model of [`one_model`]'s function on one number.
const INFER: &str = "/fn/infer/m?shape=1,1";

/// Starts a cluster with a function that runs the model `m`, and waits until all nodes know both.
async fn one_model(nodes: usize, query: &str, run_time_ms: u32) -> TestCluster {
    one_model_in(TestCluster::builder(), nodes, query, run_time_ms).await
}

/// Like [`one_model`], with other settings.
async fn one_model_in(builder: ClusterBuilder, nodes: usize, query: &str, run_time_ms: u32) -> TestCluster {
    let cluster = builder.set("models.backend", "fake").start(nodes).await;
    cluster.nodes[0].push_model("m", 1, fake(5, run_time_ms, 1_000)).await;
    cluster.nodes[0].deploy_with("infer", &format!("models=m{query}"), function("infer")).await;
    cluster.all_have_heard_of("m").await;
    cluster.all_know("infer").await;
    cluster
}
