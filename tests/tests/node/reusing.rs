//! Instance reuse: limits, isolation between calls, and retirement of instances.

use serde_json::{Value, json};
use weir_tests::{TestClient, TestNode, digits, eventually, function, has_function};
use weir_types::{ErrorCode, Reuse};

/// Calls `remember`, waits for the call's end, and returns the response.
async fn say(client: &TestClient, path: &str) -> String {
    let said = client.get(path).await.ok().text().trim_end().to_owned();
    at_rest(client).await;
    said
}

/// Waits until no call runs: a response may arrive before the call's end and the release of its
/// instance.
async fn at_rest(client: &TestClient) {
    eventually("the end of every call", async || {
        (client.metric("weir_invocations_running", "").await == 0.0).then_some(())
    })
    .await;
}

/// Makes `count` sequential calls, and returns each instance's call count.
async fn counts(client: &TestClient, path: &str, count: usize) -> Vec<u32> {
    let mut counts = Vec::new();
    for _ in 0..count {
        counts.push(say(client, path).await.split(' ').next().unwrap().parse().unwrap());
    }
    counts
}

/// Waits until `count` instances of a function were retired for `cause`.
async fn retired(client: &TestClient, name: &str, cause: &str, count: f64) {
    let label = format!("function=\"{name}\",cause=\"{cause}\"");
    let what = format!("{count} instances of {name} given up for {cause}");
    eventually(&what, async || {
        let now = client.metric("weir_function_instances_retired_total", &label).await;
        (now == count).then_some(())
    })
    .await;
}

/// Waits until `count` instances are idle.
async fn idle(client: &TestClient, count: f64) {
    eventually(&format!("{count} idle instances"), async || {
        (client.metric("weir_instances_idle", "").await == count).then_some(())
    })
    .await;
}

#[tokio::test]
async fn instances_are_fresh_without_reuse_in_the_manifest() {
    let node = TestNode::start().await;
    node.deploy("fresh", function("remember")).await;
    assert_eq!(counts(&node, "/fn/fresh/count", 5).await, [1; 5]);
    let function = node.function("fresh").await.unwrap();
    assert_eq!(function.active.manifest.reuse, None);
    assert_eq!(
        node.metric("weir_function_instances_total", "function=\"fresh\",instance=\"fresh\"").await,
        5.0
    );
    assert_eq!(node.metric("weir_function_instances_total", "instance=\"reused\"").await, 0.0);
    assert_eq!(node.metric("weir_instances_idle", "").await, 0.0);
}

#[tokio::test]
async fn instance_serves_up_to_its_call_limit() {
    let node = TestNode::start().await;
    for name in ["remember", "remember-p3"] {
        node.deploy_with(name, "reuse.calls_max=3", function(name)).await;
        let path = format!("/fn/{name}/count");
        assert_eq!(counts(&node, &path, 7).await, [1, 2, 3, 1, 2, 3, 1], "{name}");
        retired(&node, name, "calls", 2.0).await;
        let uses = |instance: &str| format!("function=\"{name}\",instance=\"{instance}\"");
        assert_eq!(node.metric("weir_function_instances_total", &uses("fresh")).await, 3.0, "{name}");
        assert_eq!(node.metric("weir_function_instances_total", &uses("reused")).await, 4.0, "{name}");
        let manifest = node.function(name).await.unwrap().active.manifest;
        assert_eq!(manifest.reuse, Some(Reuse { calls_max: 3, ..Reuse::default() }));
    }
}

#[tokio::test]
async fn tensor_function_instances_are_reused() {
    let node = TestNode::start().await;
    // Twice the tensor bytes of one call: tensors in a response are no longer counted for the
    // instance.
    node.deploy_with("f", "reuse=true&limits.tensor_bytes=8200", function("remember-tensor")).await;
    let inputs = json!([{ "name": "a", "datatype": "UINT8", "shape": [4096], "data": vec![1; 4096] }]);
    for call in 1..=10 {
        let answer = node.post("/fn/f", json!({ "inputs": inputs }).to_string()).await.ok();
        let outputs: Value = answer.json();
        assert_eq!(outputs["outputs"][0]["data"].as_array().unwrap().len(), 4096);
        assert_eq!(outputs["outputs"][1]["data"], json!([call]));
        at_rest(&node).await;
    }
}

