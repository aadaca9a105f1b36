//! The scheduler's decisions at default settings, and their explanations.

use super::{infer, node, push};
use futures::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use weir_tests::{Answer, TestClient, TestNode, eventually};
use weir_types::ErrorCode;

/// Devices of one kind, so that only their load matters.
const DEVICES: &str = "fake:x,fake:x";

async fn start(policy: &str) -> TestNode {
    node(DEVICES, 5_000).set("scheduler.policy", policy).start().await
}

async fn push_hot(node: &TestClient, load_time_ms: u64, run_time_ms: u64) {
    let more = json!({"load_time_ms": load_time_ms, "run_time_ms": {"1": run_time_ms}});
    push(node, "hot", "batching.mode=off", more).await.ok();
}

/// Runs four inferences per run slot of the node at once, and counts the runs of each device.
async fn burst(node: &TestClient) -> BTreeMap<String, usize> {
    let slots: u32 = node.status().await.devices.iter().map(|device| device.slots).sum();
    let calls = (0..4 * slots).map(|_| infer(node, "hot", 1));
    let mut runs = BTreeMap::new();
    for answer in join_all(calls).await {
        *runs.entry(answer.ok().header("weir-device").unwrap().to_owned()).or_default() += 1;
    }
    runs
}

#[tokio::test]
async fn hot_model_uses_all_devices_under_every_policy() {
    for policy in ["lb", "lalb", "lalb-o3", "finish-first"] {
        let node = start(policy).await;
        push_hot(&node, 1, 60).await;
        // The first inferences teach the load and run times.
        for _ in 0..3 {
            infer(&node, "hot", 1).await.ok();
        }
        let runs = burst(&node).await;
        assert_eq!(runs.len(), 2, "{policy}: {runs:?}");
        assert!(runs.values().all(|runs| *runs > 1), "{policy}: {runs:?}");
    }
}

#[tokio::test]
async fn lalb_waits_for_a_busy_holder_if_a_load_takes_longer() {
    let node = start("lalb").await;
    push_hot(&node, 2_000, 20).await;
    infer(&node, "hot", 1).await.ok();
    let runs = burst(&node).await;
    assert_eq!(runs.len(), 1, "the wait is shorter than a load: {runs:?}");
}

async fn placement(node: &TestClient, request_id: &str) -> Value {
    node.get(&format!("/v1/placements/{request_id}")).await.ok().json()
}

