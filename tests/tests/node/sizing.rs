//! Model profiling, sizing and autosizing.

use serde_json::{Value, json};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::process::Command;
use tokio::task::JoinHandle;
use weir_tests::{TestNode, digits, eventually, model};
use weir_types::ErrorCode;
use weir_types::api::{Model, ModelCapacity};

/// Fake model with this run time for one thread, and half of it for two threads.
fn fake(run_time_ms: u64) -> String {
    let port = |name: &str| json!([{ "name": name, "datatype": "FP32", "shape": [null, 1] }]);
    json!({
        "run_time_ms": { "1": run_time_ms, "2": 2 * run_time_ms },
        "time_by_threads": { "2": 0.5 },
        "resident_bytes": 1_000,
        "session_bytes": 100,
        "signature": { "inputs": port("x"), "outputs": port("y") },
    })
    .to_string()
}

async fn fake_node() -> TestNode {
    TestNode::builder().set("models.backend", "fake").set("models.slots", 2).start().await
}

#[tokio::test]
async fn profile_and_sizing_survive_a_restart() {
    let node = TestNode::builder().set("models.slots", 2).start().await;
    node.push_model("digits", 1, digits()).await;
    let unmeasured =
        node.weir(&["models", "capacity", "digits", "--rate", "10", "--slo-ms", "100"]).await.unwrap_err();
    assert!(unmeasured.contains("run `weir models profile digits` first"), "{unmeasured}");
    assert!(unmeasured.contains("code: no-configuration (HTTP 422)"), "{unmeasured}");

    let arguments =
        ["--threads", "1", "--batch", "1,4", "--concurrency", "1,2", "--duration", "20ms", "--json"];
    let profiled = node.weir(&[&["models", "profile", "digits"][..], &arguments].concat()).await.unwrap();
    let profiled: Value = serde_json::from_str(&profiled).unwrap();
    let measured = profiled["measured"].as_array().unwrap();
    let configuration =
        |one: &Value| ["threads", "batch", "concurrency"].map(|key| one[key].as_u64().unwrap());
    let expected = [[1, 1, 1], [1, 4, 1], [1, 1, 2], [1, 4, 2]];
    assert_eq!(measured.iter().map(configuration).collect::<Vec<_>>(), expected);
    for one in measured {
        let number = |key: &str| one[key].as_f64().unwrap();
        assert!(
            number("latency_p50_ns") > 0.0 && number("latency_p50_ns") <= number("latency_p95_ns"),
            "{one}"
        );
        // Images of 64 numbers and scores of 10, for each item of each run.
        assert!(number("memory_bytes") >= number("batch") * number("concurrency") * 4.0 * 74.0, "{one}");
        // The throughput is at most that of concurrent runs at half the median latency.
        let most = number("batch") * number("concurrency") * 2e9 / number("latency_p50_ns");
        assert!(number("throughput_per_s") > 0.0 && number("throughput_per_s") <= most, "{one}");
    }

    let node = node.stop().await.start().await;
    let shown: Model = node.get("/v1/models/digits").await.ok().json();
    assert_eq!(shown.active.profile.measured.len(), expected.len());
    let text = node.weir(&["models", "show", "digits"]).await.unwrap();
    assert!(text.contains("THREADS") && text.contains("THROUGHPUT"), "{text}");

    let sized =
        node.weir(&["models", "capacity", "digits", "--rate", "10", "--slo-ms", "60000", "--json"]).await;
    let sized: ModelCapacity = serde_json::from_str(&sized.unwrap()).unwrap();
    assert_eq!((sized.instances, sized.sessions), (1, u64::from(sized.configuration.concurrency)));
    assert!(shown.active.profile.measured.contains(&sized.configuration) && sized.throughput_per_s >= 10.0);
    let text =
        node.weir(&["models", "capacity", "digits", "--rate", "1e9", "--slo-ms", "60000"]).await.unwrap();
    assert!(text.contains("add nodes, or raise models.slots"), "{text}");
    let missed = node
        .weir(&["models", "capacity", "digits", "--rate", "10", "--slo-ms", "0.00001"])
        .await
        .unwrap_err();
    assert!(missed.contains("the best meets") && missed.contains("raise the SLO"), "{missed}");
}

