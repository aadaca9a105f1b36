//! The node answers health checks under full CPU load.

use std::time::{Duration, Instant};
use weir_tests::{TestNode, eventually, function};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_answers_within_50_ms_while_a_hundred_guests_spin() {
    const SPINNING: usize = 100;
    let _alone = crate::alone().await;
    let node = TestNode::start().await;
    node.deploy_with("bad", "limits.cpu_time_ms=300000&limits.deadline_ms=120000", function("misbehave"))
        .await;
    node.deploy("hello", function("hello")).await;
    node.get("/fn/bad/behave").await.ok();
    let spinning: Vec<_> = (0..SPINNING)
        .map(|_| {
            let client = node.client().clone();
            tokio::spawn(async move { client.try_get("/fn/bad/spin").await })
        })
        .collect();
    eventually("a hundred guests", async || (node.status().await.running == SPINNING as u64).then_some(()))
        .await;
    let mut times = Vec::new();
    for _ in 0..100 {
        let began = Instant::now();
        node.get("/healthz").await.ok();
        times.push(began.elapsed());
    }
    times.sort();
    let median = times[times.len() / 2];
    let worst = times[times.len() - 1];
    println!("/healthz beside {SPINNING} spinning guests: median {median:?}, worst {worst:?}");
    assert!(times[times.len() - 2] < Duration::from_millis(50), "median {median:?}, worst {worst:?}");
    // Other functions get their share of the CPU.
    for _ in 0..5 {
        assert_eq!(node.get("/fn/hello/x").await.ok().text(), "hello, x\n");
    }
    spinning.iter().for_each(tokio::task::JoinHandle::abort);
    eventually("the end of the guests", async || (node.status().await.running == 0).then_some(())).await;
}
