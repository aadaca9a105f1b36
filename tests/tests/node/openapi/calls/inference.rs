//! The Open Inference Protocol, on the model `m`.

use super::{ResponseChecker, row};
use serde_json::json;

/// Paths of the model, and the suffix of their operations.
const PATHS: [(&str, &str); 2] = [("/v2/models/m", ""), ("/v2/models/m/versions/1", "Version")];

pub(in super::super) async fn call(checker: &mut ResponseChecker<'_>) {
    for (path, suffix) in PATHS {
        infer(checker, path, &format!("infer{suffix}")).await;
        checker.call((&format!("showMetadata{suffix}"), 200), path).await;
        checker.call((&format!("isModelReady{suffix}"), 200), &format!("{path}/ready")).await;
        checker.call((&format!("showConfig{suffix}"), 200), &format!("{path}/config")).await;
        checker.call((&format!("showStatistics{suffix}"), 200), &format!("{path}/stats")).await;
    }
    checker.call(("showAllStatistics", 200), "/v2/models/stats").await;
    for body in ["", "{}", r#"{"ready": true}"#] {
        checker.put(("listRepository", 200), "/v2/repository/index", body).await;
    }
    for body in ["{]", "[]", "[true]"] {
        checker.put(("listRepository", 400), "/v2/repository/index", body).await;
    }
    checker.call(("unloadModel", 200), "/v2/repository/models/m/unload").await;
    checker.put(("loadModel", 200), "/v2/repository/models/m/load", r#"{"parameters": {"a": 1}}"#).await;
    let unsupported = r#"{"parameters": {"config": "{}"}}"#;
    checker.put(("loadModel", 501), "/v2/repository/models/m/load", unsupported).await;
}

async fn infer(checker: &mut ResponseChecker<'_>, path: &str, operation: &str) {
    let path = format!("{path}/infer");
    let ran = (operation, 200);
    let json = checker.put(ran, &path, row().to_string()).await;
    assert_eq!(json.header("content-type"), Some("application/json"));
    let with = |key: &str, value: serde_json::Value| {
        let mut request = row();
        request[key] = value;
        request.to_string()
    };
    let binary = checker.put(ran, &path, with("parameters", json!({"binary_data_output": true}))).await;
    assert_eq!(binary.header("content-type"), Some("application/octet-stream"));
    let raw = |request: reqwest::RequestBuilder| {
        request.header("inference-header-content-length", 0).body(vec![0; 4])
    };
    checker.send(ran, &path, raw).await;
    checker.put(ran, &path, with("id", json!("mine"))).await;
    checker
        .put(ran, &path, with("outputs", json!([{"name": "y", "parameters": {"classification": 1}}])))
        .await;
    let in_object = json!([{"name": "y", "parameters": {"shared_memory_region": "kept"}}]);
    checker.put(ran, &path, with("outputs", in_object)).await;
    checker.call(("deleteObject", 204), "/v1/objects/kept").await;

    let explained = |request: reqwest::RequestBuilder| {
        request.header("weir-explain", "1").header("weir-request-id", operation).body(row().to_string())
    };
    let answer = checker.send(ran, &path, explained).await;
    assert!(
        answer.header("weir-placement").is_some() && answer.header("weir-device").is_some(),
        "{answer:?}"
    );
    checker.call(("showPlacement", 200), &format!("/v1/placements/{operation}")).await;

    checker.put((operation, 400), &path, "{}").await;
    for (body, status) in [(row().to_string(), 202), (with("id", json!("other")), 422)] {
        let later = |request: reqwest::RequestBuilder| {
            request.header("prefer", "respond-async").header("idempotency-key", operation).body(body)
        };
        checker.send((operation, status), &path, later).await;
    }
    let callback = |request: reqwest::RequestBuilder| {
        request
            .header("prefer", "respond-async")
            .header("weir-callback", "http://127.0.0.1:9/")
            .body(row().to_string())
    };
    checker.send((operation, 403), &path, callback).await;
}