#[tokio::test]
async fn failed_call_retires_its_instance() {
    let node = TestNode::start().await;
    let bounds = "reuse=true&limits.deadline_ms=5000&limits.cpu_time_ms=200";
    node.deploy_with("f", bounds, function("remember")).await;
    let ends = [
        ("/trap", ErrorCode::GuestTrap),
        ("/nap?60000", ErrorCode::DeadlineExceeded),
        ("/spin?60000", ErrorCode::CpuTimeLimit),
    ];
    for (at, (path, code)) in ends.into_iter().enumerate() {
        assert_eq!(counts(&node, "/fn/f/count", 2).await, [1, 2]);
        assert_eq!(node.get(&format!("/fn/f{path}")).await.code(), code);
        retired(&node, "f", "failed", (at + 1) as f64).await;
    }
    // A client disconnect.
    assert_eq!(counts(&node, "/fn/f/count", 2).await, [1, 2]);
    let gone = tokio::time::timeout(std::time::Duration::from_millis(300), node.get("/fn/f/nap?60000")).await;
    assert!(gone.is_err());
    retired(&node, "f", "failed", 4.0).await;
    assert_eq!(counts(&node, "/fn/f/count", 1).await, [1]);
    node.deploy_with("p3", "reuse=true", function("remember-p3")).await;
    assert_eq!(counts(&node, "/fn/p3/", 2).await, [1, 2]);
    assert_eq!(node.get("/fn/p3/trap").await.code(), ErrorCode::GuestTrap);
    assert_eq!(counts(&node, "/fn/p3/", 2).await, [1, 2]);
}

#[tokio::test]
async fn limits_apply_per_call_on_reused_instances() {
    let node = TestNode::start().await;
    let bounds = "reuse=true&limits.cpu_time_ms=600&limits.deadline_ms=5000&limits.log_bytes=1000";
    node.deploy_with("f", bounds, function("remember")).await;
    // The calls together exceed the limits on CPU time, deadline and log bytes of one call.
    for call in 1..=4 {
        assert_eq!(counts(&node, "/fn/f/spin?250", 1).await, [call]);
    }
    for call in 5..=8 {
        assert_eq!(counts(&node, "/fn/f/nap?1500", 1).await, [call]);
    }
    for call in 9..=12 {
        assert_eq!(counts(&node, "/fn/f/shout?600", 1).await, [call]);
    }
    assert_eq!(node.metric("weir_function_log_dropped_bytes_total", "function=\"f\"").await, 0.0);
    let shouted = node.logs("f").await.iter().filter(|line| line.text.len() == 600).count();
    assert_eq!(shouted, 4);
    // A single call is still limited.
    assert_eq!(node.get("/fn/f/spin?5000").await.code(), ErrorCode::CpuTimeLimit);
}

#[tokio::test]
async fn reused_instance_isolates_requests_and_log_lines() {
    let node = TestNode::start().await;
    node.deploy_with("f", "reuse=true", function("remember")).await;
    node.deploy_with("p3", "reuse=true", function("remember-p3")).await;
    for (call, body) in ["first", "second", ""].into_iter().enumerate() {
        let answer = node.post("/fn/f/body", body).await.ok();
        assert_eq!(answer.text(), format!("{}{body}\n", call + 1));
        at_rest(&node).await;
    }
    // A guest opens its streams once; its lines belong to the running call.
    for (name, path) in [("f", "/fn/f/say"), ("p3", "/fn/p3/")] {
        for id in ["one", "two", "three"] {
            let request = node.request(reqwest::Method::GET, path).header("weir-request-id", id);
            // Read the response: an unread response would cancel the call and retire its instance.
            request.send().await.unwrap().text().await.unwrap();
            at_rest(&node).await;
        }
        let lines = eventually("the lines of three calls", async || {
            let lines: Vec<_> =
                node.logs(name).await.into_iter().filter(|line| line.stream == "stdout").collect();
            (lines.len() == 3).then_some(lines)
        })
        .await;
        let ids: Vec<_> = lines.iter().map(|line| line.request_id.as_str()).collect();
        assert_eq!(ids, ["one", "two", "three"], "{name}");
        let calls: Vec<_> = lines.iter().map(|line| line.text.as_str()).collect();
        assert!(calls.is_sorted() && calls[0] != calls[1], "{name}: {calls:?}");
    }
}