#[tokio::test]
async fn profile_measures_the_declared_times() {
    let node = fake_node().await;
    node.put("/v1/models/m", fake(20)).await.ok();
    let arguments =
        ["--threads", "1,2", "--batch", "1,2", "--concurrency", "1,2", "--duration", "100ms", "--json"];
    let profiled = node.weir(&[&["models", "profile", "m"][..], &arguments].concat()).await.unwrap();
    let profiled: Value = serde_json::from_str(&profiled).unwrap();
    for one in profiled["measured"].as_array().unwrap() {
        let number = |key: &str| one[key].as_u64().unwrap();
        let declared_ms = 20 * number("batch") / number("threads");
        assert!(number("latency_p50_ns") >= declared_ms * 1_000_000, "{one}");
        // A session, and one number in and out per item.
        assert_eq!(number("memory_bytes"), number("concurrency") * (100 + 8 * number("batch")), "{one}");
    }
    // A batch that misses the SLO skips larger batches.
    let body =
        json!({"threads": [1], "concurrency": [1], "batch": [1, 2, 4], "slo_ms": 70, "duration_ms": 1});
    let answer = node.post("/v1/models/m/profile", body.to_string()).await.ok();
    let events: Vec<Value> = answer
        .text()
        .lines()
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let names: Vec<_> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(names, ["started", "measured", "measured", "skipped", "done"], "{events:?}");
    assert_eq!(events[3]["why"], "a batch of 2 misses the SLO already");
}

#[tokio::test]
async fn invalid_profile_requests_are_rejected_with_a_reason() {
    let node = fake_node().await;
    let image = json!([{ "name": "x", "datatype": "FP32", "shape": [null, 3, null] }]);
    let open = json!({
        "resident_bytes": 1,
        "signature": { "inputs": image, "outputs": [{ "name": "y", "datatype": "FP32", "shape": [null] }] },
    });
    node.put("/v1/models/m", open.to_string()).await.ok();
    let refused = node.weir(&["models", "profile", "m"]).await.unwrap_err();
    assert!(refused.contains("has 1 dimensions that may vary in addition to the batch"), "{refused}");
    assert!(refused.contains("--dims x=16"), "{refused}");
    let arguments = ["--dims", "x=16", "--duration", "1ms", "--threads", "1", "--batch", "1"];
    node.weir(&[&["models", "profile", "m"][..], &arguments].concat()).await.unwrap();
    for (body, code) in [
        (json!({"threads": [0]}), ErrorCode::InvalidRequest),
        (json!({"concurrency": [3]}), ErrorCode::InvalidRequest),
        (json!({"duration_ms": 10_001}), ErrorCode::InvalidRequest),
        (json!({"dims": {"z": [1]}}), ErrorCode::InvalidRequest),
        (json!({"dims": {"x": [0]}}), ErrorCode::InvalidRequest),
        (json!({"dims": {"x": [1 << 30]}}), ErrorCode::InvalidRequest),
        (json!({"cores": [1]}), ErrorCode::InvalidRequest),
        (json!({"version": 7}), ErrorCode::VersionNotFound),
        (
            json!({"duration_ms": 10_000, "batch": (1..=31).collect::<Vec<_>>(), "dims": {"x": [1]}}),
            ErrorCode::LimitOverCap,
        ),
        (json!({"batch": (1..=65).collect::<Vec<_>>(), "dims": {"x": [1]}}), ErrorCode::LimitOverCap),
    ] {
        assert_eq!(node.post("/v1/models/m/profile", body.to_string()).await.code(), code, "{body}");
    }
    for query in
        ["", "?rate=1", "?rate=0&slo_ms=1", "?rate=nan&slo_ms=1", "?rate=1&slo_ms=-1", "?rate=1&slo_ms=1&x=1"]
    {
        let answer = node.get(&format!("/v1/models/m/capacity{query}")).await;
        assert_eq!(answer.code(), ErrorCode::InvalidRequest, "{query}");
    }
    assert_eq!(node.post("/v1/models/z/profile", "").await.code(), ErrorCode::ModelNotFound);
}

