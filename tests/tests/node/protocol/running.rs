//! Authorization, scheduling and metrics of inferences.

use super::{HEADER, binary, fp32, node, row};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use weir_tests::{TestNode, eventually, function, model};
use weir_types::ErrorCode;

#[tokio::test]
async fn tenants_can_call_only_their_own_models() {
    let node =
        TestNode::builder().tokens(&["token-of-acme-0123 acme", "token-of-other-0123 other"]).start().await;
    let acme = node.with_token("token-of-acme-0123");
    let other = node.with_token("token-of-other-0123");
    acme.push_model("matmul", 1, model("good/matmul.onnx")).await;
    binary(&acme, "/v2/models/matmul/infer", &row(), &fp32(&[0.0; 4])).await.ok();
    for path in ["/v2/models/matmul", "/v2/models/matmul/ready", "/v2/models/matmul/stats"] {
        acme.get(path).await.ok();
        assert_eq!(other.get(path).await.status, 404, "{path}");
        assert_eq!(node.get(path).await.status, 401, "{path}");
    }
    assert_eq!(binary(&other, "/v2/models/matmul/infer", &row(), &[]).await.code(), ErrorCode::ModelNotFound);
    assert_eq!(other.post("/v2/repository/index", "").await.ok().json::<Value>(), json!([]));
    assert_eq!(other.get("/v2/models/stats").await.ok().json::<Value>(), json!({"model_stats": []}));
    assert!(!other.get("/metrics").await.ok().text().contains("matmul"));
    // gRPC reports the error as a gRPC status.
    let grpc = reqwest::Client::builder().http2_prior_knowledge().no_proxy().build().unwrap();
    let live = grpc.post(node.url("/inference.GRPCInferenceService/ServerLive"));
    let live = live.header("content-type", "application/grpc").header("te", "trailers").body(vec![0; 5]);
    let refused = live.try_clone().unwrap().send().await.unwrap();
    assert_eq!((refused.status().as_u16(), refused.headers()["grpc-status"].to_str().unwrap()), (200, "16"));
    let answered = live.bearer_auth("token-of-acme-0123").send().await.unwrap();
    assert_eq!(answered.bytes().await.unwrap()[..], [0, 0, 0, 0, 2, 8, 1]);
    // Health probes need no token.
    node.get("/v2/health/ready").await.ok();
}

