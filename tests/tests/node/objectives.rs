//! Service level objectives: calls that would miss theirs are rejected at admission, and admitted
//! calls meet theirs.

use serde_json::{Value, json};
use std::time::{Duration, Instant};
use weir_tests::{Answer, TestClient, TestNode, eventually, function};
use weir_types::api::{ErrorBody, SloRefusal};
use weir_types::{Cost, ErrorCode};

/// Run time on one of two slots.
const RUN_MS: u64 = 100;
const SLOTS: u64 = 2;
const SLO_MS: u64 = 20 * RUN_MS;

fn fake(run_time_ms: u64) -> Vec<u8> {
    let port = |name: &str| json!({"name": name, "datatype": "FP32", "shape": [1]});
    let model = json!({
        "run_time_ms": {"1": run_time_ms},
        "resident_bytes": 1_000,
        "signature": {"inputs": [port("x")], "outputs": [port("y")]},
    });
    model.to_string().into_bytes()
}

fn input() -> String {
    json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [0.5]}]}).to_string()
}

async fn push(node: &TestClient, name: &str, query: &str, run_time_ms: u64) {
    node.put(&format!("/v1/models/{name}/versions/1?batching.mode=off&{query}"), fake(run_time_ms))
        .await
        .ok();
}

async fn infer(node: &TestClient, model: &str) -> Answer {
    node.post(&format!("/v2/models/{model}/infer"), input()).await
}

/// Parses an SLO rejection, and checks its status, code and headers.
fn refused(answer: &Answer) -> SloRefusal {
    assert_eq!((answer.status, answer.refusal().code), (503, ErrorCode::SloUnattainable));
    let after_s: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&after_s), "{after_s}");
    answer.json::<ErrorBody>().slo.unwrap()
}

async fn outcomes(node: &TestClient, metric: &str, labels: &str) -> [f64; 3] {
    let mut counts = [0.0; 3];
    for (count, outcome) in counts.iter_mut().zip(["kept", "missed", "rejected"]) {
        *count = node.metric(metric, &format!("{labels}outcome=\"{outcome}\"")).await;
    }
    counts
}

/// A period of load at twice the capacity.
#[tokio::test]
async fn overload_admits_only_calls_that_meet_their_slo() {
    // A large margin, because the machine has other load.
    let node = TestNode::builder()
        .set("models.backend", "fake")
        .set("models.slots", SLOTS)
        .set("scheduler.slo.margin", 0.4)
        .start()
        .await;
    push(&node, "m", &format!("slo_ms={SLO_MS}"), RUN_MS).await;
    infer(&node, "m").await.ok();
    let count = 40 * SLOTS * 2;
    let gap = Duration::from_millis(RUN_MS) / u32::try_from(2 * SLOTS).unwrap();
    let mut ticks = tokio::time::interval(gap);
    let mut asked = Vec::new();
    for _ in 0..count {
        ticks.tick().await;
        let client = TestClient::clone(&node);
        asked.push(tokio::spawn(async move {
            let begun = Instant::now();
            (infer(&client, "m").await, begun.elapsed())
        }));
    }
    let mut kept = 0;
    let mut late = 0;
    let mut turned_away = 0;
    for one in asked {
        let (answer, taken) = one.await.unwrap();
        if answer.is_ok() {
            kept += u64::from(taken <= Duration::from_millis(SLO_MS));
            late += u64::from(taken > Duration::from_millis(SLO_MS));
            continue;
        }
        let SloRefusal { estimated_ns, slo_ns, .. } = refused(&answer);
        assert_eq!(slo_ns, Some(SLO_MS * 1_000_000));
        assert!(estimated_ns > SLO_MS * 600_000, "a call was rejected with an estimate of {estimated_ns} ns");
        turned_away += 1;
    }
    assert_eq!(kept + late + turned_away, count);
    assert!(late * 100 <= kept + late, "{late} of {} admitted calls were late", kept + late);
    // About as many as the capacity allows, plus calls still queued at the end.
    assert!(kept >= count / 4 && turned_away >= count / 8, "{kept} in time, {turned_away} rejected");
    let [kept_counted, missed, rejected] = outcomes(&node, "weir_slo_inferences_total", "").await;
    assert_eq!(kept_counted + missed, (kept + late + 1) as f64, "the first call is counted, too");
    assert_eq!(rejected, turned_away as f64);
}