#[tokio::test]
async fn interrupt_ends_profiling_and_frees_its_slot() {
    let node = fake_node().await;
    node.put("/v1/models/m", fake(5)).await.ok();
    let mut command = Command::new(node.binary());
    command.args(["models", "profile", "m", "--duration", "10s", "--threads", "1", "--batch", "1,2,4,8"]);
    command.env("WEIR_URL", node.url("").as_str().trim_end_matches('/'));
    let mut profiling =
        command.stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true).spawn().unwrap();
    let one = json!({"threads": [1], "batch": [1], "concurrency": [1], "duration_ms": 1}).to_string();
    // The profiling slot is taken before the model is loaded.
    let is_loaded = async || (!node.status().await.devices[0].resident.is_empty()).then_some(());
    eventually("the profiling", is_loaded).await;
    let refused = node.weir(&["models", "profile", "m"]).await.unwrap_err();
    assert!(refused.contains("is being profiled on this node already"), "{refused}");
    // Other calls are served meanwhile.
    let body =
        json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [7]}]}).to_string();
    node.post("/v2/models/m/infer", body).await.ok();
    weir_tests::signal(profiling.id().unwrap(), "INT");
    assert!(!profiling.wait().await.unwrap().success());
    let again = eventually("the end of the cancelled profiling", async || {
        let answer = node.post("/v1/models/m/profile", one.clone()).await;
        (answer.status == 200).then_some(answer)
    });
    assert!(again.await.text().contains("\"event\":\"done\""));
    // Profiling runs do not count as inferences or into their measured times.
    assert_eq!(node.metric("nv_inference_request_success", "model=\"m\"").await, 1.0);
    let shown: Model = node.get("/v1/models/m").await.ok().json();
    assert_eq!(shown.active.profile.run_time_ns.values().map(|mean| mean.count).sum::<u64>(), 1);
}

#[tokio::test]
async fn model_without_batch_dimension_rejects_profile_batches() {
    let node = TestNode::builder().set("models.slots", 1).start().await;
    node.put("/v1/models/slow", model("good/slow.onnx")).await.ok();
    let refused = node.weir(&["models", "profile", "slow", "--batch", "2"]).await.unwrap_err();
    assert!(refused.contains("the model has no batch dimension"), "{refused}");
}

#[tokio::test]
async fn autosizing_applies_to_every_device_with_the_model() {
    let node = TestNode::builder()
        .set("models.backend", "fake")
        .set("models.slots", 2)
        .argument("--devices")
        .argument("fake:a,fake:a")
        .start()
        .await;
    // One thread misses the objective, two threads meet it.
    let query = "autosize.slo_ms=380&autosize.interval_ms=300";
    node.put(&format!("/v1/models/m?{query}"), fake(400)).await.ok();
    let arguments = ["--threads", "1,2", "--batch", "1", "--concurrency", "1", "--duration", "1ms"];
    node.weir(&[&["models", "profile", "m"][..], &arguments].concat()).await.unwrap();
    let of = async |name: &str, device: &str| node.metric(name, &format!("device=\"{device}\"")).await;
    let sized = async || {
        let threads = [of("weir_model_threads", "fake:0").await, of("weir_model_threads", "fake:1").await];
        threads.map(|threads| threads == 2.0)
    };
    let on_one = async || sized().await.contains(&true).then_some(());
    eventually("the sizing on the measured device", on_one).await;
    assert!(sized().await.contains(&false), "the model is sized on a device that does not run it");

    // More queued calls bring the model to the second device.
    let stop = Arc::new(AtomicBool::new(false));
    let clients = clients(&node, 6, &stop);
    let on_both = async || (sized().await == [true, true]).then_some(());
    eventually("sizing on the second", on_both).await;
    eventually("the rates of both devices", async || {
        let rates = [of("weir_model_rate", "fake:0").await, of("weir_model_rate", "fake:1").await];
        rates.iter().all(|rate| *rate > 0.0).then_some(())
    })
    .await;
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.unwrap();
    }
}

