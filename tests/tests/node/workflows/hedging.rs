//! Hedged steps: second copies of slow runs.

use super::{asked, deploy, fake_node, infer, pending, rows, step, workflow};
use serde_json::{Value, json};
use std::time::Duration;
use weir_tests::{TestClient, TestNode, eventually, function};
use weir_types::ErrorCode;
use weir_types::api::{StepHedge, Workflow};

/// Eight rows, which some models here take long for.
const MANY: [f32; 32] = [1.0; 32];

/// Pushes a model from FP32[?, 4] with the settings in `more`.
async fn push(node: &TestClient, query: &str, more: Value) {
    let port = |name: &str| json!({"name": name, "datatype": "FP32", "shape": [null, 4]});
    let mut model = json!({
        "resident_bytes": 1_000,
        "signature": {"inputs": [port("x")], "outputs": [port("y")]},
    });
    model.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let path = format!("/v1/models/m/versions/1?batching.mode=off&{query}");
    node.put(&path, model.to_string()).await.ok();
}

fn hedged(model: &str) -> String {
    workflow(&format!("{}hedge = true\n", step("a", model, "x")), "a")
}

async fn hedge(node: &TestClient) -> StepHedge {
    let shown: Workflow = node.get("/v1/workflows/w").await.ok().json();
    shown.active.steps[0].hedge.clone().unwrap()
}

/// Runs single rows until the hedging delay is measured.
async fn measure(node: &TestClient) {
    // More runs than necessary, because some are slow on a busy machine.
    for _ in 0..60 {
        infer(node, "w", &rows(&[0.0; 4])).await.ok();
    }
    let due = async || hedge(node).await.after_ns;
    eventually("a time after which second copies are due", due).await;
}

/// Two devices: eight rows take an hour on the device that is faster with one row.
#[tokio::test]
async fn first_hedged_result_wins_and_the_other_copy_is_cancelled() {
    let node = TestNode::builder()
        .set("models.backend", "fake")
        .set("gateway.infer_wall_ms_max", 3_600_000)
        .argument("--devices")
        .argument("cpu,fake:quick,fake:steady")
        .start()
        .await;
    let on =
        json!({"quick": {"run_time_ms": {"1": 1, "8": 3_600_000}}, "steady": {"run_time_ms": {"8": 150}}});
    push(&node, "device=fake", json!({"on": on})).await;
    deploy(&node, "w", &hedged("m")).await.ok();
    assert_eq!(hedge(&node).await, StepHedge::default());
    // Both devices are tried, then the faster one is used.
    measure(&node).await;
    eventually("the model on both devices", async || {
        infer(&node, "w", &rows(&[0.0; 4])).await.ok();
        let devices = node.status().await.devices;
        (devices.iter().filter(|device| !device.resident.is_empty()).count() == 2).then_some(())
    })
    .await;
    let before = hedge(&node).await;
    let answer = tokio::time::timeout(Duration::from_secs(60), infer(&node, "w", &rows(&MANY))).await;
    let answer: Value = answer.expect("there was no second copy").ok().json();
    assert_eq!(answer["outputs"][0]["data"], json!(MANY));
    let after = hedge(&node).await;
    assert_eq!((after.started - before.started, after.won - before.won), (1, 1), "{before:?} {after:?}");
    let of_step = "workflow=\"w\",version=\"1\",step=\"a\"";
    assert_eq!(node.metric("weir_workflow_hedges_started_total", of_step).await, after.started as f64);
    assert_eq!(node.metric("weir_workflow_hedges_won_total", of_step).await, after.won as f64);
    eventually("the end of the first copy", async || (pending(&node, "m").await == 0.0).then_some(())).await;
    let shown = node.weir(&["workflows", "show", "w"]).await.unwrap();
    let told = format!("{} second copies, {} of them first", after.started, after.won);
    assert!(shown.contains("a: a second copy after ") && shown.contains(&told), "{shown}");
}

/// If every run is slow, few are hedged, so that the load does not double.
#[tokio::test]
async fn at_most_one_run_in_ten_is_hedged() {
    let node = TestNode::builder().set("models.backend", "fake").set("models.slots", 64).start().await;
    push(&node, "", json!({"run_time_ms": {"1": 1, "8": 1_500}})).await;
    deploy(&node, "w", &hedged("m")).await.ok();
    // No hedging before run times are measured.
    infer(&node, "w", &rows(&MANY)).await.ok();
    assert_eq!((hedge(&node).await.after_ns, hedge(&node).await.started), (None, 0));
    measure(&node).await;
    // On a busy machine, some of these runs were hedged.
    let before = hedge(&node).await.started;
    let many = rows(&MANY);
    let answers = futures::future::join_all((0..20).map(|_| infer(&node, "w", &many))).await;
    answers.into_iter().for_each(|answer| drop(answer.ok()));
    let StepHedge { runs, started, .. } = hedge(&node).await;
    assert_eq!(runs, 81);
    assert!(started <= runs / 10, "{started} of {runs}");
    // The last twenty runs earn two hedges, and up to four were saved up.
    assert!((2..=6).contains(&(started - before)), "{started} hedges after {before} before");
    // Both copies are counted, including cancelled ones.
    let all = async || (pending(&node, "m").await == 0.0).then_some(());
    eventually("the end of all copies", all).await;
    assert_eq!(asked(&node, "m").await, (runs + started) as f64);
}

#[tokio::test]
async fn non_idempotent_functions_cannot_be_hedged() {
    let node = fake_node(&["m"], &[]).await;
    node.deploy("echo", function("echo-tensor")).await;
    let echo = "[steps.a]\nrun = \"echo\"\ninputs = { y = \"x\" }\noutputs = { y = \"FP32[n, 4]\" }\n";
    deploy(&node, "inner", &workflow(echo, "a")).await.ok();
    let direct = workflow(&format!("{echo}hedge = true\n"), "a");
    for document in [&direct, &hedged("inner")] {
        let refused = deploy(&node, "w", document).await.refusal();
        assert_eq!((refused.status, refused.code), (422, ErrorCode::InvalidWorkflow));
        assert!(
            refused.text.starts_with("step a: hedge may run function echo:1 twice")
                && refused.text.contains("idempotent = true"),
            "{}",
            refused.text
        );
    }
    node.deploy_with("echo", "idempotent=true", function("echo-tensor")).await;
    deploy(&node, "w", &direct).await.ok();
    infer(&node, "w", &rows(&[0.0; 4])).await.ok();
    assert_eq!(hedge(&node).await.runs, 1);
    // The nested workflow still runs the version that is not idempotent.
    assert_eq!(deploy(&node, "v", &hedged("inner")).await.code(), ErrorCode::InvalidWorkflow);

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("w.toml");
    std::fs::write(&file, &direct).unwrap();
    let checked = node.weir(&["workflows", "check", file.to_str().unwrap()]).await.unwrap();
    assert!(checked.contains("is sound: 1 step, 1 with hedge;"), "{checked}");
}