#[tokio::test]
async fn retained_handles_and_memory_are_bounded() {
    let node = TestNode::start().await;
    let bounds = "reuse.handles_max=20&reuse.memory_growth_bytes=8388608&limits.tensor_bytes=16384";
    node.deploy_with("f", bounds, function("remember")).await;
    // Kept tensors count for the instance.
    assert_eq!(say(&node, "/fn/f/tensors?10").await, "1 10");
    assert_eq!(say(&node, "/fn/f/tensor").await, "2 [7]");
    let over = node.get("/fn/f/tensors?10").await;
    assert!(over.text().contains("limits.tensor_bytes"), "{}", over.text());
    // More handles than the limit.
    node.deploy_with("h", "reuse.handles_max=20", function("remember")).await;
    assert_eq!(say(&node, "/fn/h/tensors?100").await, "1 100");
    retired(&node, "h", "handles", 1.0).await;
    // A request may be kept, and its body ends with the call; the body alone may not be kept.
    assert_eq!(say(&node, "/fn/h/request").await, "1 kept");
    retired(&node, "h", "handles", 2.0).await;
    assert_eq!(say(&node, "/fn/h/count").await, "1");
    // Growth within the bound keeps the instance; growth beyond it retires the instance.
    node.deploy_with("m", bounds, function("remember")).await;
    assert_eq!(counts(&node, "/fn/m/grow?2", 3).await, [1, 2, 3]);
    assert_eq!(counts(&node, "/fn/m/grow?9", 1).await, [4]);
    retired(&node, "m", "memory", 1.0).await;
    assert_eq!(counts(&node, "/fn/m/count", 1).await, [1]);
}

#[tokio::test]
async fn concurrent_calls_use_separate_instances() {
    let node = TestNode::start().await;
    node.deploy_with("f", "reuse.idle_max=3", function("remember")).await;
    let calls = (0..6).map(|_| say(&node, "/fn/f/nap?400"));
    // All six calls run concurrently, so each needs its own instance.
    assert_eq!(futures::future::join_all(calls).await, ["1"; 6]);
    idle(&node, 3.0).await;
    retired(&node, "f", "room", 3.0).await;
    let calls = (0..3).map(|_| say(&node, "/fn/f/nap?400"));
    assert_eq!(futures::future::join_all(calls).await, ["2"; 3]);
}

#[tokio::test]
async fn idle_instances_are_evicted_for_other_functions() {
    let node = TestNode::builder().set("sandbox.instances_max", 2).start().await;
    for name in ["a", "b", "c"] {
        node.deploy_with(name, "reuse=true", function("remember")).await;
    }
    for (name, oldest) in [("a", None), ("b", None), ("c", Some("a"))] {
        assert_eq!(say(&node, &format!("/fn/{name}/count")).await, "1");
        if let Some(oldest) = oldest {
            retired(&node, oldest, "room", 1.0).await;
        }
    }
    assert_eq!(say(&node, "/fn/b/count").await, "2");
    // Waiting calls get a permit despite idle instances.
    let calls = (0..12).map(|i| node.get(["/fn/a/nap?50", "/fn/b/nap?50", "/fn/c/nap?50"][i % 3]));
    for call in futures::future::join_all(calls.map(async |call| call.await)).await {
        call.ok();
    }
    idle(&node, 2.0).await;
}

#[tokio::test]
async fn idle_instances_are_evicted_for_the_memory_of_a_call() {
    let memory_bytes = 64 << 20;
    let limit = format!("reuse=true&limits.memory_bytes={memory_bytes}");
    // An idle instance leaves less memory than the next may have.
    let node = TestNode::builder().set("sandbox.guest_memory_bytes_max", memory_bytes).start().await;
    for name in ["a", "b"] {
        node.deploy_with(name, &limit, function("remember")).await;
    }
    assert_eq!(counts(&node, "/fn/a/count", 2).await, [1, 2]);
    assert_eq!(counts(&node, "/fn/b/count", 1).await, [1]);
    retired(&node, "a", "room", 1.0).await;
    idle(&node, 1.0).await;
}

#[tokio::test]
async fn instances_are_reused_only_for_their_version() {
    let node =
        TestNode::builder().tokens(&["one-token-of-acme acme", "two-token-of-other other"]).start().await;
    let acme = node.with_token("one-token-of-acme");
    let other = node.with_token("two-token-of-other");
    for client in [&acme, &other] {
        client.deploy_with("f", "reuse=true", function("remember")).await;
    }
    assert_eq!(counts(&acme, "/fn/f/count", 3).await, [1, 2, 3]);
    assert_eq!(counts(&other, "/fn/f/count", 1).await, [1]);
    // The same component with another manifest.
    acme.deploy_with("f", "reuse=true&env.A=b", function("remember")).await;
    retired(&acme, "f", "replaced", 1.0).await;
    assert_eq!(counts(&acme, "/fn/f/count", 2).await, [1, 2]);
    acme.roll_back("f", None).await.ok();
    retired(&acme, "f", "replaced", 2.0).await;
    assert_eq!(counts(&acme, "/fn/f/count", 1).await, [1]);
    assert_eq!(counts(&other, "/fn/f/count", 1).await, [2]);
    other.delete("/v1/functions/f").await.ok();
    other.deploy_with("f", "reuse=true", function("remember")).await;
    assert_eq!(counts(&other, "/fn/f/count", 1).await, [1]);
    idle(&acme, 2.0).await;
    acme.delete("/v1/functions/f").await.ok();
    idle(&acme, 1.0).await;
}