/// Starts `count` clients that call `m` repeatedly until `stop`.
fn clients(node: &TestNode, count: usize, stop: &Arc<AtomicBool>) -> Vec<JoinHandle<()>> {
    let body =
        json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [7]}]}).to_string();
    let client = || {
        let client = node.client().clone();
        let body = body.clone();
        let stop = stop.clone();
        tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                client.post("/v2/models/m/infer", body.clone()).await.ok();
            }
        })
    };
    (0..count).map(|_| client()).collect()
}

#[tokio::test]
async fn autosizing_follows_the_request_rate() {
    let node = fake_node().await;
    // One thread misses the objective, two threads meet it.
    let query = "autosize.slo_ms=380&autosize.interval_ms=400&autosize.keep_alive_ms=0";
    node.put(&format!("/v1/models/m?{query}"), fake(400)).await.ok();
    let number = |name: &'static str| node.metric(name, "model=\"m\"");
    let body =
        json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [7]}]}).to_string();
    node.post("/v2/models/m/infer", body.clone()).await.ok();
    eventually("the log", async || node.log().contains("run `weir models profile m`").then_some(())).await;
    assert_eq!(number("weir_model_sizings_total").await, 0.0);

    let arguments = ["--threads", "1,2", "--batch", "1", "--concurrency", "1", "--duration", "1ms"];
    node.weir(&[&["models", "profile", "m"][..], &arguments].concat()).await.unwrap();
    eventually("the sizing", async || (number("weir_model_threads").await == 2.0).then_some(())).await;
    assert_eq!(number("weir_model_sessions_max").await, 1.0);
    let runs = |model: &Model| model.active.devices[0].runs.unwrap();
    let shown: Model = node.get("/v1/models/m").await.ok().json();
    assert_eq!((runs(&shown).threads, runs(&shown).at_once_max), (2, 1));

    // Four clients exceed the target utilisation of one session.
    let stop = Arc::new(AtomicBool::new(false));
    let clients = clients(&node, 4, &stop);
    eventually("growth", async || (number("weir_model_sessions_max").await == 2.0).then_some(())).await;
    assert!(number("weir_model_rate").await > 0.0);
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.unwrap();
    }
    eventually("shrinking", async || (number("weir_model_sessions_max").await == 1.0).then_some(())).await;
    eventually("the end of the surplus sessions", async || {
        (number("weir_model_sessions").await == 1.0).then_some(())
    })
    .await;
    let text = node.weir(&["models", "show", "m"]).await.unwrap();
    assert!(
        text.contains("autosize     within 380 ms")
            && text.contains("at most 1 at once, threads 2, sessions 1"),
        "{text}"
    );
    assert_eq!(
        number("weir_slo_inferences_total").await,
        0.0,
        "the goal of autosizing counts as an SLO of inferences"
    );

    node.delete("/v1/models/m").await.ok();
    eventually("the end of its metrics", async || {
        (node.metrics().await.keys().all(|name| !name.starts_with("weir_model_rate{"))).then_some(())
    })
    .await;
    for (query, why) in [
        ("autosize.slo_ms=0", "autosize.slo_ms is at least 1"),
        ("autosize.interval_ms=1000", "missing field `slo_ms`"),
        ("autosize.slo_ms=1&autosize.interval_ms=1", "not within 100 to 3600000"),
        ("autosize.slo_ms=1&autosize.slots=1", "unknown field"),
    ] {
        let answer = node.put(&format!("/v1/models/bad?{query}"), fake(1)).await;
        assert_eq!(answer.code(), ErrorCode::InvalidManifest, "{query}");
        assert!(answer.text().contains(why), "{query}: {}", answer.text());
    }
}
