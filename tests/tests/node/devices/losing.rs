//! Device loss: calls on the device fail with a retryable error, other devices are unaffected, and
//! the device comes back.

use super::{device, infer, node, push, ran_on};
use serde_json::json;
use std::time::Duration;
use weir_tests::{TestClient, eventually};
use weir_types::ErrorCode;

/// Pushes a model whose run loses its accelerator for `time_ms`.
async fn breaks(node: &TestClient, time_ms: u64) {
    let loses = || json!({"loses_device_ms": time_ms});
    push(node, "breaks", "device=fake", json!({"on": {"x": loses(), "y": loses()}})).await.ok();
}

#[tokio::test]
async fn device_loss_does_not_affect_other_devices() {
    let node = node("cpu,fake:x,fake:y", 1_500).start().await;
    breaks(&node, 3_600_000).await;
    for (name, query) in [("here", "device=cpu"), ("there", "device=fake")] {
        push(&node, name, query, json!({"run_time_ms": {"1": 1}})).await.ok();
        infer(&node, name, 1).await.ok();
    }
    let refused = infer(&node, "breaks", 1).await.refusal();
    assert_eq!((refused.status, refused.code), (503, ErrorCode::WorkerLost), "{refused:?}");
    assert!(
        refused.text.contains("the device was lost") && refused.text.contains("try again"),
        "{refused:?}"
    );
    let devices = node.status().await.devices;
    let lost: Vec<_> = devices.iter().filter(|device| device.lost.is_some()).collect();
    assert_eq!(lost.len(), 1, "{devices:?}");
    assert!(lost[0].resident.is_empty() && lost[0].name.starts_with("fake:"), "{lost:?}");
    for _ in 0..5 {
        assert_eq!(ran_on(&node, "here").await, "cpu");
        // Even if the model was on the lost device.
        assert_ne!(ran_on(&node, "there").await, lost[0].name);
    }
    let label = format!("device=\"{}\"", lost[0].name);
    let counted = async || (node.metric("weir_device_losses_total", &label).await == 1.0).then_some(());
    eventually("the count of losses", counted).await;
    assert_eq!(
        (node.metric("weir_device_up", &label).await, node.metric("weir_device_up", "").await),
        (0.0, 2.0)
    );
    assert_eq!(node.get("/readyz").await.status, 200, "a node with a lost device is not ready");
    // The node also shuts down with a lost device.
    node.stop().await;
}

#[tokio::test]
async fn device_loss_ends_only_runs_on_that_device() {
    let node = node("cpu,fake:x", 5_000).set("gateway.infer_wall_ms_max", 3_600_000).start().await;
    breaks(&node, 0).await;
    push(&node, "held", "device=fake", json!({"run_time_ms": {"1": 3_600_000}})).await.ok();
    push(&node, "beside", "device=cpu", json!({"run_time_ms": {"1": 300}})).await.ok();
    let is_running = async |count| (node.status().await.running == count).then_some(());
    let held = infer(&node, "held", 1);
    let beside = infer(&node, "beside", 1);
    let culprit = async {
        eventually("both to run", async || is_running(2).await).await;
        infer(&node, "breaks", 1).await
    };
    let (held, beside, culprit) = tokio::join!(held, beside, culprit);
    assert_eq!((held.code(), culprit.code()), (ErrorCode::WorkerLost, ErrorCode::WorkerLost));
    assert_eq!(beside.ok().header("weir-device"), Some("cpu"));
    eventually("nothing to run", async || is_running(0).await).await;
}

#[tokio::test]
async fn recovered_device_is_used_again() {
    let node = node("cpu,fake:x", 5_000).start().await;
    breaks(&node, 200).await;
    push(&node, "m", "device=fake", json!({})).await.ok();
    assert_eq!(ran_on(&node, "m").await, "fake:1");
    for _ in 0..3 {
        assert_eq!(infer(&node, "breaks", 1).await.code(), ErrorCode::WorkerLost);
        // The call waits for the only device that can run the model.
        let ran = tokio::time::timeout(Duration::from_secs(60), infer(&node, "m", 1)).await.unwrap();
        if !ran.is_ok() {
            // The call fails if it was placed before the loss was known.
            assert_eq!(ran.code(), ErrorCode::Unavailable);
        }
        eventually("the device", async || device(&node, "fake:1").await.lost.is_none().then_some(())).await;
        assert_eq!(ran_on(&node, "m").await, "fake:1");
    }
    assert_eq!(node.metric("weir_device_losses_total", "").await, 3.0);
}
