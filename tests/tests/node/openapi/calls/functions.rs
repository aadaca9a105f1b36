//! Functions and their calls.

use super::{ResponseChecker, workflow};
use serde_json::json;
use weir_tests::{component_of_0_1_0, with_custom_section};
use weir_types::ContentHash;

pub(in super::super) async fn call(checker: &mut ResponseChecker<'_>) {
    manage(checker).await;
    calls(checker).await;
    embeddings(checker).await;
}

async fn manage(checker: &mut ResponseChecker<'_>) {
    let component = component_of_0_1_0("everything-http");
    let deploy = ("deployFunction", 200);
    checker.put(deploy, "/v1/functions/g", component.clone()).await;
    checker.put(deploy, "/v1/functions/g?reuse=true&slo_ms=60000&cost_slo=1", component.clone()).await;
    let manifest = json!({
        "models": ["m"], "env": {"A": "b"}, "outbound_hosts": ["localhost"], "idempotent": true, "cache_ttl_ms": 1,
        "objects": {"read": ["*"], "write": ["o"]}, "reuse": {"calls_max": 7}, "limits": {"deadline_ms": 5_000},
    });
    let with_header = |request: reqwest::RequestBuilder| {
        request.header("weir-manifest", manifest.to_string()).body(with_custom_section(&component, "g"))
    };
    checker.send(deploy, "/v1/functions/g", with_header).await;
    let form = reqwest::multipart::Form::new()
        .text("manifest", "{}")
        .part("component", reqwest::multipart::Part::bytes(component.to_vec()));
    checker.send(deploy, "/v1/functions/g", |request| request.multipart(form)).await;
    checker.put(("deployFunction", 403), "/v1/functions/g?strict=true", component.clone()).await;
    checker.put(("deployFunction", 400), "/v1/functions/g?unknown=1", component.clone()).await;
    let digest = ContentHash::from_content(&component);
    checker.put(deploy, &format!("/v1/functions/g?digest={digest}&dry_run=true&slo_ms=1"), "").await;
    let unknown = ContentHash::from_content(b"unknown");
    checker.put(("deployFunction", 404), &format!("/v1/functions/g?digest={unknown}"), "").await;
    checker.put(("deployFunction", 422), "/v1/functions/g", "no component").await;

    checker.call(("listFunctions", 200), "/v1/functions").await;
    checker.call(("showFunction", 200), "/v1/functions/g").await;
    checker.call(("listFunctionVersions", 200), "/v1/functions/g/versions").await;
    checker.call(("showFunctionVersion", 200), "/v1/functions/g/versions/3").await;
    checker.call(("showFunctionVersion", 400), "/v1/functions/g/versions/0").await;
    checker.call(("deleteFunctionVersion", 409), "/v1/functions/g/versions/4").await;
    checker.put(("rollBackFunction", 200), "/v1/functions/g/rollback", r#"{"version": 1}"#).await;
    checker.put(("rollBackFunction", 400), "/v1/functions/g/rollback", "{]").await;
    checker.call(("rollBackFunction", 404), "/v1/functions/g/rollback").await;
    checker.call(("deleteFunctionVersion", 204), "/v1/functions/g/versions/4").await;
    canary(checker, with_custom_section(&component, "canary")).await;
    super::aliases(checker, "Function", "/v1/functions/g", 2).await;
    // The call traps, which the node notes in the log.
    checker.call(("callGet", 500), "/fn/g/path").await;
    let log = checker.call(("showLogs", 200), "/v1/functions/g/logs?lines=10").await;
    assert!(log.text().contains("\"stream\":\"weir\""), "{log:?}");
    checker.call(("showLogs", 400), "/v1/functions/g/logs?lines=many").await;

    checker.put(("deployFunction", 200), "/v1/functions/t", component_of_0_1_0("echo-tensor")).await;
    checker.put(("deployWorkflow", 200), "/v1/workflows/w-of-t", workflow_of_function("t")).await;
    checker.call(("deleteFunction", 409), "/v1/functions/t").await;
    checker.put(("deployFunction", 409), "/v1/functions/w-of-t", component).await;
    checker.call(("deleteWorkflow", 204), "/v1/workflows/w-of-t").await;
    checker.call(("deleteFunction", 204), "/v1/functions/t").await;
    checker.call(("deleteFunction", 204), "/v1/functions/g").await;
}

/// Version 5 of the function `g` is its canary, and then its active version. Version 6 is its shadow.
async fn canary(checker: &mut ResponseChecker<'_>, component: bytes::Bytes) {
    checker.call(("showCanary", 404), "/v1/functions/g/canary").await;
    checker.call(("promoteCanary", 404), "/v1/functions/g/promote").await;
    checker.put(("deployFunction", 400), "/v1/functions/g?canary=100", component.clone()).await;
    let path = "/v1/functions/g?canary=10&promote_after_ms=600000";
    checker.put(("deployFunction", 200), path, component.clone()).await;
    checker.call(("showFunction", 200), "/v1/functions/g").await;
    checker.call(("showCanary", 200), "/v1/functions/g/canary").await;
    checker.call(("showCanary", 400), "/v1/functions/UPPER/canary").await;
    checker.call(("deleteFunctionVersion", 409), "/v1/functions/g/versions/5").await;
    checker.call(("showShadow", 404), "/v1/functions/g/shadow").await;
    checker.call(("showShadow", 400), "/v1/functions/UPPER/shadow").await;
    let shadow = with_custom_section(&component, "shadow");
    checker.put(("deployFunction", 400), "/v1/functions/g?shadow=101", shadow.clone()).await;
    checker.put(("deployFunction", 200), "/v1/functions/g?shadow=100", shadow).await;
    checker.call(("showFunction", 200), "/v1/functions/g").await;
    checker.call(("showShadow", 200), "/v1/functions/g/shadow").await;
    checker.call(("deleteFunctionVersion", 409), "/v1/functions/g/versions/6").await;
    checker.call(("promoteCanary", 200), "/v1/functions/g/promote").await;
    checker.call(("promoteCanary", 400), "/v1/functions/UPPER/promote").await;
    checker.put(("rollBackFunction", 200), "/v1/functions/g/rollback", "").await;
}

/// A function does not declare its outputs, so the workflow document declares them.
fn workflow_of_function(name: &str) -> String {
    let mut document: serde_json::Value = serde_json::from_str(&workflow(name)).expect("JSON");
    document["steps"]["a"]["outputs"] = json!({"x": "FP32[n, 1]"});
    document["outputs"] = json!({"y": "a.x"});
    document.to_string()
}

/// The function `f` runs the model in its path on the body.
async fn calls(checker: &mut ResponseChecker<'_>) {
    for method in ["Get", "Head", "Post", "Put", "Patch", "Delete", "Options"] {
        checker.put((&format!("call{method}"), 200), "/fn/f/m?shape=1,1", vec![0; 4]).await;
        // The root path names no model, which the function answers itself.
        let operation = checker.document().operation(&format!("callRoot{method}"));
        let answer = checker.any(operation, "/fn/f?shape=1,1", |request| request.body(vec![0; 4])).await;
        assert_eq!(answer.header("weir-error"), None, "{answer:?}");
    }
    let later = |request: reqwest::RequestBuilder| request.header("prefer", "respond-async").body(vec![0; 4]);
    checker.send(("callPost", 202), "/fn/f/m?shape=1,1", later).await;
    checker.call(("callPost", 404), "/fn/missing/path").await;
    checker.call(("callGet", 400), "/fn/UPPER/path").await;
}

async fn embeddings(checker: &mut ResponseChecker<'_>) {
    let operation = "createEmbeddings";
    let path = "/v1/embeddings";
    let answer = checker.any(checker.document().operation(operation), path, |request| {
        request.body(json!({"model": "f", "input": "text"}).to_string())
    });
    assert_eq!(answer.await.header("weir-error"), None, "the response is not the function's own");
    checker.put((operation, 400), path, "{}").await;
    checker.put((operation, 404), path, r#"{"model": "missing"}"#).await;
    for (input, status) in [("a", 202), ("b", 422)] {
        let later = |request: reqwest::RequestBuilder| {
            let request = request.header("prefer", "respond-async").header("idempotency-key", "embeddings");
            request.body(json!({"model": "f", "input": input}).to_string())
        };
        checker.send((operation, status), path, later).await;
    }
}