/// If the caller's timeout is shorter than the run, the error is a missed deadline, not an SLO
/// rejection.
#[tokio::test]
async fn timeout_shorter_than_a_run_is_a_missed_deadline() {
    let node = TestNode::builder().set("models.backend", "fake").start().await;
    push(&node, "m", "slo_ms=60000", RUN_MS).await;
    for _ in 0..10 {
        infer(&node, "m").await.ok();
    }
    let mut hasty: Value = serde_json::from_str(&input()).unwrap();
    hasty["parameters"] = json!({"timeout": 20_000});
    for _ in 0..4 {
        let refused = node.post("/v2/models/m/infer", hasty.to_string()).await.refusal();
        assert_eq!((refused.status, refused.code), (504, ErrorCode::DeadlineExceeded), "{refused:?}");
    }
    assert_eq!(outcomes(&node, "weir_slo_inferences_total", "").await[2], 0.0);
}

/// A function's objective is checked against the measured times of its calls.
#[tokio::test]
async fn function_slo_rejects_while_calls_without_slo_queue() {
    let node = TestNode::builder().set("models.backend", "fake").set("models.slots", 1).start().await;
    push(&node, "m", "", RUN_MS).await;
    for (name, query) in [("hasty", "slo_ms=300"), ("patient", "limits.deadline_ms=60000")] {
        node.deploy_with(name, &format!("models=m&{query}"), function("infer")).await;
    }
    // Until the duration of a call is measured.
    eventually("a call in time", async || {
        let answer = node.post("/fn/hasty/m?shape=1", [0; 4].to_vec()).await;
        answer.is_ok().then_some(())
    })
    .await;
    let all = (0..12).map(|_| async { node.post("/fn/hasty/m?shape=1", [0; 4].to_vec()).await });
    let answers = futures::future::join_all(all).await;
    let (served, turned_away): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.is_ok());
    assert!(!served.is_empty() && turned_away.len() >= 6, "{} served", served.len());
    for answer in turned_away {
        assert_eq!(refused(answer).slo_ns, Some(300_000_000));
    }
    let all = (0..12).map(|_| async { node.post("/fn/patient/m?shape=1", [0; 4].to_vec()).await });
    futures::future::join_all(all).await.into_iter().for_each(|answer| drop(answer.ok()));
    let [kept, missed, rejected] = outcomes(&node, "weir_slo_invocations_total", "").await;
    assert!(kept + missed >= served.len() as f64 && rejected >= 6.0, "{kept} {missed} {rejected}");
}

/// The cost of a call is its device time multiplied by the node's price.
#[tokio::test]
async fn calls_over_their_cost_objective_are_rejected() {
    let node =
        TestNode::builder().set("models.backend", "fake").set("scheduler.slo.prices.cpu", 10).start().await;
    // A run takes 0.1 s, so it costs 1.
    push(&node, "dear", "cost_slo=0.5", RUN_MS).await;
    push(&node, "cheap", "cost_slo=5", RUN_MS).await;
    infer(&node, "cheap").await.ok();
    // Models with few measured runs are admitted now and then as a trial.
    let answer = eventually("a refusal", async || {
        let answer = infer(&node, "dear").await;
        (!answer.is_ok()).then_some(answer)
    })
    .await;
    let SloRefusal { slo_ns, estimated_cost, cost_slo, .. } = refused(&answer);
    assert_eq!((slo_ns, cost_slo.map(Cost::units)), (None, Some(0.5)));
    assert!(estimated_cost.units() >= 0.9, "{estimated_cost}");
    infer(&node, "cheap").await.ok();
}

#[tokio::test]
async fn slo_settings_are_validated_and_shown() {
    let node = TestNode::builder().set("models.backend", "fake").start().await;
    let refusal = node.try_deploy("f", "slo_ms=0", function("hello")).await.unwrap_err();
    assert_eq!(refusal.code, ErrorCode::InvalidManifest);
    for query in ["cost_slo=-1", "slo_ms=soon", "slo=5"] {
        let refusal = node.try_deploy("f", query, function("hello")).await.unwrap_err();
        assert_eq!(refusal.code, ErrorCode::InvalidManifest, "{query}");
    }
    let deployed = node.deploy_with("f", "slo_ms=250&cost_slo=0.25", function("hello")).await;
    let manifest: Value = serde_json::to_value(&deployed.function.manifest).unwrap();
    assert_eq!((&manifest["slo_ms"], &manifest["cost_slo"]), (&json!(250), &json!(0.25)));
    // A function without models needs no device and is always admitted.
    for _ in 0..20 {
        node.get("/fn/f/x").await.ok();
    }
    assert_eq!(outcomes(&node, "weir_slo_invocations_total", "").await[2], 0.0);
}
