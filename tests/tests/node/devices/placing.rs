//! Model placement and residency per device.

use super::{device, infer, node, push, ran_on, resident};
use serde_json::{Value, json};
use weir_tests::{TestNode, eventually, function};
use weir_types::ErrorCode;
use weir_types::api::ModelVersion;

/// Direct inferences need no instance.
#[tokio::test]
async fn instance_limit_does_not_limit_direct_inferences() {
    let node = node("cpu,fake:x", 5_000).set("models.slots", 3).set("sandbox.instances_max", 1);
    let node = node.set("gateway.infer_wall_ms_max", 3_600_000).start().await;
    push(&node, "held", "device=fake", json!({"run_time_ms": {"1": 3_600_000}})).await.ok();
    let held = (0..3).map(|_| Box::pin(infer(&node, "held", 1)));
    let all_run = eventually("all three to run", async || (node.status().await.running == 3).then_some(()));
    tokio::select! {
        ended = futures::future::select_all(held) => panic!("a run that lasts an hour has ended: {:?}", ended.0),
        () = all_run => {}
    }
}

#[tokio::test]
async fn all_devices_are_listed_with_their_settings() {
    let node = node("cpu,fake:slow,fake:fast", 5_000).set("models.slots", 3).start().await;
    let devices = node.status().await.devices;
    let listed: Vec<_> = devices.iter().map(|device| (&*device.name, &*device.kind)).collect();
    assert_eq!(listed, [("cpu", "cpu"), ("fake:1", "slow"), ("fake:2", "fast")]);
    assert!(devices.iter().all(|device| (device.slots, device.capacity_bytes) == (3, 5_000)));
    assert!(devices.iter().all(|device| device.lost.is_none()));
    assert_eq!(node.metric("weir_device_up", "").await, 3.0);
    // Without the setting, a node has only its CPU.
    let plain = TestNode::builder().set("models.backend", "fake").start().await;
    let devices = plain.status().await.devices;
    assert_eq!(devices.iter().map(|device| &*device.name).collect::<Vec<_>>(), ["cpu"]);
}

#[tokio::test]
async fn invalid_devices_are_reported_at_start() {
    for (devices, what) in [
        ("gpu", "\"gpu\" is no device"),
        ("cpu,cpu", "cpu is named twice"),
        ("fake:x", "models.backend = \"fake\""),
    ] {
        let started = TestNode::builder().argument("--devices").argument(devices).try_start().await;
        let log = started.err().expect("the node started");
        assert!(log.contains(what), "{devices}: {log}");
    }
}

