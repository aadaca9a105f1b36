//! Workflows that fit on no single device: each step runs on the device with its model.

use super::{asked, deploy, fake, infer, rows, step, workflow};
use serde_json::{Value, json};
use weir_tests::{TestNode, eventually, function};
use weir_types::ErrorCode;
use weir_types::api::ErrorBody;

/// Starts a node with two accelerators, each with room for one of the models `a`, `b` and `c`.
async fn node() -> TestNode {
    let node = TestNode::builder()
        .set("models.backend", "fake")
        .set("models.memory_bytes_max", 1_500)
        .argument("--devices")
        .argument("cpu,fake:one,fake:other")
        .start()
        .await;
    for name in ["a", "b", "c"] {
        let mut model: Value = serde_json::from_slice(&fake(0.0)).unwrap();
        model["load_time_ms"] = json!(50);
        node.put(&format!("/v1/models/{name}/versions/1?device=fake"), model.to_string()).await.ok();
    }
    node
}

const ROW: [f32; 4] = [1.0, 2.0, 3.0, 4.0];

#[tokio::test]
async fn workflow_too_large_for_one_device_runs_on_several() {
    let node = node().await;
    let two = step("one", "a", "x") + &step("two", "b", "one.y");
    deploy(&node, "w", &workflow(&two, "two")).await.ok();
    let loads = async || node.metric("weir_phase_seconds_count", "phase=\"model_load\"").await;
    let mut calls = 0.0;
    // After the run times on both devices are measured.
    let mut call = async || {
        let before = loads().await;
        let answer: Value = infer(&node, "w", &rows(&ROW)).await.ok().json();
        assert_eq!(answer["outputs"][0]["data"], json!(ROW));
        calls += 1.0;
        (calls > 2.0 && loads().await == before).then_some(())
    };
    eventually("a call that finds both models", &mut call).await;
    let of_all = [asked(&node, "a").await, asked(&node, "b").await, asked(&node, "w").await];
    assert_eq!(of_all, [calls; 3]);
    let mut resident: Vec<_> =
        node.status().await.devices.into_iter().flat_map(|device| device.resident).collect();
    resident.sort();
    assert_eq!(resident, ["a:1", "b:1"]);
}

/// A model's own SLO applies only to direct inferences.
#[tokio::test]
async fn model_slo_does_not_reject_workflow_steps() {
    let node = node().await;
    for name in ["d", "e"] {
        let slow = String::from_utf8(fake(20.0)).unwrap();
        node.put(&format!("/v1/models/{name}/versions/1?device=fake&slo_ms=1"), slow).await.ok();
    }
    let two = step("one", "d", "x") + &step("two", "e", "one.y");
    deploy(&node, "w", &workflow(&two, "two")).await.ok();
    // Enough runs to measure that each takes more than a millisecond.
    for _ in 0..20 {
        infer(&node, "w", &rows(&ROW)).await.ok();
    }
    assert_eq!(node.metric("weir_slo_inferences_total", "").await, 0.0);
    let is_refused = async || {
        let own = infer(&node, "d", &rows(&ROW)).await;
        (!own.is_ok() && own.code() == ErrorCode::SloUnattainable).then_some(())
    };
    eventually("the rejection of a single inference", is_refused).await;
}

/// The first call of each workflow is a trial, because its models are on no device.
#[tokio::test]
async fn slo_of_a_workflow_with_separate_steps_rejects_calls() {
    let node = node().await;
    for name in ["d", "e"] {
        let slow = String::from_utf8(fake(20.0)).unwrap();
        node.put(&format!("/v1/models/{name}/versions/1?device=fake"), slow).await.ok();
    }
    let two = step("one", "d", "x") + &step("two", "e", "one.y");
    for (name, slo_ms) in [("patient", 20_000), ("hurried", 30)] {
        deploy(&node, name, &format!("slo_ms = {slo_ms}\n{}", workflow(&two, "two"))).await.ok();
    }
    for _ in 0..4 {
        infer(&node, "patient", &rows(&ROW)).await.ok();
    }
    let outcomes = async |name: &str, outcome: &str| {
        let labels = format!("model=\"{name}\",version=\"1\",outcome=\"{outcome}\"");
        node.metric("weir_slo_inferences_total", &labels).await
    };
    assert_eq!(outcomes("patient", "kept").await, 4.0);
    // By its estimates, the workflow is too slow: they are tried once a minute.
    infer(&node, "hurried", &rows(&ROW)).await.ok();
    let answer = infer(&node, "hurried", &rows(&ROW)).await;
    assert_eq!((answer.status, answer.refusal().code), (503, ErrorCode::SloUnattainable));
    let estimated_ms = answer.json::<ErrorBody>().slo.unwrap().estimated_ns / 1_000_000;
    assert!(estimated_ms >= 39, "{estimated_ms} ms");
    assert_eq!(outcomes("hurried", "rejected").await, 1.0);
    // The reservations of ended calls are gone: the models can be used otherwise.
    infer(&node, "e", &rows(&ROW)).await.ok();
}

#[tokio::test]
async fn nested_functions_and_workflows_are_placed_separately() {
    let node = node().await;
    node.deploy("echo", function("echo-tensor")).await;
    let inner = step("one", "a", "x") + &step("two", "b", "one.y");
    deploy(&node, "inner", &workflow(&inner, "two")).await.ok();
    let echo = "[steps.echo]\nrun = \"echo\"\ninputs = { y = \"x\" }\noutputs = { y = \"FP32[n, 4]\" }\n";
    let outer = echo.to_owned() + &step("inner", "inner", "echo.y") + &step("three", "c", "inner.y");
    deploy(&node, "w", &workflow(&outer, "three")).await.ok();
    let answer: Value = infer(&node, "w", &rows(&ROW)).await.ok().json();
    assert_eq!(answer["outputs"][0]["data"], json!(ROW));
    for name in ["a", "b", "c", "echo", "inner", "w"] {
        assert_eq!(asked(&node, name).await, 1.0, "{name}");
    }
}

#[tokio::test]
async fn step_without_a_fitting_device_is_named() {
    let node = node().await;
    let large = String::from_utf8(fake(0.0)).unwrap().replace("1000", "2000");
    node.put("/v1/models/large/versions/1?device=fake", large).await.ok();
    let two = step("one", "a", "x") + &step("two", "large", "one.y");
    deploy(&node, "w", &workflow(&two, "two")).await.ok();
    let refusal = infer(&node, "w", &rows(&ROW)).await.refusal();
    assert_eq!((refusal.status, refusal.code), (507, ErrorCode::NoCapacity));
    assert!(refusal.text.starts_with("step two: no device"), "{}", refusal.text);
}
