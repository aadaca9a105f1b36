//! The node, and named objects.

use super::ResponseChecker;
use reqwest::RequestBuilder;

pub(in super::super) async fn call(checker: &mut ResponseChecker<'_>) {
    for (operation, path) in [
        ("index", "/"),
        ("healthz", "/healthz"),
        ("readyz", "/readyz"),
        ("metrics", "/metrics"),
        ("openapi", "/v1/openapi.yaml"),
        ("status", "/v1/status"),
        ("usage", "/v1/usage"),
        ("listTenants", "/v1/tenants"),
        ("listCalls", "/v1/calls?kind=model&name=digits&outcome=ok&limit=5"),
        ("events", "/v1/events?limit=1000&name=f&since_ms=1&kind=deployed,fault"),
        ("showServer", "/v2"),
        ("showServerWithSlash", "/v2/"),
        ("isLive", "/v2/health/live"),
        ("isReady", "/v2/health/ready"),
    ] {
        checker.call((operation, 200), path).await;
    }
    for bad in ["kind=exploded", "limit=1001", "until_ms=1", "since_ms=now"] {
        checker.call(("events", 400), &format!("/v1/events?{bad}")).await;
    }
    checker.call(("showPlacement", 404), "/v1/placements/unknown").await;
    recent_calls(checker).await;
    dashboard(checker).await;
    objects(checker).await;
}

async fn recent_calls(checker: &mut ResponseChecker<'_>) {
    for bad in ["kind=graph", "outcome=maybe", "limit=501", "since_ms=1"] {
        checker.call(("listCalls", 400), &format!("/v1/calls?{bad}")).await;
    }
    checker.call(("showCall", 404), "/v1/calls/unknown").await;
    // The calls of `inference.rs` ended some time ago, and `infer` asked for an explanation.
    let shown = checker.call(("showCall", 200), "/v1/calls/infer").await;
    let timeline: serde_json::Value = shown.json();
    assert!(timeline["spans"].as_array().is_some_and(|spans| !spans.is_empty()), "{timeline}");
}

/// The dashboard, which is a part of the program only if it was built before.
async fn dashboard(checker: &mut ResponseChecker<'_>) {
    checker.call(("dashboardFile", 404), "/ui/no-such-file").await;
    let files = [("dashboard", "/ui"), ("dashboardWithSlash", "/ui/"), ("dashboardFile", "/ui/icon.svg")];
    for (operation, path) in files {
        let called = checker.document().operation(operation);
        let answer = checker.any(called, path, |request| request).await;
        if let Some(etag) = answer.header("etag") {
            let unchanged = |request: RequestBuilder| request.header("if-none-match", etag);
            checker.send((operation, 304), path, unchanged).await;
        }
    }
}

async fn objects(checker: &mut ResponseChecker<'_>) {
    checker.put(("putObject", 200), "/v1/objects/o?datatype=FP32&shape=2,1&ttl_ms=60000", vec![0; 8]).await;
    checker.put(("putObject", 200), "/v1/objects/bytes", "text").await;
    checker.put(("putObject", 200), "/v1/objects/scalar?datatype=INT8&shape=", vec![1]).await;
    checker.put(("putObject", 400), "/v1/objects/o?datatype=FP32&shape=2", vec![0; 7]).await;
    checker.put(("putObject", 400), "/v1/objects/o?ttl_ms=0", "text").await;
    checker.put(("putObject", 400), "/v1/objects/o?type=FP32", "text").await;
    checker.call(("listObjects", 200), "/v1/objects").await;
    for name in ["o", "bytes", "scalar"] {
        checker.call(("showObject", 200), &format!("/v1/objects/{name}")).await;
        checker.call(("readObject", 200), &format!("/v1/objects/{name}/data")).await;
        checker.call(("deleteObject", 204), &format!("/v1/objects/{name}")).await;
    }
}
