//! Isolation and quotas of tenants.

use weir_tests::{TestNode, eventually, function, model};
use weir_types::{ErrorCode, Version};

const ACME: &str = "acme-token-0123456789";
const OTHER: &str = "other-token-0123456789";

#[tokio::test]
async fn node_with_tokens_rejects_clients_without_one() {
    let node = TestNode::builder().tokens(&["acme-token-0123456789 acme"]).start().await;
    for path in ["/v1/functions", "/v1/models", "/v1/status", "/metrics", "/fn/hello", "/"] {
        let answer = node.get(path).await;
        assert_eq!((answer.status, answer.code()), (401, ErrorCode::Unauthorized), "{path}");
        let wrong = node.with_token("acme-token-0123456780").get(path).await;
        assert_eq!(wrong.code(), ErrorCode::Unauthorized, "{path}");
    }
    assert_eq!(
        node.try_deploy("hello", "", function("hello")).await.unwrap_err().code,
        ErrorCode::Unauthorized
    );
    for path in ["/healthz", "/readyz"] {
        assert!(node.get(path).await.is_ok(), "{path} needs no token");
    }
    assert!(node.with_token(ACME).get("/v1/functions").await.is_ok());
}

#[tokio::test]
async fn function_names_are_separate_per_tenant() {
    let lines = ["acme-token-0123456789 acme", "other-token-0123456789 other"];
    let node = TestNode::builder().tokens(&lines).start().await;
    let acme = node.with_token(ACME);
    let other = node.with_token(OTHER);
    let deployed = acme.deploy("f", function("hello")).await;
    assert_eq!(deployed.function.tenant.as_str(), "acme");
    assert_eq!(other.get("/fn/f").await.code(), ErrorCode::FunctionNotFound);
    assert_eq!(other.functions().await, []);
    assert_eq!(other.delete("/v1/functions/f").await.code(), ErrorCode::FunctionNotFound);
    assert_eq!(other.roll_back("f", None).await.code(), ErrorCode::FunctionNotFound);
    assert_eq!(other.get("/v1/functions/f/logs").await.code(), ErrorCode::FunctionNotFound);

    let theirs = other.deploy("f", function("echo-http")).await;
    assert_eq!(theirs.function.version, Version(1));
    assert_eq!(acme.get("/fn/f/x").await.text(), "hello, x\n");
    assert_eq!(other.post("/fn/f", "mine").await.text(), "mine");
    acme.delete("/v1/functions/f").await.ok();
    assert_eq!(other.post("/fn/f", "still").await.text(), "still");
}

#[tokio::test]
async fn models_are_separate_per_tenant() {
    let lines = ["acme-token-0123456789 acme", "other-token-0123456789 other"];
    let node = TestNode::builder().tokens(&lines).start().await;
    let acme = node.with_token(ACME);
    let other = node.with_token(OTHER);
    acme.push_model("m", 1, model("good/add.onnx")).await;
    assert_eq!(other.models().await, []);
    assert_eq!(other.get("/v1/models/m").await.code(), ErrorCode::ModelNotFound);
    assert_eq!(other.delete("/v1/models/m").await.code(), ErrorCode::ModelNotFound);
    let theirs = other.push_model("m", 1, model("good/matmul.onnx")).await;
    assert_eq!(theirs.tenant.as_str(), "other");
    assert_eq!(acme.models().await[0].active.signature.inputs[0].name, "a");
}

#[tokio::test]
async fn listening_beyond_loopback_requires_tokens() {
    let open = || TestNode::builder().listen("0.0.0.0:0");
    let Err(log) = open().try_start().await else { panic!("a node without tokens listens beyond loopback") };
    assert!(log.contains("token"), "{log}");
}

