//! Batching: effects on clients, model owners and metrics.

use futures::future::join_all;
use serde_json::{Value, json};
use weir_tests::{TestNode, model};
use weir_types::ErrorCode;

const REQUESTS: usize = 40;

/// Fake model that echoes x, with nearly constant run time over the batch size.
fn flat() -> String {
    let port = |name: &str| json!([{ "name": name, "datatype": "FP32", "shape": [null, 1] }]);
    json!({
        "run_time_ms": { "1": 20, "2": 20, "4": 21, "8": 22, "16": 24, "32": 28 },
        "resident_bytes": 1,
        "signature": { "inputs": port("x"), "outputs": port("y") },
    })
    .to_string()
}

/// Runs one inference of `model` and returns the result.
async fn echo(node: &TestNode, model: &str, value: f64) -> f64 {
    let body = json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [value]}]});
    let answer: Value = node.post(&format!("/v2/models/{model}/infer"), body.to_string()).await.ok().json();
    answer["outputs"][0]["data"][0].as_f64().unwrap()
}

async fn fake() -> TestNode {
    TestNode::builder().set("models.backend", "fake").set("models.slots", 1).start().await
}

#[tokio::test]
async fn batched_requests_get_their_own_results() {
    let node = fake().await;
    for mode in ["auto", "on", "off"] {
        node.put(&format!("/v1/models/{mode}?batching.mode={mode}"), flat()).await.ok();
        let answers = join_all((0..REQUESTS).map(|n| echo(&node, mode, n as f64))).await;
        assert_eq!(answers, (0..REQUESTS).map(|n| n as f64).collect::<Vec<_>>(), "{mode}");
        let labels = format!("model=\"{mode}\"");
        let runs = node.metric("nv_inference_exec_count", &labels).await;
        assert_eq!(runs < REQUESTS as f64, mode != "off", "{mode}: {runs} runs");
        for (metric, value) in [
            ("nv_inference_count", REQUESTS as f64),
            ("nv_inference_request_success", REQUESTS as f64),
            ("weir_run_items_sum", REQUESTS as f64),
            ("weir_run_requests_sum", REQUESTS as f64),
            ("weir_run_requests_count", runs),
            ("weir_run_input_bytes_total", 4.0 * REQUESTS as f64),
            ("weir_run_padding_bytes_total", 0.0),
        ] {
            assert_eq!(node.metric(metric, &labels).await, value, "{mode}: {metric}");
        }
        let stats: Value = node.get(&format!("/v2/models/{mode}/stats")).await.ok().json();
        let stats = &stats["model_stats"][0];
        assert_eq!(stats["execution_count"].as_f64(), Some(runs));
        let batches = stats["batch_stats"].as_array().unwrap();
        let of = |batch: &Value| {
            (batch["batch_size"].as_f64().unwrap(), batch["compute_infer"]["count"].as_f64().unwrap())
        };
        assert_eq!(batches.iter().map(of).map(|(_, count)| count).sum::<f64>(), runs);
        assert_eq!(batches.iter().map(of).map(|(size, count)| size * count).sum::<f64>(), REQUESTS as f64);
    }
}

#[tokio::test]
async fn batching_settings_are_validated_stored_and_shown() {
    let node = TestNode::start().await;
    let query =
        "batching.mode=on&batching.size_max=16&batching.preferred_sizes=4,8&batching.queue_delay_us_max=500";
    let pushed: Value =
        node.put(&format!("/v1/models/m/versions/1?{query}"), model("good/matmul.onnx")).await.ok().json();
    let expected = json!({
        "mode": "on", "size_max": 16, "preferred_sizes": [4, 8], "queue_delay_us_max": 500, "mask": null,
    });
    assert_eq!(pushed["manifest"]["batching"], expected);
    let node = node.kill().await.start().await;
    let shown: Value = node.get("/v1/models/m").await.ok().json();
    assert_eq!(shown["manifest"]["batching"], expected);

    let config: Value = node.get("/v2/models/m/config").await.ok().json();
    assert_eq!((&config["max_batch_size"], &config["input"][0]["dims"]), (&json!(16), &json!([4])));
    let dynamic = json!({"preferred_batch_size": [4, 8], "max_queue_delay_microseconds": 500});
    assert_eq!(config["dynamic_batching"], dynamic);
    node.put("/v1/models/off?batching.mode=off", model("good/matmul.onnx")).await.ok();
    let config: Value = node.get("/v2/models/off/config").await.ok().json();
    assert_eq!((&config["max_batch_size"], &config["input"][0]["dims"]), (&json!(0), &json!([-1, 4])));
    assert_eq!(config.get("dynamic_batching"), None);

    for (query, file, why) in [
        ("batching.size_max=0", "matmul", "not within 1 to 1024"),
        ("batching.preferred_sizes=64", "matmul", "preferred_sizes has 64"),
        ("batching.queue_delay_us_max=2000000", "matmul", "more than 1000000"),
        ("batching.mask=x", "matmul", "a mask has two dimensions"),
        ("batching.mask=m", "matmul", "no such input"),
        ("batching.mode=on", "slow", "no batch dimension"),
        ("batching.mode=sometimes", "matmul", "unknown variant"),
        ("batching.max=3", "matmul", "unknown field"),
    ] {
        let answer = node.put(&format!("/v1/models/bad?{query}"), model(&format!("good/{file}.onnx"))).await;
        let error: Value = answer.json();
        assert_eq!(answer.code(), ErrorCode::InvalidManifest, "{query}: {error}");
        assert!(error["error"].as_str().unwrap().contains(why), "{query}: {error}");
    }
    assert_eq!(node.get("/v1/models/bad").await.code(), ErrorCode::ModelNotFound);
}