#[tokio::test]
async fn inferences_are_counted_in_weir_and_triton_metrics() {
    let node = node().await;
    let json = json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [3, 4], "data": vec![0; 12]}]});
    node.post("/v2/models/matmul/versions/1/infer", json.to_string()).await.ok();
    assert_eq!(node.post("/v2/models/matmul/versions/1/infer", "{}").await.status, 400);
    let labels = "model=\"matmul\",version=\"1\"";
    for (name, label, count) in [
        ("nv_inference_request_success", "", 1.0),
        ("nv_inference_request_failure", "reason=\"OTHER\"", 1.0),
        ("nv_inference_count", "", 3.0),
        ("nv_inference_exec_count", "", 1.0),
        ("nv_inference_pending_request_count", "", 0.0),
        ("weir_inferences_total", "code=\"ok\"", 1.0),
        ("weir_inferences_total", "code=\"invalid-request\"", 1.0),
        ("weir_inference_seconds_count", "", 2.0),
    ] {
        let label = if label.is_empty() { labels.to_owned() } else { format!("{labels},{label}") };
        assert_eq!(node.metric(name, &label).await, count, "{name} {label}");
    }
    assert!(
        node.metric("nv_inference_request_duration_us", labels).await
            >= node.metric("nv_inference_compute_infer_duration_us", labels).await
    );
    // Runs in functions are counted, too.
    node.deploy_with("infer", "models=matmul", function("infer")).await;
    node.post("/fn/infer/matmul:1?shape=1,4", fp32(&[0.0; 4])).await.ok();
    assert_eq!(node.metric("nv_inference_count", labels).await, 4.0);
    let stats: Value = node.get("/v2/models/matmul/versions/1/stats").await.ok().json();
    let stats = &stats["model_stats"][0];
    assert_eq!((&stats["inference_count"], &stats["execution_count"]), (&json!(4), &json!(2)));
    assert_eq!(stats["batch_stats"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn fake_backend_supports_timeouts_and_cancellation() {
    let node = TestNode::builder().set("models.backend", "fake").start().await;
    node.push_model("slow", 1, fake(60_000.0)).await;
    node.push_model("quick", 1, fake(0.0)).await;
    let described: Value = node.get("/v2/models/quick").await.ok().json();
    assert_eq!((&described["platform"], &described["inputs"][0]["shape"]), (&json!("fake"), &json!([-1, 4])));
    let answer = binary(&node, "/v2/models/quick/infer", &row(), &fp32(&[1.0, 2.0, 3.0, 4.0])).await.ok();
    assert_eq!(answer.json::<Value>()["outputs"][0]["data"], json!([1.0, 2.0, 3.0, 4.0]));

    // A timeout in microseconds ends a run, and so does a disconnected client.
    let mut asked = row();
    asked["parameters"] = json!({"timeout": 50_000});
    let late = binary(&node, "/v2/models/slow/infer", &asked, &fp32(&[0.0; 4])).await;
    assert_eq!((late.status, late.code()), (504, ErrorCode::DeadlineExceeded));
    let body = row().to_string();
    let head = format!(
        "POST /v2/models/slow/infer HTTP/1.1\r\nhost: localhost\r\n{HEADER}: {}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len(),
        body.len() + 16
    );
    let mut stream = TcpStream::connect(node.address()).await.unwrap();
    stream.write_all(&[head.as_bytes(), &[0; 16]].concat()).await.unwrap();
    let running = async |count| {
        eventually("the change of the running calls", async || {
            (node.status().await.running == count).then_some(())
        })
        .await;
    };
    running(1).await;
    drop(stream);
    running(0).await;
    let cancelled = async || {
        (node.metric("nv_inference_request_failure", "reason=\"CANCELED\"").await == 1.0).then_some(())
    };
    eventually("the count", cancelled).await;
}

fn fake(run_time_ms: f64) -> Vec<u8> {
    let port = |name: &str| json!({"name": name, "datatype": "FP32", "shape": [null, 4]});
    let model = json!({
        "run_time_ms": {"1": run_time_ms},
        "resident_bytes": 1_000,
        "signature": {"inputs": [port("x")], "outputs": [port("y")]},
    });
    model.to_string().into_bytes()
}

#[tokio::test]
async fn requested_model_evicts_unused_models() {
    let node =
        TestNode::builder().set("models.backend", "fake").set("models.memory_bytes_max", 1_500).start().await;
    for name in ["a", "b"] {
        node.push_model(name, 1, fake(0.0)).await;
    }
    for name in ["a", "b", "a"] {
        binary(&node, &format!("/v2/models/{name}/infer"), &row(), &fp32(&[0.0; 4])).await.ok();
        assert_eq!(node.status().await.devices[0].resident, [format!("{name}:1")]);
    }
    node.post("/v2/repository/models/b/load", "{}").await.ok();
    assert_eq!(node.status().await.devices[0].resident, ["b:1"]);
    node.post("/v2/repository/models/b/unload", "").await.ok();
    let gone = async || node.status().await.devices[0].resident.is_empty().then_some(());
    eventually("the unload", gone).await;
    binary(&node, "/v2/models/b/infer", &row(), &fp32(&[0.0; 4])).await.ok();
}

#[tokio::test]
async fn highest_priority_inference_runs_first() {
    let node = TestNode::builder().set("models.backend", "fake").set("models.slots", 1).start().await;
    let mut model: Value = serde_json::from_slice(&fake(100.0)).unwrap();
    // Long enough for both other calls to arrive meanwhile.
    model["run_time_ms"]["2"] = json!(3_000.0);
    node.put("/v1/models/m/versions/1?batching.mode=off", model.to_string()).await.ok();
    let ask = |priority: u32, rows: usize| {
        let client = node.client().clone();
        async move {
            let mut asked = row();
            asked["inputs"][0]["shape"] = json!([rows, 4]);
            asked["inputs"][0]["parameters"]["binary_data_size"] = json!(16 * rows);
            asked["parameters"] = json!({"priority": priority});
            binary(&client, "/v2/models/m/infer", &asked, &fp32(&vec![0.0; 4 * rows])).await.ok();
            priority
        }
    };
    // Calls for a busy device wait in the scheduler.
    let waiting = async |count| {
        eventually("the wait", async || (node.status().await.queued == count).then_some(())).await;
    };
    let first = tokio::spawn(ask(0, 2));
    eventually("the run", async || (node.status().await.running == 1).then_some(())).await;
    waiting(0).await;
    let later = tokio::spawn(ask(9, 1));
    waiting(1).await;
    let urgent = tokio::spawn(ask(1, 1));
    waiting(2).await;
    first.await.unwrap();
    // A test that was not scheduled for a while finds both ended.
    tokio::select! {
        biased;
        ended = urgent => assert_eq!(ended.unwrap(), 1),
        ended = later => panic!("{ended:?} went first"),
    }
}