#[tokio::test]
async fn function_metrics_are_visible_to_tenant_and_operator_only() {
    const OPERATOR: &str = "operator-0123456789";
    let lines = ["acme-token-0123456789 acme", "other-token-0123456789 other", "operator-0123456789 *"];
    let node = TestNode::builder().tokens(&lines).start().await;
    let acme = node.with_token(ACME);
    let other = node.with_token(OTHER);
    let operator = node.with_token(OPERATOR);
    acme.deploy("merger", function("hello")).await;
    other.deploy("greet", function("hello")).await;
    acme.get("/fn/merger").await.ok();
    other.get("/fn/greet").await.ok();
    for client in [&acme, &operator] {
        eventually("the count", async || {
            (client.metric("weir_invocations_total", "function=\"merger\"").await == 1.0).then_some(())
        })
        .await;
    }
    let shown = other.get("/metrics").await.ok();
    assert!(
        shown.text().contains("greet") && !shown.text().contains("merger") && !shown.text().contains("acme")
    );
    assert_eq!(
        other.metric("weir_functions", "").await,
        2.0,
        "totals of the node are visible to every tenant"
    );

    // The operator may only read metrics.
    for path in ["/v1/functions", "/fn/merger", "/v1/status"] {
        let answer = operator.get(path).await;
        assert_eq!((answer.status, answer.code()), (403, ErrorCode::NotGranted), "{path}");
    }
    let refused = operator.try_deploy("mine", "", function("hello")).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::NotGranted);

    // The series of deleted functions end.
    acme.delete("/v1/functions/merger").await.ok();
    eventually("the end of the series", async || {
        (!operator.get("/metrics").await.ok().text().contains("merger")).then_some(())
    })
    .await;
    assert_eq!(operator.metric("weir_invocations_total", "function=\"greet\"").await, 1.0);
}

#[tokio::test]
async fn tenant_caps_do_not_affect_other_tenants() {
    let lines = ["acme-token-0123456789 acme", "other-token-0123456789 other"];
    let node = TestNode::builder()
        .tokens(&lines)
        .set("tenants.acme.running_max", 1)
        .set("tenants.other.resident_bytes_max", 1)
        .start()
        .await;
    let acme = node.with_token(ACME);
    let other = node.with_token(OTHER);
    acme.deploy_with("slow", "limits.deadline_ms=60000", function("misbehave")).await;
    acme.deploy_with("quick", "limits.deadline_ms=2000", function("hello")).await;
    other.deploy("quick", function("hello")).await;
    acme.get("/fn/quick").await.ok();
    let running = async |count: f64| {
        let what = format!("{count} calls to run");
        eventually(&what, async || {
            (acme.metric("weir_invocations_running", "").await == count).then_some(())
        })
        .await;
    };
    // The guest may end after its response.
    running(0.0).await;

    let sleeping = tokio::spawn({
        let acme = acme.clone();
        async move { acme.get("/fn/slow/sleep").await }
    });
    running(1.0).await;
    let held_back = acme.get("/fn/quick").await;
    assert_eq!(
        (held_back.status, held_back.code()),
        (504, ErrorCode::DeadlineExceeded),
        "{}",
        held_back.text()
    );
    other.get("/fn/quick").await.ok();

    // The disconnect cancels the call and frees its permit.
    sleeping.abort();
    running(0.0).await;
    acme.get("/fn/quick").await.ok();

    // Model memory has a separate cap.
    for (tenant, code) in [(&acme, None), (&other, Some(ErrorCode::NoCapacity))] {
        tenant.push_model("add", 1, model("good/add.onnx")).await;
        tenant.deploy_with("open", "models=add", function("hello")).await;
        let answer = tenant.get("/fn/open").await;
        assert_eq!((!answer.is_ok()).then(|| answer.code()), code, "{}", answer.text());
    }
}

