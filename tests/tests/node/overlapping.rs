//! Runs that a function starts asynchronously: blocking waits, `wasi:io` pollables, cancellation
//! and deadlines.

use std::time::{Duration, Instant};
use weir_tests::{TestNode, eventually, function, model};

async fn node() -> TestNode {
    let node = TestNode::start().await;
    node.push_model("m", 1, model("good/matmul.onnx")).await;
    node.push_model("slow", 1, model("good/slow.onnx")).await;
    node.deploy_with("f", "models=m,slow", function("overlap")).await;
    node
}

fn row() -> Vec<u8> {
    [1.0_f32, 2.0, 3.0, 4.0].iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// A number of steps that never completes.
fn without_end() -> Vec<u8> {
    i64::MAX.to_le_bytes().to_vec()
}

#[tokio::test]
async fn runs_can_be_waited_for_and_polled() {
    let node = node().await;
    let one = node.post("/fn/f/deadline/m?shape=1,4&after_ms=10000", row()).await.ok().body;
    assert_eq!(one.len(), 12);
    let twice = [&one[..], &one[..]].concat();
    for how in ["wait", "await"] {
        let answer = node.post(&format!("/fn/f/{how}/m?shape=1,4"), row()).await.ok();
        assert_eq!(answer.body, twice, "{how}");
    }
}

#[tokio::test]
async fn run_ends_on_cancellation_or_deadline() {
    let node = node().await;
    node.post("/fn/f/wait/m?shape=1,4", row()).await.ok();
    for (path, status, word) in
        [("cancel/slow", 503, "Cancelled"), ("deadline/slow?after_ms=100", 504, "DeadlineExceeded")]
    {
        let began = Instant::now();
        let answer = node.post(&format!("/fn/f/{path}"), without_end()).await;
        assert_eq!((answer.status, answer.text()), (status, &*format!("{word}\n")), "{path}");
        assert!(began.elapsed() < Duration::from_secs(5), "{path} took {:?}", began.elapsed());
    }
    // The device is free again.
    node.post("/fn/f/wait/m?shape=1,4", row()).await.ok();
}

/// Input for a run of `count` steps.
fn steps(count: i64) -> Vec<u8> {
    count.to_le_bytes().to_vec()
}

#[tokio::test]
async fn runs_inherit_the_priority_of_their_call() {
    let node = TestNode::builder().set("models.slots", 1).start().await;
    node.push_model("slow", 1, model("good/slow.onnx")).await;
    node.deploy_with("f", "models=slow", function("overlap")).await;
    let waiting = async |count: u64| {
        eventually("the queue of runs", async || {
            (node.status().await.devices[0].runs_waiting == count).then_some(())
        })
        .await;
    };
    // One endless call takes the only slot; when the other one waits, both have arrived.
    let busy = [(); 2].map(|()| {
        let client = node.client().clone();
        tokio::spawn(async move { client.post("/fn/f/deadline/slow?after_ms=60000", without_end()).await })
    });
    waiting(1).await;
    let (finished, mut order) = tokio::sync::mpsc::unbounded_channel();
    for (at, priority) in [(1, None), (2, Some("1"))] {
        let client = node.client().clone();
        let finished = finished.clone();
        tokio::spawn(async move {
            let mut request = client.request(reqwest::Method::POST, "/fn/f/wait/slow").body(steps(10_000));
            if let Some(priority) = priority {
                request = request.header("weir-priority", priority);
            }
            let status = request.send().await.unwrap().status();
            finished.send((at, status.as_u16())).unwrap();
        });
        // Each call makes two runs.
        waiting(1 + 2 * at).await;
    }
    busy.iter().for_each(tokio::task::JoinHandle::abort);
    let ends = [order.recv().await.unwrap(), order.recv().await.unwrap()];
    assert_eq!(ends.map(|(at, _)| at), [2, 1], "the urgent call ended last: {ends:?}");
}