async fn infer_as(node: &TestClient, model: &str, request_id: &str) -> Answer {
    let input = json!({"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [0.5]});
    let request = node.request(Method::POST, &format!("/v2/models/{model}/infer"));
    let request = request.header("weir-request-id", request_id).header("weir-explain", "1");
    node.send(request.body(json!({"inputs": [input]}).to_string())).await
}

#[tokio::test]
async fn placements_are_explained_with_estimate_and_outcome() {
    let node = start("finish-first").await;
    push_hot(&node, 80, 40).await;
    let loaded = infer_as(&node, "hot", "first call").await.ok();
    let header: Value = serde_json::from_str(loaded.header("weir-placement").unwrap()).unwrap();
    assert!(header["device"]["ordinal"].is_u64(), "{header}");
    let first = placement(&node, "first%20call").await;
    assert_eq!(header["invocation"], first["invocation"], "{header}");
    assert_eq!(first["invocation"].as_str().map(str::len), Some(16), "{first}");
    let times = |placement: &Value, part: &str| placement["outcome"][part].as_u64().unwrap() / 1_000_000;
    assert!(times(&first, "load_time_ns") >= 80 && times(&first, "run_time_ns") >= 40, "{first}");
    // The second call is a hit, and its estimate is learned.
    infer_as(&node, "hot", "second").await.ok();
    let second = placement(&node, "second").await;
    assert_eq!(times(&second, "load_time_ns"), 0, "{second}");
    let estimate_ms = second["why"]["estimate"]["run_time_ns"].as_u64().unwrap() / 1_000_000;
    assert!((35..80).contains(&estimate_ms), "{second}");
    assert!(second["ratio"]["total"].as_f64().unwrap() > 0.2, "{second}");
    assert!(second["ratio"].get("move").is_some(), "{second}");
    assert_eq!(node.metric("weir_placement_estimate_ratio_count", "kind=\"x\"").await, 2.0);
    let shown = node.weir(&["why", "second"]).await.unwrap();
    let device = usize::try_from(header["device"]["ordinal"].as_u64().unwrap()).unwrap();
    let device = node.status().await.devices[device].name.clone();
    assert!(shown.contains(&format!("placed on {device}.")) && shown.contains("(actual)"), "{shown}");
    // The placements of calls that waited for a slot contain the waiting time.
    burst(&node).await;
    let slots: u32 = node.status().await.devices.iter().map(|device| device.slots).sum();
    let names: Vec<_> = (0..4 * slots).map(|call| format!("waits-{call}")).collect();
    for answer in join_all(names.iter().map(|name| infer_as(&node, "hot", name))).await {
        answer.ok();
    }
    let mut queued_ns = Vec::new();
    for name in &names {
        queued_ns.push(placement(&node, name).await["why"]["queued_ns"].as_u64().unwrap());
    }
    assert!(queued_ns.iter().any(|queued_ns| *queued_ns > 10_000_000), "{queued_ns:?}");
    let unknown = node.get("/v1/placements/unknown").await;
    assert_eq!((unknown.status, unknown.code()), (404, ErrorCode::InvocationNotFound));
}

/// The gauges that an autoscaler divides.
#[tokio::test]
async fn backlog_counts_work_until_it_has_ended() {
    let node = start("finish-first").await;
    push_hot(&node, 1, 1_500).await;
    // The first inferences teach the run time.
    infer(&node, "hot", 1).await.ok();
    let slots: u32 = node.status().await.devices.iter().map(|device| device.slots).sum();
    assert_eq!(node.metric("weir_scheduler_run_slots", "").await, f64::from(slots));
    let backlog_s = async |state: &str| {
        node.metric("weir_scheduler_backlog_seconds", &format!("state=\"{state}\"")).await
    };
    let device_backlog_s = async |device: u32| {
        let labels = format!("node=\"0\",device=\"{device}\"");
        node.metric("weir_scheduler_device_backlog_seconds", &labels).await
    };
    let all = join_all((0..4 * slots).map(|_| infer(&node, "hot", 1)));
    let growing = eventually("a backlog", async || {
        let is_full = backlog_s("waiting").await >= 1.5 && backlog_s("committed").await >= 1.5;
        let [one, other] = [device_backlog_s(0).await, device_backlog_s(1).await];
        (is_full && one >= 1.5 && other >= 1.5).then_some(())
    });
    let (answers, ()) = tokio::join!(all, growing);
    answers.into_iter().for_each(|answer| drop(answer.ok()));
    eventually("no backlog", async || {
        let all = backlog_s("waiting").await + backlog_s("committed").await;
        (all + device_backlog_s(0).await + device_backlog_s(1).await == 0.0).then_some(())
    })
    .await;
}

/// The sum of an estimate's load times by tier.
fn load_by_tier_ns(estimate: &Value) -> u64 {
    let by_tier = estimate["load_by_tier"].as_object().into_iter().flatten();
    by_tier.map(|(_, time_ns)| time_ns.as_u64().unwrap()).sum()
}

#[tokio::test]
async fn rejection_by_an_slo_is_explained() {
    let node = start("finish-first").await;
    push(&node, "hot", "batching.mode=off&slo_ms=2000", json!({"run_time_ms": {"1": 100}})).await.ok();
    push(&node, "cold", "batching.mode=off&slo_ms=100", json!({"load_time_ms": 150})).await.ok();
    for _ in 0..3 {
        infer(&node, "hot", 1).await.ok();
    }
    // Far more calls at once than the devices can finish in time.
    let slots: u32 = node.status().await.devices.iter().map(|device| device.slots).sum();
    let hot: Vec<_> = (0..40 * slots).map(|call| format!("hot-{call}")).collect();
    let all_hot = join_all(hot.iter().map(|name| infer_as(&node, "hot", name)));
    // Both devices are full as soon as a call is rejected.
    let one_cold = async {
        let labels = "model=\"hot\",version=\"1\",outcome=\"rejected\"";
        eventually("a rejection", async || {
            (node.metric("weir_slo_inferences_total", labels).await > 0.0).then_some(())
        })
        .await;
        infer_as(&node, "cold", "cold").await
    };
    let (answers, cold) = tokio::join!(all_hot, one_cold);
    let rejected = hot.iter().zip(&answers).find(|(_, answer)| answer.status == 503);
    let (name, answer) = rejected.expect("no call was rejected");
    assert_eq!((answer.code(), cold.code()), (ErrorCode::SloUnattainable, ErrorCode::SloUnattainable));
    let placed = placement(&node, name).await;
    assert_eq!(placed["rejection"], json!("slo"), "{placed}");
    let estimate = &placed["why"]["estimate"];
    assert!(estimate["wait_ns"].as_u64().unwrap() > 1_000_000_000, "{placed}");
    assert!(estimate["run_time_ns"].as_u64().unwrap() >= 90_000_000, "{placed}");
    assert_eq!((&estimate["load_time_ns"], load_by_tier_ns(estimate)), (&json!(0), 0), "{placed}");
    // The model of the other call would have been loaded first.
    let placed = placement(&node, "cold").await;
    let closest = placed["why"]["alternatives"].as_array().unwrap();
    assert_eq!((closest.len(), &closest[0]["estimate"]), (2, &placed["why"]["estimate"]), "{placed}");
    for device in closest {
        let estimate = &device["estimate"];
        assert!(estimate["load_time_ns"].as_u64().unwrap() > 0, "{placed}");
        assert_eq!(estimate["load_time_ns"], load_by_tier_ns(estimate), "{placed}");
    }
    let shown = node.weir(&["why", "cold"]).await.unwrap();
    assert!(shown.contains("missed its service level objective"), "{shown}");
    assert!(shown.contains("expected to load from"), "{shown}");
    let second = node.status().await.devices[1].name.clone();
    assert!(shown.contains(&second), "{shown}");
}
