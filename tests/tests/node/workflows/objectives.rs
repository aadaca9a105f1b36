//! Service level objectives of workflows: estimates follow from the measurements of the steps.

use super::{deploy, fake, infer, rows, step, workflow};
use futures::future::Either;
use serde_json::Value;
use weir_tests::{Answer, TestClient, TestNode, eventually};
use weir_types::api::{ErrorBody, SloRefusal, Workflow};
use weir_types::{Cost, ErrorCode};

const MS: u64 = 1_000_000;

/// Starts a node with the measured models `a` to `d` of 100, 200, 300 and 400 ms, and `held` of an
/// hour.
async fn measured_node() -> TestNode {
    let node = TestNode::builder()
        .set("models.backend", "fake")
        .set("models.slots", 4)
        .set("gateway.infer_wall_ms_max", 3_600_000)
        .set("scheduler.slo.margin", 0)
        .set("scheduler.slo.prices.cpu", 10)
        .start()
        .await;
    for (name, run_time_ms) in [("a", 100.0), ("b", 200.0), ("c", 300.0), ("d", 400.0)] {
        let path = format!("/v1/models/{name}/versions/1?batching.mode=off");
        node.put(&path, fake(run_time_ms)).await.ok();
        infer(&node, name, &rows(&[0.0; 4])).await.ok();
    }
    node.put("/v1/models/held/versions/1?batching.mode=off", fake(3_600_000.0)).await.ok();
    node
}

/// Parses an SLO rejection.
fn refused(answer: &Answer) -> SloRefusal {
    assert_eq!((answer.status, answer.refusal().code), (503, ErrorCode::SloUnattainable), "{answer:?}");
    assert!(answer.header("retry-after").is_some());
    answer.json::<ErrorBody>().slo.unwrap()
}

/// Deploys a workflow and returns the estimate of its rejection. All slots are taken, because a
/// workflow with few measured calls is admitted as a trial when the queue is empty.
async fn estimate(node: &TestClient, name: &str, document: &str) -> SloRefusal {
    deploy(node, name, document).await.ok();
    let row = rows(&[0.0; 4]);
    let hold = std::pin::pin!(futures::future::join_all((0..4).map(|_| infer(node, "held", &row))));
    let ask = std::pin::pin!(async {
        let all_run = async || (super::pending(node, "held").await == 4.0).then_some(());
        eventually("runs on all slots", all_run).await;
        infer(node, name, &row).await
    });
    // Dropping `hold` cancels the runs on all slots.
    match futures::future::select(ask, hold).await {
        Either::Left((answer, _)) => refused(&answer),
        Either::Right((held, _)) => panic!("no run occupied the slots: {held:?}"),
    }
}

/// Sequential steps add up; of parallel and of exclusive steps, the longest counts.
#[tokio::test]
async fn latency_estimate_is_the_longest_chain_of_steps() {
    let node = measured_node().await;
    // a, then b parallel to a switch between c and d, then a again.
    let steps = [
        step("first", "a", "x"),
        step("left", "b", "first"),
        step("middle", "c", "first") + "when = \"max(first) > 0\"\n",
        step("right", "d", "first") + "unless = \"max(first) > 0\"\n",
        "[steps.joined]\ncombine = \"first\"\nof = [\"middle\", \"right\"]\n".to_owned(),
        "[steps.all]\ncombine = \"mean\"\nof = [\"left\", \"joined\"]\n".to_owned(),
        step("last", "a", "all"),
    ];
    let document = format!("slo_ms = 300\n{}", workflow(&steps.concat(), "last"));
    let SloRefusal { estimated_ns, slo_ns, .. } = estimate(&node, "w", &document).await;
    assert_eq!(slo_ns, Some(300 * MS));
    // 100 + 400 + 100 ms, queued after the held runs with unknown durations.
    let estimated_ms = estimated_ns / MS;
    assert!(estimated_ms >= 590, "{estimated_ms} ms");
    let counted = "weir_slo_inferences_total";
    assert_eq!(node.metric(counted, "model=\"w\",version=\"1\",outcome=\"rejected\"").await, 1.0);
    // A deployment option overrides the document.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("w.toml");
    std::fs::write(&file, &document).unwrap();
    let path = file.to_str().unwrap();
    let deployed = node.weir(&["workflows", "deploy", "w", path, "--slo-ms", "60000"]).await.unwrap();
    assert!(deployed.starts_with("deployed w:2\n"), "{deployed}");
    assert!(node.weir(&["workflows", "show", "w"]).await.unwrap().contains("slo          60000 ms"));
    infer(&node, "w", &rows(&[0.0; 4])).await.ok();
    assert_eq!(node.metric(counted, "model=\"w\",version=\"2\",outcome=\"kept\"").await, 1.0);
}

/// Measurements of the workflow take precedence over the sum of its steps, so untaken branches do
/// not count.
#[tokio::test]
async fn measured_calls_override_the_estimate_from_steps() {
    let node = measured_node().await;
    let steps = [
        step("small", "a", "x"),
        step("large", "d", "small") + "when = \"max(small) > 1\"\n",
        "[steps.surer]\ncombine = \"best\"\nof = [\"small\", \"large\"]\n".to_owned(),
    ];
    // The worst case takes 500 ms, the actual calls 100 ms.
    deploy(&node, "w", &format!("slo_ms = 450\n{}", workflow(&steps.concat(), "surer"))).await.ok();
    eventually("the admission of a call", async || {
        infer(&node, "w", &rows(&[0.0; 4])).await.is_ok().then_some(())
    })
    .await;
    for _ in 0..10 {
        infer(&node, "w", &rows(&[0.0; 4])).await.ok();
    }
    assert_eq!(node.metric("weir_slo_inferences_total", "outcome=\"missed\"").await, 0.0);
}

#[tokio::test]
async fn workflow_over_its_cost_objective_is_rejected() {
    let node = measured_node().await;
    let chain = step("s", "a", "x") + &step("t", "b", "s");
    // 300 ms at a price of 10 per second.
    let SloRefusal { estimated_cost, cost_slo, .. } =
        estimate(&node, "dear", &format!("cost_slo = 0.5\n{}", workflow(&chain, "t"))).await;
    assert_eq!(cost_slo.map(Cost::units), Some(0.5));
    assert!(estimated_cost.units() >= 2.9, "{estimated_cost}");

    let document = workflow(&chain, "t");
    let refused = deploy(&node, "w", &format!("slo_ms = 0\n{document}")).await.refusal();
    assert_eq!((refused.status, refused.code), (422, ErrorCode::InvalidWorkflow));
    for query in ["slo_ms=0", "slo_ms=soon", "cost_slo=-1", "slo=5"] {
        let answer = node.put(&format!("/v1/workflows/w?{query}"), document.clone()).await;
        assert_eq!(answer.status, 400, "{query}: {answer:?}");
    }
    // Without an objective none is stored; adding one makes a new version.
    deploy(&node, "w", &document).await.ok();
    let shown: Value = node.get("/v1/workflows/w").await.ok().json();
    assert!(shown.get("slo_ms").is_none() && shown.get("cost_slo").is_none(), "{shown}");
    node.put("/v1/workflows/w?slo_ms=250&cost_slo=2.5", document).await.ok();
    let shown: Workflow = node.get("/v1/workflows/w").await.ok().json();
    let objective = (shown.active.version.0, shown.active.slo_ms, shown.active.cost_slo.map(Cost::units));
    assert_eq!(objective, (2, Some(250), Some(2.5)));
}