#[tokio::test]
async fn idle_and_age_limits_retire_instances() {
    let node = TestNode::start().await;
    node.deploy_with("i", "reuse.idle_ms=300", function("remember")).await;
    node.deploy_with("a", "reuse.age_ms=1500", function("remember")).await;
    assert_eq!(counts(&node, "/fn/i/count", 1).await, [1]);
    // Retired without another call.
    retired(&node, "i", "idle", 1.0).await;
    assert_eq!(counts(&node, "/fn/i/count", 1).await, [1]);
    assert_eq!(counts(&node, "/fn/a/count", 2).await, [1, 2]);
    retired(&node, "a", "age", 1.0).await;
    assert_eq!(counts(&node, "/fn/a/count", 1).await, [1]);
}

#[tokio::test]
async fn idle_instance_does_not_pin_its_model() {
    let node = TestNode::start().await;
    node.push_model("digits", 1, digits()).await;
    node.deploy_with("f", "reuse=true&models=digits", function("remember")).await;
    for call in 1..=3 {
        assert_eq!(say(&node, "/fn/f/model").await, format!("{call} 1 outputs of version 1"));
    }
    // Unloaded while the guest holds the model; the next call loads it again.
    let post = |path: &'static str| node.post(path, "");
    post("/v2/repository/models/digits/unload").await.ok();
    eventually("the model to be unloaded", async || {
        node.status().await.devices.iter().all(|device| device.resident.is_empty()).then_some(())
    })
    .await;
    assert_eq!(say(&node, "/fn/f/model").await, "4 1 outputs of version 1");
    // A deleted model is an error of the call, which the guest can handle.
    node.delete("/v1/models/digits").await.ok();
    let gone = node.get("/fn/f/model").await;
    assert_eq!(gone.status, 502, "{}", gone.text());
}

#[tokio::test]
async fn node_settings_bound_and_disable_reuse() {
    let node = TestNode::builder().set("sandbox.instances_idle_max", 0).start().await;
    let deployed = node.deploy_with("f", "reuse=true", function("remember")).await;
    assert!(
        deployed.warnings.iter().any(|warning| warning.contains("sandbox.instances_idle_max")),
        "{deployed:?}"
    );
    assert_eq!(counts(&node, "/fn/f/count", 3).await, [1; 3]);
    let over = node.try_deploy("f", "reuse.calls_max=9999999", function("remember")).await.unwrap_err();
    assert_eq!(over.code, ErrorCode::LimitOverCap);
    assert!(over.text.contains("reuse.calls_max"), "{}", over.text);
    let none = node.try_deploy("f", "reuse.calls_max=0", function("remember")).await.unwrap_err();
    assert!(none.text.contains("at least 1"), "{}", none.text);
    let unknown = node.try_deploy("f", "reuse.calls=7", function("remember")).await.unwrap_err();
    assert_eq!(unknown.code, ErrorCode::InvalidManifest);
}

#[tokio::test]
async fn reused_instances_respond_equally_in_every_language() {
    let node = TestNode::start().await;
    for name in ["hello", "echo-body", "echo-http", "spin-hello", "wstd-hello", "waki-hello"]
        .into_iter()
        .chain(["echo-body-c", "echo-body-py", "echo-body-js", "echo-body-ts", "echo-body-go"])
    {
        if !has_function(name) {
            continue;
        }
        node.deploy_with("fresh", "", function(name)).await;
        node.deploy_with(name, "reuse=true", function(name)).await;
        for call in 0..10 {
            let body = format!("body {call}").repeat(call * 100);
            let fresh = node.post("/fn/fresh/x", body.clone()).await.ok();
            let reused = node.post(&format!("/fn/{name}/x"), body).await.ok();
            at_rest(&node).await;
            assert_eq!(reused.text(), fresh.text(), "{name}, call {call}");
        }
        let label = format!("function=\"{name}\",instance=\"reused\"");
        let reused = node.metric("weir_function_instances_total", &label).await;
        // Python's garbage collector may free a call's handles several calls later, and the
        // instance may be retired before that.
        let least = if name == "echo-body-py" { 5.0 } else { 9.0 };
        assert!(reused >= least, "{name}: {reused}");
    }
}
