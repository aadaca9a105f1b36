//! Functions that use the device for a small part of their life.

use futures::future::join_all;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use weir_tests::{TestClient, TestNode, eventually_within, function};

/// Each call uses the device for 5 % of its life.
const RUN_MS: u64 = 20;
const PAUSE_MS: u64 = 380;
/// Twice as many calls as fill the device.
const CLIENTS: usize = 40;
/// Calls before the measurement, from which the scheduler learns, and calls that are measured.
const WARM_UP: u64 = 150;
const MEASURED: u64 = 300;

fn model() -> String {
    let port = |name: &str| json!({"name": name, "datatype": "FP32", "shape": [1]});
    json!({
        "run_time_ms": {"1": RUN_MS},
        "resident_bytes": 1_000,
        "signature": {"inputs": [port("x")], "outputs": [port("y")]},
    })
    .to_string()
}

/// Calls per second while `clients` clients repeat a call.
async fn throughput(node: &TestNode, clients: usize, path: &str, body: &[u8]) -> f64 {
    let done = Arc::new(AtomicU64::new(0));
    let calling = (0..clients).map(|_| {
        let done = done.clone();
        let client = TestClient::clone(node);
        let path = path.to_owned();
        let body = body.to_vec();
        tokio::spawn(async move {
            loop {
                client.post(&path, body.clone()).await.ok();
                done.fetch_add(1, Ordering::Relaxed);
            }
        })
    });
    let calling: Vec<_> = calling.collect();
    let reach = async |count: u64| {
        eventually_within(Duration::from_secs(60), "more calls", async || {
            let done = done.load(Ordering::Relaxed);
            (done >= count).then(|| (done, Instant::now()))
        })
        .await
    };
    let first = reach(WARM_UP).await;
    let last = reach(first.0 + MEASURED).await;
    calling.iter().for_each(tokio::task::JoinHandle::abort);
    // Calls of the next measurement do not meet those of this one.
    join_all(calling).await;
    (last.0 - first.0) as f64 / (last.1 - first.1).as_secs_f64()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn function_with_a_small_device_share_fills_the_device() {
    let _alone = crate::alone().await;
    let node = TestNode::builder().set("models.backend", "fake").set("models.slots", 1).start().await;
    node.put("/v1/models/m/versions/1?batching.mode=off", model()).await.ok();
    node.deploy_with("chain", "models=m", function("chain")).await;
    let input = json!({"name": "x", "datatype": "FP32", "shape": [1], "data": [0.5]});
    let infer = json!({"inputs": [input]}).to_string();
    let device = throughput(&node, 4, "/v2/models/m/infer", infer.as_bytes()).await;
    let path = format!("/fn/chain/m?shape=1&read=no&pause_ms={PAUSE_MS}");
    let function = throughput(&node, CLIENTS, &path, &0.5_f32.to_le_bytes()).await;
    println!(
        "the device makes {device:.1} runs per second with inferences, and {function:.1} with a function"
    );
    assert!(function >= 0.95 * device, "{function} of {device} runs per second");
}
