//! Model workers: one process per device for all tenants, restarted on failure, and ended with the
//! node.

use super::{ask, with_gpu};
use serde_json::{Value, json};
use std::cell::Cell;
use std::collections::BTreeMap;
use weir_tests::{Answer, NodeBuilder, TestClient, TestNode, children, digits, eventually, signal};
use weir_types::ErrorCode;

/// Builder of a node with driver settings, and one run slot per device.
fn with_driver(settings: &str) -> NodeBuilder {
    with_gpu("cuda").env("WEIR_FAKE_CUDA", settings).set("models.slots", 1)
}

/// Worker PIDs of a node by device.
pub(super) fn workers(node: &TestNode) -> BTreeMap<String, u32> {
    let device = |pid: u32| {
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let words: Vec<_> = command.split(|byte| *byte == 0).collect();
        let is_worker = words.get(1).is_some_and(|word| *word == b"__run-models");
        is_worker.then(|| (String::from_utf8_lossy(words[2]).into_owned(), pid))
    };
    children(node.pid()).into_iter().filter_map(device).collect()
}

/// Whether a process runs and is no zombie.
fn is_running(pid: u32) -> bool {
    std::fs::read_link(format!("/proc/{pid}/exe")).is_ok()
}

async fn infer(node: &TestClient) -> Answer {
    let input = json!({"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": vec![1.0; 64]});
    node.post("/v2/models/digits/infer", json!({ "inputs": [input] }).to_string()).await
}

/// Checks that the error is retryable, and returns its message.
#[track_caller]
fn lost(answer: &Answer) -> String {
    let refusal = answer.refusal();
    // `unavailable`: the call had not begun on the device.
    let is_loss = matches!(refusal.code, ErrorCode::WorkerLost | ErrorCode::Unavailable);
    assert!(refusal.status == 503 && is_loss, "{refusal:?}");
    refusal.text
}

#[tokio::test]
async fn device_fault_restarts_only_its_own_worker() {
    let node = with_driver("devices=2,seed=3,fault_device=0,launches_left=60").start().await;
    node.push_model("digits", 1, digits()).await;
    let before = workers(&node);
    assert_eq!(before.keys().collect::<Vec<_>>(), ["cuda:0", "cuda:1"]);
    // All workers compute equal values.
    let mut answers: BTreeMap<String, usize> = BTreeMap::new();
    let mut expected = None;
    let mut failed = 0;
    let enough = async || {
        for answer in futures::future::join_all((0..6).map(|_| infer(&node))).await {
            if !answer.is_ok() {
                let why = lost(&answer);
                assert!(!why.contains("cuda:1"), "{why}");
                failed += 1;
                continue;
            }
            let device = answer.header("weir-device").unwrap_or_default().to_owned();
            let values = answer.json::<Value>()["outputs"][0]["data"].clone();
            assert_eq!(*expected.get_or_insert(values.clone()), values, "on {device}");
            *answers.entry(device).or_default() += 1;
        }
        let of = |device| answers.get(device).copied().unwrap_or_default();
        (failed > 0 && of("cuda:0") > 20 && of("cuda:1") > 20).then_some(())
    };
    eventually("both devices to have worked, and one to have failed", enough).await;
    let after =
        eventually("the workers", async || Some(workers(&node)).filter(|there| there.len() == 2)).await;
    assert_eq!(before["cuda:1"], after["cuda:1"], "the worker of the other device was restarted");
    assert_ne!(before["cuda:0"], after["cuda:0"], "the worker was not restarted");
    assert!(node.metric("weir_device_losses_total", "device=\"cuda:0\"").await >= 1.0);
    assert_eq!(node.metric("weir_device_losses_total", "device=\"cuda:1\"").await, 0.0);
}

