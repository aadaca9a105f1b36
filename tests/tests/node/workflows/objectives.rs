//! Service level objectives of workflows: what calls are expected to take follows from what is known of their steps.

use super::{deploy, fake, infer, rows, step, workflow};
use futures::future::Either;
use serde_json::Value;
use weir_tests::{Answer, Client, Node, eventually};
use weir_types::api::{ErrorBody, SloRefusal, Workflow};
use weir_types::{Cost, ErrorCode};

const MS: u64 = 1_000_000;

/// A node whose models `a` to `d` take 100, 200, 300 and 400 ms, as it has been measured, and `held` an hour.
async fn measured_node() -> Node {
    let node = Node::builder()
        .set("backend", "fake")
        .set("model_slots", 4)
        .set("infer_time_ms_max", 3_600_000)
        .set("slo.margin", 0)
        .set("slo.prices.cpu", 10)
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

/// What one was told that was turned away.
fn refused(answer: &Answer) -> SloRefusal {
    assert_eq!((answer.status, answer.refusal().code), (503, ErrorCode::SloUnattainable), "{answer:?}");
    assert!(answer.header("retry-after").is_some());
    answer.json::<ErrorBody>().slo.unwrap()
}

/// What a call is told that is turned away. Before its calls have been measured often, a workflow is tried now and then where nobody waits; so
/// all slots are taken.
async fn estimate(node: &Client, name: &str, document: &str) -> SloRefusal {
    deploy(node, name, document).await.ok();
    let row = rows(&[0.0; 4]);
    let hold = std::pin::pin!(futures::future::join_all((0..4).map(|_| infer(node, "held", &row))));
    let ask = std::pin::pin!(async {
        let all_run = async || (super::pending(node, "held").await == 4.0).then_some(());
        eventually("runs on all slots", all_run).await;
        infer(node, name, &row).await
    });
    // Those that hold the slots go away with this.
    match futures::future::select(ask, hold).await {
        Either::Left((answer, _)) => refused(&answer),
        Either::Right((held, _)) => panic!("nothing was held: {held:?}"),
    }
}

/// Steps one after the other add up; of those beside each other, the longest counts; of those that exclude each other, too.
#[tokio::test]
async fn what_a_call_is_expected_to_take_is_the_longest_chain_of_its_steps() {
    let node = measured_node().await;
    // a, then b beside c beside d where a switch takes one of the latter, then a again.
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
    // 100 + 400 + 100 of its own, behind what is held, of which nothing is known.
    let estimated_ms = estimated_ns / MS;
    assert!(estimated_ms >= 590, "{estimated_ms} ms");
    let counted = "weir_slo_inferences_total";
    assert_eq!(node.metric(counted, "model=\"w\",version=\"1\",outcome=\"rejected\"").await, 1.0);
    // The document says one thing, and whoever deploys it another.
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

/// Of what was measured of the workflow itself more is known than of its steps: a branch that is never taken counts no more.
#[tokio::test]
async fn what_its_calls_took_goes_before_what_its_steps_take() {
    let node = measured_node().await;
    let steps = [
        step("small", "a", "x"),
        step("large", "d", "small") + "when = \"max(small) > 1\"\n",
        "[steps.surer]\ncombine = \"best\"\nof = [\"small\", \"large\"]\n".to_owned(),
    ];
    // The worst case takes 500 ms, and what is asked here 100.
    deploy(&node, "w", &format!("slo_ms = 450\n{}", workflow(&steps.concat(), "surer"))).await.ok();
    eventually("one that is let in to be measured", async || {
        infer(&node, "w", &rows(&[0.0; 4])).await.is_ok().then_some(())
    })
    .await;
    for _ in 0..10 {
        infer(&node, "w", &rows(&[0.0; 4])).await.ok();
    }
    assert_eq!(node.metric("weir_slo_inferences_total", "outcome=\"missed\"").await, 0.0);
}

#[tokio::test]
async fn what_would_cost_too_much_is_turned_away_and_a_bad_objective_is_refused() {
    let node = measured_node().await;
    let chain = step("s", "a", "x") + &step("t", "b", "s");
    // 300 ms at 10 a second.
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
    // Without one nothing is written down, as before there were any; one more is a new version.
    deploy(&node, "w", &document).await.ok();
    let shown: Value = node.get("/v1/workflows/w").await.ok().json();
    assert!(shown.get("slo_ms").is_none() && shown.get("cost_slo").is_none(), "{shown}");
    node.put("/v1/workflows/w?slo_ms=250&cost_slo=2.5", document).await.ok();
    let shown: Workflow = node.get("/v1/workflows/w").await.ok().json();
    let objective = (shown.active.version.0, shown.active.slo_ms, shown.active.cost_slo.map(Cost::units));
    assert_eq!(objective, (2, Some(250), Some(2.5)));
}
