//! Hedged workflow steps on other nodes.

use std::time::Duration;
use weir_tests::{Etcd, TestClient, TestCluster, eventually};
use weir_types::api::Workflow;

/// Workflow of one step.
fn workflow(runs: &str, hedge: bool) -> String {
    format!(
        "outputs = {{ y = \"a\" }}\n[inputs]\nx = \"FP32[n, 1]\"\n\
         [steps.a]\nrun = \"{runs}\"\ninputs = {{ x = \"x\" }}\nhedge = {hedge}\n"
    )
}

async fn infer(node: &TestClient, rows: usize) -> weir_tests::Answer {
    let input =
        serde_json::json!({ "name": "x", "datatype": "FP32", "shape": [rows, 1], "data": vec![0.5; rows] });
    node.post("/v2/models/w/infer", serde_json::json!({ "inputs": [input] }).to_string()).await
}

#[tokio::test]
async fn hedged_step_runs_on_another_node_with_the_model() {
    if !Etcd::is_installed() {
        return;
    }
    a_second_copy_runs_elsewhere("m").await;
}

#[tokio::test]
async fn hedged_workflow_step_runs_on_another_node_with_its_models() {
    if !Etcd::is_installed() {
        return;
    }
    a_second_copy_runs_elsewhere("inner").await;
}

/// Eight rows take an hour on the node that is faster with one row, so the step is hedged to the
/// other node.
async fn a_second_copy_runs_elsewhere(runs: &str) {
    let mut cluster = TestCluster::builder()
        .set("models.backend", "fake")
        .set("gateway.infer_wall_ms_max", 3_600_000)
        .start(1)
        .await;
    for devices in ["cpu,fake:quick", "cpu,fake:steady"] {
        cluster.nodes.push(cluster.node().argument("--devices").argument(devices).start().await);
    }
    cluster.settle().await;
    let port = |name: &str| serde_json::json!({ "name": name, "datatype": "FP32", "shape": [null, 1] });
    let model = serde_json::json!({
        "resident_bytes": 1_000,
        "on": {
            "quick": { "run_time_ms": { "1": 1, "8": 3_600_000 } },
            "steady": { "run_time_ms": { "8": 200 } },
        },
        "signature": { "inputs": [port("x")], "outputs": [port("y")] },
    });
    let [_, quick, steady] = &cluster.nodes[..] else { panic!("there are three") };
    quick.put("/v1/models/m/versions/1?device=fake&batching.mode=off", model.to_string()).await.ok();
    quick.put("/v1/workflows/inner", workflow("m", false)).await.ok();
    quick.put("/v1/workflows/w", workflow(runs, true)).await.ok();
    cluster.all_have_heard_of("m").await;
    for node in &cluster.nodes {
        let heard = async || node.get("/v1/workflows/w").await.is_ok().then_some(());
        eventually("the news of a deploy", heard).await;
    }
    for node in [quick, steady] {
        node.post("/v2/repository/models/m/load", "{}").await.ok();
    }
    // Until the faster node has measured enough runs, and knows that the other node has the model.
    eventually("a time after which second copies are due", async || {
        infer(quick, 1).await.ok();
        let shown: Workflow = quick.get("/v1/workflows/w").await.ok().json();
        shown.active.steps[0].hedge.as_ref()?.after_ns?;
        let members = quick.status().await.cluster?.nodes;
        let holds = |member: &weir_types::api::MemberStatus| {
            member.devices.iter().any(|device| device.resident == ["m:1"])
        };
        (members.iter().filter(|member| holds(member)).count() == 2).then_some(())
    })
    .await;
    let of_model = "model=\"m\"";
    let before = steady.metric("nv_inference_request_success", of_model).await;
    let answer = tokio::time::timeout(Duration::from_secs(60), infer(quick, 8)).await;
    answer.expect("there was no second copy").ok();
    assert!(quick.metric("weir_workflow_hedges_won_total", "step=\"a\"").await >= 1.0);
    assert_eq!(steady.metric("nv_inference_request_success", of_model).await, before + 1.0);
    let pending = async || {
        let pending = cluster.metric("nv_inference_pending_request_count", of_model).await;
        (pending == 0.0).then_some(())
    };
    eventually("the end of the first copy", pending).await;
}