/// Waits until the device has a worker other than `former` and is up.
pub(super) async fn is_back(node: &TestNode, device: &str, former: u32) {
    eventually("another worker", async || {
        // Check the worker first: only a new worker implies that the loss was noticed.
        workers(node).get(device).filter(|pid| **pid != former)?;
        let devices = node.status().await.devices;
        devices.iter().any(|there| there.name == device && there.lost.is_none()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn killed_worker_is_replaced_without_affecting_others() {
    let node = with_driver("devices=2,seed=3").start().await;
    node.push_model("digits", 1, digits()).await;
    let (values, device) = ask(&node, 1).await;
    let before = workers(&node);
    let (other, bystander) = before.iter().find(|(name, _)| **name != device).expect("another device");

    // Kill the idle device's worker while calls run on the other device.
    signal(*bystander, "KILL");
    for _ in 0..10 {
        infer(&node).await.ok();
    }
    is_back(&node, other, *bystander).await;
    assert_eq!(workers(&node)[&device], before[&device]);

    // Kill a worker without any calls.
    let killed = before[&device];
    signal(killed, "KILL");
    is_back(&node, &device, killed).await;
    // The resident model is reloaded.
    eventually("the model", async || {
        let devices = node.status().await.devices;
        devices.iter().any(|there| there.name == device && there.resident == ["digits:1"]).then_some(())
    })
    .await;
    assert_eq!(ask(&node, 1).await.0, values);

    // Kill a worker during runs.
    let killed = workers(&node)[&device];
    let untouched = workers(&node)[other];
    let is_killed = Cell::new(false);
    let calls = async {
        let mut answers = Vec::new();
        while !is_killed.get() {
            answers.extend(futures::future::join_all((0..8).map(|_| infer(&node))).await);
        }
        answers
    };
    let kill = async {
        let runs = async || (node.status().await.running > 0).then_some(());
        eventually("a call", runs).await;
        signal(killed, "KILL");
        is_killed.set(true);
    };
    for answer in tokio::join!(calls, kill).0.iter().filter(|answer| !answer.is_ok()) {
        let why = lost(answer);
        assert!(!why.contains(other.as_str()), "{why}");
    }
    is_back(&node, &device, killed).await;
    assert_eq!(workers(&node)[other], untouched);
    assert_eq!(ask(&node, 1).await.0, values);
}

#[tokio::test]
async fn hung_run_is_ended_with_its_worker() {
    // The driver hangs at a launch.
    let builder = with_driver("devices=1,seed=3,launches_left=40,fault=-1").set("gpu.run_wall_ms_max", 2_000);
    let node = builder.start().await;
    node.push_model("digits", 1, digits()).await;
    let why = eventually("the driver to stop", async || {
        let answer = infer(&node).await;
        (!answer.is_ok()).then(|| lost(&answer))
    })
    .await;
    assert!(why.contains("took longer than 2000 ms (gpu.run_wall_ms_max)"), "{why}");
    eventually("the next worker", async || infer(&node).await.is_ok().then_some(())).await;
}

#[tokio::test]
async fn deadline_is_reported_while_the_device_hangs() {
    let node = with_driver("devices=1,seed=3,launches_left=0,fault=-1").start().await;
    node.push_model("digits", 1, digits()).await;
    let input = json!({"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": vec![1.0; 64]});
    let body = json!({"inputs": [input], "parameters": {"timeout": 300_000}}).to_string();
    let refusal = node.post("/v2/models/digits/infer", body).await.refusal();
    assert_eq!(refusal.code, ErrorCode::DeadlineExceeded, "{refusal:?}");
    assert_eq!(workers(&node).len(), 1, "the worker was killed before its time limit");
    node.stop().await;
}

#[tokio::test]
async fn worker_serves_all_tenants_without_secrets_and_ends_with_its_node() {
    let node = with_driver("devices=1,seed=3")
        .env("AWS_SECRET_ACCESS_KEY", "not for workers")
        .tokens(&["the-token-of-alice alice", "the-token-of-bob bob"])
        .start()
        .await;
    let tenants = [node.with_token("the-token-of-alice"), node.with_token("the-token-of-bob")];
    for tenant in &tenants {
        tenant.push_model("digits", 1, digits()).await;
    }
    for tenant in [&tenants[0], &tenants[1], &tenants[0]] {
        infer(tenant).await.ok();
    }
    let of = workers(&node);
    let [worker] = of.values().copied().collect::<Vec<_>>()[..] else {
        panic!("expected one worker: {of:?}")
    };
    let environment = std::fs::read(format!("/proc/{worker}/environ")).expect("the worker is not running");
    assert!(!String::from_utf8_lossy(&environment).contains("not for workers"));
    let builder = node.kill().await;
    eventually("the end of the worker", async || (!is_running(worker)).then_some(())).await;

    let node = builder.start().await;
    let of = workers(&node);
    let worker = of["cuda:0"];
    node.stop().await;
    eventually("the end of the worker", async || (!is_running(worker)).then_some(())).await;
}
