//! Drivers and machines at their limits: failing graph captures, memory taken by the driver, and
//! few open files.

use super::{ask, with_gpu};
use serde_json::{Value, json};
use weir_tests::{TestNode, digits, eventually, model_with_rows};
use weir_types::ErrorCode;

#[tokio::test]
async fn failed_captures_fail_no_request_and_are_logged_once() {
    let settings = "devices=1,seed=3,fail_instantiate=1000000";
    let node = with_gpu("cuda").env("WEIR_FAKE_CUDA", settings).set("models.slots", 1).start().await;
    node.push_model("digits", 1, digits()).await;
    let mut answers = Vec::new();
    for count in [1, 1, 1, 2, 2, 2, 1] {
        answers.push((count, ask(&node, count).await.0));
    }
    for (count, answer) in &answers {
        let first = answers.iter().find(|(other, _)| other == count).expect("itself");
        assert_eq!(*answer, first.1, "{count} at once");
    }
    let log = node.log();
    let lines: Vec<_> = log.lines().filter(|line| line.contains("CUDA graph capture failed")).collect();
    assert_eq!(lines.len(), 1, "a failure with the same reason is logged once\n{log}");
    assert!(lines[0].contains("digits") && lines[0].contains("CUDA_ERROR_OUT_OF_MEMORY"), "{}", lines[0]);
    assert_eq!(node.metric("weir_device_capture_failures_total", "device=\"cuda:0\"").await, 2.0);
}

/// Runs a model with 16 MiB of weights.
async fn ask_large(node: &TestNode, name: &str) -> weir_tests::Answer {
    let row = json!({"name": "row", "datatype": "INT64", "shape": [1], "data": [7]});
    let square = |name: &str, shape: &[u32]| {
        let count: u32 = shape.iter().product();
        json!({"name": name, "datatype": "FP32", "shape": shape, "data": vec![0.5; count as usize]})
    };
    let inputs = json!({"inputs": [square("x", &[1, 32, 32]), row, square("more", &[32, 32])]});
    node.post(&format!("/v2/models/{name}/infer"), inputs.to_string()).await
}

#[tokio::test]
async fn models_are_evicted_to_make_room_for_driver_memory() {
    // Models may take three quarters of 115 MiB while the driver takes little.
    let settings = "devices=1,seed=3,memory_bytes=134217728,graph_bytes=50331648";
    let node = with_gpu("cuda").env("WEIR_FAKE_CUDA", settings).set("models.slots", 1).start().await;
    let capacity = async || node.metric("weir_device_capacity_bytes", "device=\"cuda:0\"").await;
    let before = capacity().await;
    for (name, value) in [("a", 1.0), ("b", 2.0), ("c", 3.0), ("d", 4.0)] {
        let path = format!("/v1/models/{name}/versions/1");
        node.put(&path, model_with_rows(4_096, value)).await.ok();
    }
    // After three runs the graph is captured, which takes 48 MiB.
    for _ in 0..3 {
        ask_large(&node, "a").await.ok();
    }
    assert_eq!(node.metric("weir_device_outside_pool_bytes", "device=\"cuda:0\"").await, 50_331_648.0);
    let after = eventually("less room for models", async || {
        let now = capacity().await;
        (now < before).then_some(now)
    })
    .await;
    assert!(before - after >= 20_000_000.0, "{before} and {after}");
    // Four models would take 64 MiB and their runs 16 MiB: more than the remaining 80 MiB, with
    // rounding.
    for name in ["b", "c", "d", "a", "b"] {
        let answer = ask_large(&node, name).await;
        assert!(answer.is_ok(), "{name}: {:?}\n{}", answer.refusal(), node.log());
    }
}

#[tokio::test]
async fn model_too_large_beside_driver_memory_is_rejected() {
    let settings = "devices=1,seed=3,memory_bytes=67108864,context_bytes=52428800";
    let node = with_gpu("cuda").env("WEIR_FAKE_CUDA", settings).set("models.slots", 1).start().await;
    let path = "/v1/models/large/versions/1";
    let pushed: Value = node.put(path, model_with_rows(4_096, 1.0)).await.ok().json();
    let why = pushed["devices"][0]["why_not"].as_str().unwrap_or_default();
    assert!(why.contains("bytes; the memory for models is"), "{pushed}");
    let refusal = ask_large(&node, "large").await.refusal();
    assert!(refusal.status == 507 || refusal.code == ErrorCode::NoCapacity, "{refusal:?}");
    // A small model still fits.
    node.push_model("digits", 1, digits()).await;
    ask(&node, 1).await;
}

#[tokio::test]
async fn eight_gpus_are_served_under_a_low_soft_limit_on_open_files() {
    let node = with_gpu("cuda").env("WEIR_FAKE_CUDA", "devices=8,seed=3").set("gateway.connections_max", 100);
    let node = node.open_files(64, 4_096).start().await;
    node.push_model("digits", 1, digits()).await;
    for _ in 0..3 {
        let asked = futures::future::join_all((0..32).map(|_| ask(&node, 1))).await;
        assert!(asked.iter().all(|(values, _)| *values == asked[0].0));
    }
    assert!(!node.log().contains("open files"), "{}", node.log());
}

#[tokio::test]
async fn low_hard_limit_on_open_files_is_reported_at_start() {
    let node = |devices: u32| {
        let settings = format!("devices={devices},seed=3");
        with_gpu("cuda").env("WEIR_FAKE_CUDA", settings).set("gateway.connections_max", 100)
    };
    let Err(log) = node(8).open_files(256, 1_024).try_start().await else {
        panic!("the node started with too few open files")
    };
    assert!(log.contains("1024 open files, the hard limit, are too few for 8 GPUs"), "{log}");
    assert!(log.contains("`ulimit -Hn ") && log.contains("LimitNOFILE="), "{log}");
    // One GPU has enough files, although not for all connections.
    let node = node(1).open_files(256, 1_024).start().await;
    node.push_model("digits", 1, digits()).await;
    ask(&node, 1).await;
    assert!(node.log().contains("too low for gateway.connections_max"), "{}", node.log());
}
