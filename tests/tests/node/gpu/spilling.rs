//! Spilling of intermediates from one GPU, to its sibling or the host.

use super::handing_over::{busy, inferred};
use super::siblings::{WAITS, ask, gated, nothing_is_left, output, settle, start_with};
use super::with_gpu;
use super::workers::{is_back, workers};
use tokio::task::JoinHandle;
use weir_tests::{TestClient, TestNode, eventually, model, signal};

/// Number of calls of [`WAITS`] with a waiting second step. Their first outputs exceed one device's
/// room.
const CALLS: usize = 12;

/// Percentage of a device's free memory for intermediates. Each intermediate takes about 32 KiB.
const PERCENT_MAX: u64 = 4;

/// Starts a node with [`WAITS`]. Returns the node and the device that holds the first steps'
/// outputs.
async fn start(settings: &str) -> (TestNode, String) {
    let node = with_gpu("cuda,cpu").set("intermediates.free_percent_max", PERCENT_MAX);
    let node = start_with(node, settings).await;
    node.put("/v1/models/slow/versions/1?batching.mode=off", model("good/slow.onnx")).await.ok();
    node.put("/v1/workflows/waits", WAITS.to_owned()).await.ok();
    let device = settle(&node).await;
    (node, device)
}

/// Number of intermediates on the given device and on its sibling.
async fn left(node: &TestClient, device: &str) -> [f64; 2] {
    let mut left = [0.0; 2];
    for (left, device) in left.iter_mut().zip([device, sibling_of(device)]) {
        *left = node.metric("weir_device_intermediates", &format!("device=\"{device}\"")).await;
    }
    left
}

fn sibling_of(device: &str) -> &'static str {
    if device == "cuda:0" { "cuda:1" } else { "cuda:0" }
}

/// Bytes spilled from a device to its sibling and to the host.
async fn spilled(node: &TestClient, device: &str) -> [f64; 2] {
    let mut bytes = [0.0; 2];
    for (bytes, to) in bytes.iter_mut().zip(["sibling", "host"]) {
        let labels = format!("device=\"{device}\",to=\"{to}\"");
        *bytes = node.metric("weir_device_spilled_bytes_total", &labels).await;
    }
    bytes
}

/// Waiting calls, the runs that block them, and the expected output.
struct Waiting {
    blockers: [JoinHandle<()>; 2],
    calls: Vec<JoinHandle<Vec<f64>>>,
    expected: Vec<f64>,
}

impl Waiting {
    /// Starts the calls in sequence, so that spilling keeps up.
    async fn begin(node: &TestNode, device: &str) -> Self {
        let expected = output(ask(node, "waits", gated()).await);
        nothing_is_left(node).await;
        let before = inferred(node, "one").await;
        let mut waiting = Self { blockers: busy(node).await, calls: Vec::new(), expected };
        for count in 1..=CALLS {
            let client = TestClient::clone(node);
            waiting.calls.push(tokio::spawn(async move { output(ask(&client, "waits", gated()).await) }));
            let is_left = async || {
                left(node, device).await.iter().sum::<f64>() == count as f64
                    && inferred(node, "one").await == before + count as f64
            };
            eventually("the output of the first step", async || is_left().await.then_some(())).await;
        }
        waiting
    }

    /// Ends the blocking runs, and checks all outputs.
    async fn end(self, node: &TestNode) {
        self.blockers.iter().for_each(JoinHandle::abort);
        for call in self.calls {
            assert!(call.await.expect("an answer") == self.expected);
        }
        nothing_is_left(node).await;
    }
}

#[tokio::test]
async fn intermediates_spill_to_a_sibling_gpu() {
    let (node, device) = start("").await;
    let waiting = Waiting::begin(&node, &device).await;
    let moved = async || {
        let [to_sibling, to_host] = spilled(&node, &device).await;
        (to_sibling > 0.0).then_some((to_sibling, to_host))
    };
    let (to_sibling, to_host) = eventually("the move of a tensor", moved).await;
    assert_eq!(
        (to_sibling % 32_768.0, to_host),
        (0.0, 0.0),
        "tensors did not move whole to the sibling only"
    );
    assert!(left(&node, &device).await[1] > 0.0);
    waiting.end(&node).await;
}

#[tokio::test]
async fn intermediates_spill_to_the_host_without_peer_access() {
    let (node, device) = start(",peer_access=0").await;
    let waiting = Waiting::begin(&node, &device).await;
    let [to_sibling, to_host] = spilled(&node, &device).await;
    assert!(to_sibling == 0.0 && to_host > 0.0, "{to_sibling} {to_host}");
    assert_eq!(left(&node, &device).await, [CALLS as f64, 0.0]);
    waiting.end(&node).await;
}

#[tokio::test]
async fn calls_complete_after_losing_either_gpu() {
    for is_sibling_lost in [false, true] {
        let (node, device) = start("").await;
        let waiting = Waiting::begin(&node, &device).await;
        let is_moved = async || (left(&node, &device).await[1] > 0.0).then_some(());
        eventually("the move of a tensor", is_moved).await;
        let lost = if is_sibling_lost { sibling_of(&device) } else { &device };
        let former = workers(&node)[lost];
        signal(former, "KILL");
        is_back(&node, lost, former).await;
        waiting.end(&node).await;
    }
}