#[tokio::test]
async fn model_migrates_to_the_fastest_device() {
    let node = node("cpu,fake:fast,fake:slow", 5_000).start().await;
    let times = |ms: u32| json!({"load_time_ms": 5, "run_time_ms": {"1": ms}});
    let more = json!({"run_time_ms": {"1": 60}, "on": {"fast": times(2), "slow": times(30)}});
    push(&node, "m", "", more).await.ok();
    let mut places = Vec::new();
    for _ in 0..30 {
        places.push(ran_on(&node, "m").await);
    }
    assert!(places[20..].iter().all(|place| place == "fake:1"), "{places:?}");
    // Measurements are reported by device, and in the protocol's statistics.
    let model: ModelVersion = node.get("/v1/models/m/versions/1").await.ok().json();
    let fast = model.devices.iter().find(|known| known.kind == "fast").unwrap();
    assert!(fast.resident && fast.why_not.is_none() && fast.profile.run_time_ns[&1].mean < 30e6, "{model:?}");
    let stats: Value = node.get("/v2/models/m/stats").await.ok().json();
    let usage = stats["model_stats"][0]["memory_usage"].as_array().unwrap();
    assert!(usage.contains(&json!({"type": "GPU", "id": 0, "byte_size": 1_000})), "{usage:?}");
    let config: Value = node.get("/v2/models/m/config").await.ok().json();
    assert_eq!(config["instance_group"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn devices_have_separate_memory() {
    // Room for one model per device.
    let node = node("cpu,fake:x,fake:x", 1_500).start().await;
    for (name, query) in
        [("a", "device=fake"), ("b", "device=fake"), ("c", "device=cpu"), ("d", "device=cpu")]
    {
        push(&node, name, query, json!({"load_time_ms": 100, "run_time_ms": {"1": 1}})).await.ok();
    }
    for _ in 0..5 {
        for name in ["a", "b", "c"] {
            infer(&node, name, 1).await.ok();
        }
    }
    assert_eq!(
        node.metric("weir_cold_starts_total", "cause=\"model\"").await,
        3.0,
        "a model was evicted and loaded again"
    );
    let mut fakes = resident(&node).await.split_off(1);
    fakes.sort();
    assert_eq!(fakes, [["a:1"], ["b:1"]]);
    // Another CPU model evicts only on the CPU.
    infer(&node, "d", 1).await.ok();
    assert_eq!(resident(&node).await[0], ["d:1"]);
    let mut fakes = resident(&node).await.split_off(1);
    fakes.sort();
    assert_eq!(fakes, [["a:1"], ["b:1"]]);
    assert_eq!(node.metric("weir_model_resident_bytes", "").await, 3_000.0);
    assert_eq!(node.metric("weir_model_resident_bytes", "device=\"cpu\"").await, 1_000.0);
    // Unloading a model removes it from its device.
    for name in ["a", "b"] {
        node.post(&format!("/v2/repository/models/{name}/unload"), "").await.ok();
    }
    let gone = async || resident(&node).await[1..].iter().all(Vec::is_empty).then_some(());
    eventually("the unloads", gone).await;
}

#[tokio::test]
async fn functions_and_workflows_run_models_on_the_placed_device() {
    let node = node("cpu,fake:x", 5_000).start().await;
    push(&node, "m", "device=fake", json!({})).await.ok();
    node.deploy_with("infer", "models=m", function("infer")).await;
    node.post("/fn/infer/m?shape=1,1", 1_f32.to_le_bytes().to_vec()).await.ok();
    assert_eq!(resident(&node).await, [vec![], vec!["m:1".to_owned()]]);
    let workflow = "inputs.x = \"FP32[?, 1]\"\noutputs.y = \"run\"\nsteps.run = { run = \"m\", inputs = { x = \"x\" } }\n";
    node.post("/v2/repository/models/m/unload", "").await.ok();
    let gone = async || resident(&node).await[1].is_empty().then_some(());
    eventually("the unload", gone).await;
    node.put("/v1/workflows/flow", workflow).await.ok();
    infer(&node, "flow", 1).await.ok();
    assert_eq!(resident(&node).await, [vec![], vec!["m:1".to_owned()]]);
}

#[tokio::test]
async fn device_setting_of_a_model_is_enforced() {
    let node = node("cpu,fake:x", 5_000).start().await;
    push(
        &node,
        "here",
        "device=cpu",
        json!({"on": {"x": {"run_time_ms": {"1": 0}}}, "run_time_ms": {"1": 20}}),
    )
    .await
    .ok();
    for _ in 0..5 {
        assert_eq!(ran_on(&node, "here").await, "cpu");
    }
    let model: ModelVersion = node.get("/v1/models/here/versions/1").await.ok().json();
    let why = model.devices[1].why_not.as_ref().unwrap();
    assert!(why.contains("device = \"cpu\""), "{why}");
    let refused = push(&node, "nowhere", "device=fake", json!({"platforms": ["cpu"]})).await.refusal();
    assert_eq!((refused.status, refused.code), (422, ErrorCode::InvalidModel), "{}", refused.text);
    assert!(
        refused.text.contains("device = \"fake\"") && refused.text.contains("it says so"),
        "{}",
        refused.text
    );
    let unknown = push(&node, "m", "device=tpu", json!({})).await;
    assert_eq!(unknown.code(), ErrorCode::InvalidManifest);
    // The model has a form for CUDA, but the node has no such device.
    let refused = push(&node, "gpu", "device=cuda", json!({})).await;
    assert_eq!(refused.code(), ErrorCode::InvalidModel);
    assert_eq!(device(&node, "cpu").await.resident, ["here:1"]);
}
