//! `weir replay`: the requests of workloads and recordings, at their times.

use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;
use weir_tests::{NodeBuilder, TestClient, TestNode, eventually, function};

fn fake() -> NodeBuilder {
    TestNode::builder().set("models.backend", "fake")
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// Runs `weir replay`, and returns its report.
async fn replay(node: &TestNode, folder: &Path, arguments: &[&str]) -> Value {
    let report = folder.join("report.json");
    let report_path = report.to_str().unwrap();
    let arguments: Vec<_> = ["replay", "--report", report_path].iter().chain(arguments).copied().collect();
    node.weir(&arguments).await.unwrap();
    serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap()
}

async fn inferences(node: &TestClient, model: &str) -> f64 {
    node.metric("nv_inference_request_success", &format!("model=\"{model}\"")).await
}

/// Writes a workload of one model with these arrival times in seconds.
fn workload(folder: &Path, run_time_s: f64, arrivals_s: &[f64]) -> String {
    let requests: Vec<_> = arrivals_s.iter().map(|at_s| json!([at_s, 0])).collect();
    let path = folder.join("workload.json");
    let workload = json!({"models": [[1, 0.01, run_time_s]], "requests": requests});
    std::fs::write(&path, workload.to_string()).unwrap();
    path.to_str().unwrap().to_owned()
}

#[tokio::test]
async fn preset_is_replayed_on_fake_models_with_report_and_plot() {
    let node = fake().start().await;
    let folder = folder();
    let plot = folder.path().join("plot.svg");
    let source = ["--preset", "trace", "--functions", "3", "--minutes", "1", "--per-minute", "120"];
    let rest = ["--speed", "60", "--push-fake", "--plot", plot.to_str().unwrap()];
    let report = replay(&node, folder.path(), &[&source[..], &rest[..]].concat()).await;
    assert_eq!(report["outcomes"], json!({"200": 120}), "{report}");
    let targets = report["targets"].as_array().unwrap();
    assert_eq!(targets.len(), 3);
    let mut sum = 0.0;
    for target in targets {
        let requests = inferences(&node, target["name"].as_str().unwrap()).await;
        assert_eq!(target["requests"].as_f64().unwrap(), requests, "{target}");
        sum += requests;
    }
    assert_eq!(sum, 120.0);
    // A minute of requests took a second, and the responses the time of their runs.
    assert!((0.8..60.0).contains(&report["duration_s"].as_f64().unwrap()), "{report}");
    let svg = std::fs::read_to_string(&plot).unwrap();
    assert!(svg.contains("Latencies of the preset trace") && svg.contains("p99"), "{svg}");
}

/// The requests wait at the node, not in the generator: latencies count from their times.
#[tokio::test]
async fn requests_are_sent_at_their_times_whatever_the_latency() {
    let node = fake().set("models.slots", 1).start().await;
    let folder = folder();
    let path = workload(folder.path(), 0.2, &[0.0; 8]);
    let arguments = ["--workload", &*path, "--push-fake"];
    let report = replay(&node, folder.path(), &arguments).await;
    assert_eq!(report["outcomes"], json!({"200": 8}), "{report}");
    let ms = |spread: &str, part: &str| report[spread][part].as_f64().unwrap();
    assert!(ms("latency_ms", "max") >= 8.0 * 200.0 && ms("latency_ms", "p50") >= 4.0 * 200.0, "{report}");
    assert!(ms("lag_ms", "p50") < ms("latency_ms", "p50") / 4.0, "{report}");
    // With two requests in flight, the other six are reported.
    let arguments = ["--workload", &*path, "--in-flight-max", "2"];
    let report = replay(&node, folder.path(), &arguments).await;
    assert_eq!(report["outcomes"], json!({"200": 2, "not sent": 6}), "{report}");
    assert_eq!(report["not_sent"], 6);
}

#[tokio::test]
async fn recorded_calls_are_replayed_against_another_node() {
    let folder = folder();
    let record = folder.path().join("record");
    let recorded = fake().set("scheduler.record", record.display()).start().await;
    let replayed = fake().start().await;
    let port = |name: &str| json!([{"name": name, "datatype": "FP32", "shape": [null, 1]}]);
    let model = json!({"resident_bytes": 1_000, "signature": {"inputs": port("x"), "outputs": port("y")}});
    for node in [&recorded, &replayed] {
        node.push_model("m", 1, model.to_string()).await;
        node.deploy_with("probe", "models=m", function("infer")).await;
    }
    for rows in [1, 1, 3] {
        let input = json!({"name": "x", "datatype": "FP32", "shape": [rows, 1], "data": vec![0.5; rows]});
        let body = json!({"inputs": [input]}).to_string();
        recorded.post("/v2/models/m/infer", body).await.ok();
    }
    recorded.post("/fn/probe/m?shape=1,1", 1_f32.to_le_bytes().to_vec()).await.ok();
    let file = eventually("the record", async || {
        let files = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let written = |path: &std::path::PathBuf| {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            text.matches("\"arrived\"").count() == 4
        };
        files.filter(|path| path.is_file()).find(written)
    })
    .await;
    // The call of the function has no body, and fails.
    let report = replay(&replayed, folder.path(), &["--record", file.to_str().unwrap()]).await;
    assert_eq!((&report["requests"], &report["succeeded"]), (&json!(4), &json!(3)), "{report}");
    let paths: Vec<_> = report["targets"].as_array().unwrap().iter().map(|target| &target["path"]).collect();
    assert_eq!(paths, ["/v2/models/m/infer", "/v2/models/m/infer", "/fn/probe"]);
    assert_eq!(inferences(&replayed, "m").await, 3.0);
    assert!(report["first_failure"].as_str().unwrap().starts_with('4'), "{report}");
}

#[tokio::test]
async fn replay_says_what_is_wrong() {
    let node = fake().start().await;
    let folder = folder();
    let path = workload(folder.path(), 0.01, &[0.0, 0.01]);
    for (arguments, why) in [
        (&["replay"][..], "no requests to send"),
        (&["replay", "--preset", "trace", "--path", "fn"][..], "it starts with /"),
        (&["replay", "--workload", "/nowhere.json"][..], "cannot use /nowhere.json"),
        (&["replay", "--record", &path][..], "has no calls"),
        (&["replay", "--workload", &path][..], "cannot describe the model m0"),
        (&["replay", "--workload", &path, "--path", "/fn/nothing"][..], "no request succeeded"),
        (
            &["replay", "--workload", &path, "--path", "/", "--url", "http://127.0.0.1:1"][..],
            "no request succeeded",
        ),
    ] {
        let error = tokio::time::timeout(Duration::from_secs(60), node.weir(arguments)).await.unwrap();
        let error = error.unwrap_err();
        assert!(error.contains(why), "{arguments:?}: {error}");
    }
}