/// A tenant with a memory cap evicts only its own models.
#[tokio::test]
async fn tenant_models_stay_within_the_memory_cap() {
    let lines = ["acme-token-0123456789 acme", "other-token-0123456789 other"];
    let node = TestNode::builder().tokens(&lines).set("models.backend", "fake");
    let node = node
        .set("models.memory_bytes_max", 3_000)
        .set("tenants.acme.resident_bytes_max", 1_500)
        .start()
        .await;
    let fake = |resident_bytes: u64| {
        let tensor = |name| serde_json::json!({ "name": name, "datatype": "FP32", "shape": [1] });
        let signature = serde_json::json!({ "inputs": [tensor("x")], "outputs": [tensor("y")] });
        serde_json::json!({
            "load_time_ms": 1, "run_time_ms": { "1": 1 }, "resident_bytes": resident_bytes, "signature": signature,
        })
        .to_string()
    };
    let request =
        serde_json::json!({ "inputs": [{ "name": "x", "datatype": "FP32", "shape": [1], "data": [0.5] }] });
    let acme = node.with_token(ACME);
    let other = node.with_token(OTHER);
    for model in ["a", "b"] {
        acme.push_model(model, 1, fake(1_000)).await;
        other.push_model(model, 1, fake(1_000)).await;
    }
    let others = ["a", "b"].map(|model| (&other, model));
    let own = ["a", "b", "a", "b"].map(|model| (&acme, model));
    for (client, model) in [&others[..], &own, &others].concat() {
        client.post(&format!("/v2/models/{model}/infer"), request.to_string()).await.ok();
    }
    // Each own call reloads its model; each of the other tenant's models was loaded once.
    assert_eq!(acme.metric("weir_cold_starts_total", "cause=\"model\"").await, 4.0 + 2.0);
    acme.push_model("large", 1, fake(2_000)).await;
    let refused = acme.post("/v2/models/large/infer", request.to_string()).await;
    assert_eq!((refused.status, refused.code()), (507, ErrorCode::NoCapacity));
    assert!(refused.text().contains("resident_bytes_max"), "{}", refused.text());
}

/// A tenant that used up its share of device time waits, and other tenants get the rest.
#[tokio::test]
async fn device_share_limit_does_not_affect_other_tenants() {
    let lines = ["acme-token-0123456789 acme", "other-token-0123456789 other"];
    let node = TestNode::builder().tokens(&lines).set("models.backend", "fake").set("models.slots", 1);
    // One run of 20 ms uses the tenant's share for several hours.
    let node = node.set("tenants.acme.device_share_max", 0.000_001).start().await;
    let tensor = |name| serde_json::json!({ "name": name, "datatype": "FP32", "shape": [1] });
    let model = serde_json::json!({
        "run_time_ms": { "1": 20 }, "resident_bytes": 1_000,
        "signature": { "inputs": [tensor("x")], "outputs": [tensor("y")] },
    });
    let acme = node.with_token(ACME);
    let other = node.with_token(OTHER);
    let infer = async |client: &weir_tests::TestClient| {
        let request = serde_json::json!({
            "inputs": [{ "name": "x", "datatype": "FP32", "shape": [1], "data": [0.5] }],
            "parameters": { "timeout": 1_000_000 },
        });
        client.post("/v2/models/m/infer", request.to_string()).await
    };
    for client in [&acme, &other] {
        client.push_model("m", 1, model.to_string()).await;
        infer(client).await.ok();
    }
    let (held_back, ()) = tokio::join!(infer(&acme), async {
        for _ in 0..10 {
            infer(&other).await.ok();
        }
    });
    assert_eq!(
        (held_back.status, held_back.code()),
        (504, ErrorCode::DeadlineExceeded),
        "{}",
        held_back.text()
    );
    // The rejected call used no device time.
    let usage = async |client: &weir_tests::TestClient| {
        client.get("/v1/usage").await.ok().json::<weir_types::api::Usage>()
    };
    assert_eq!((usage(&acme).await.total[0].runs, usage(&other).await.total[0].runs), (1, 11));
}

#[tokio::test]
async fn invalid_tenant_limits_prevent_the_start() {
    let Err(log) = TestNode::builder().set("tenants.acme.weight", 0).try_start().await else {
        panic!("a tenant has no turns")
    };
    assert!(log.contains("[node.tenants.acme]") && log.contains("weight is at least 1"), "{log}");
}
