//! Device usage by function and model, visible only to its tenant.

use serde_json::{Value, json};
use weir_tests::{TestClient, TestNode, eventually, function};
use weir_types::api::{DeviceUsage, Usage, UsageRow};

const ACME: &str = "acme-token-0123456789";
const OTHER: &str = "other-token-0123456789";

const BYTES: u64 = 50_000_000;

/// Fake model from FP32[?, 1] to FP32[?, 1].
fn fake() -> String {
    let port = |name: &str| json!({"name": name, "datatype": "FP32", "shape": [null, 1]});
    json!({
        "load_time_ms": 20, "run_time_ms": {"1": 10}, "resident_bytes": BYTES,
        "signature": {"inputs": [port("x")], "outputs": [port("y")]},
    })
    .to_string()
}

async fn fake_node() -> TestNode {
    let lines = ["acme-token-0123456789 acme", "other-token-0123456789 other", "operator-0123456789 *"];
    TestNode::builder().tokens(&lines).set("models.backend", "fake").start().await
}

async fn infer(client: &TestClient, name: &str) {
    let input = json!({"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [0.5]});
    client.post(&format!("/v2/models/{name}/infer"), json!({"inputs": [input]}).to_string()).await.ok();
}

async fn call(client: &TestClient, path: &str) {
    client.post(&format!("/fn/{path}?shape=1,1"), 1_f32.to_le_bytes().to_vec()).await.ok();
}

async fn usage(client: &TestClient) -> Usage {
    client.get("/v1/usage").await.ok().json()
}

fn row<'a>(usage: &'a Usage, function: Option<&str>, model: &str) -> Option<&'a DeviceUsage> {
    let is_it = |row: &&UsageRow| {
        row.function.as_ref().map(weir_types::Name::as_str) == function
            && row.model.as_ref().is_some_and(|name| name.as_str() == model)
    };
    usage.rows.iter().find(is_it).map(|row| &row.used)
}

#[tokio::test]
async fn device_time_and_memory_are_counted_by_function_and_model() {
    let node = fake_node().await;
    let acme = node.with_token(ACME);
    let other = node.with_token(OTHER);
    for client in [&acme, &other] {
        client.push_model("m", 1, fake()).await;
    }
    assert_eq!(usage(&acme).await.total, [], "usage was charged before the first use");
    acme.deploy_with("f", "models=m", function("infer")).await;
    acme.put("/v1/workflows/pipe", "outputs = { y = \"a.y\" }\n[inputs]\nx = \"FP32[n, 1]\"\n[steps.a]\nrun = \"m\"\ninputs = { x = \"x\" }\n")
        .await
        .ok();
    acme.deploy_with("g", "models=pipe", function("infer")).await;
    infer(&acme, "m").await;
    infer(&acme, "pipe").await;
    call(&acme, "f/m").await;
    call(&acme, "f/m").await;
    call(&acme, "g/pipe").await;
    infer(&other, "m").await;

    let seen = usage(&acme).await;
    let of =
        |function| row(&seen, function, "m").unwrap_or_else(|| panic!("{function:?} is not in {seen:?}"));
    let own = of(None);
    let f = of(Some("f"));
    let g = of(Some("g"));
    assert_eq!([own, f, g].map(|used| used.runs), [2, 2, 1], "{seen:?}");
    for (used, runs) in [(own, 2), (f, 2), (g, 1)] {
        assert!((runs * 10_000..60_000_000).contains(&used.device_time_us), "{used:?}");
        assert_eq!((used.device.as_str(), used.kind.as_str()), ("cpu", "cpu"));
    }
    assert_eq!([own, f, g].map(|used| used.loads), [1, 0, 0]);
    assert!(own.load_time_us >= 20_000, "{own:?}");
    // At least two runs were made while the model was loaded.
    assert!(own.byte_seconds >= BYTES * 50 / 1_000, "{own:?}");
    let [total] = &seen.total[..] else { panic!("{seen:?}") };
    assert_eq!((total.runs, total.loads), (5, 1));
    let parts = own.device_time_us + f.device_time_us + g.device_time_us;
    assert!(total.device_time_us.abs_diff(parts) <= 3, "{seen:?}");

    // The other tenant sees only its own model.
    let theirs = usage(&other).await;
    assert_eq!((theirs.tenant.as_str(), theirs.rows.len()), ("other", 1), "{theirs:?}");
    assert_eq!((theirs.total[0].runs, theirs.total[0].loads), (1, 1));

    // The same numbers in the command line and in the metrics.
    let text = node.weir(&["usage", "--token", ACME]).await.unwrap();
    assert!(text.contains("FUNCTION") && text.contains("m:1") && text.contains("(all)"), "{text}");
    let told: Value =
        serde_json::from_str(&node.weir(&["usage", "--token", ACME, "--json"]).await.unwrap()).unwrap();
    assert_eq!(told["total"][0]["runs"], 5);
    let labels = |function: &str| {
        format!("tenant=\"acme\",function=\"{function}\",model=\"m\",version=\"1\",device=\"cpu\"")
    };
    for (function, runs) in [("", 2.0), ("f", 2.0), ("g", 1.0)] {
        assert_eq!(acme.metric("weir_device_runs_total", &labels(function)).await, runs, "{function}");
        let seconds = acme.metric("weir_device_run_seconds_total", &labels(function)).await;
        assert!(seconds >= runs * 0.01, "{seconds}");
    }
    assert_eq!(acme.metric("weir_device_loads_total", "tenant=\"acme\"").await, 1.0);
    assert!(acme.metric("weir_device_load_seconds_total", &labels("")).await >= 0.02);
    let byte_seconds = acme.metric("weir_device_resident_byte_seconds_total", &labels("")).await;
    assert!(byte_seconds >= own.byte_seconds as f64, "{byte_seconds}");
    assert!(!other.get("/metrics").await.text().contains("acme"));
}

#[tokio::test]
async fn deleted_functions_leave_the_rows_but_stay_in_the_total() {
    let node = fake_node().await;
    let acme = node.with_token(ACME);
    acme.push_model("m", 1, fake()).await;
    acme.deploy_with("f", "models=m", function("infer")).await;
    call(&acme, "f/m").await;
    infer(&acme, "m").await;
    acme.delete("/v1/functions/f").await.ok();
    let of_function = async || row(&usage(&acme).await, Some("f"), "m").is_none().then_some(());
    eventually("the end of the function's row", of_function).await;
    assert!(row(&usage(&acme).await, None, "m").is_some());
    acme.delete("/v1/models/m").await.ok();
    let none = async || {
        let usage = usage(&acme).await;
        usage.rows.is_empty().then_some(usage)
    };
    let gone = eventually("the end of the model's rows", none).await;
    assert_eq!((gone.total[0].runs, gone.total[0].loads), (2, 1), "{gone:?}");
    // An unloaded model takes no memory. The last use of the model may end after its row.
    eventually("the end of the memory's use", async || {
        let before = usage(&acme).await;
        (usage(&acme).await == before).then_some(())
    })
    .await;
    assert!(!acme.get("/metrics").await.text().contains("weir_device_runs_total"));
    // The operator has no usage.
    let operator = node.with_token("operator-0123456789").get("/v1/usage").await;
    assert_eq!(operator.status, 403);
}
