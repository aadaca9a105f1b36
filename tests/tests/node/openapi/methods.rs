//! The methods of each path, as the node lists them in `allow`.

use super::document::OpenApiDocument;
use reqwest::Method;
use std::collections::{BTreeMap, BTreeSet};
use weir_tests::TestNode;
use weir_types::ErrorCode;

/// Method that no route of the API takes.
const UNKNOWN: &[u8] = b"PROPFIND";

#[tokio::test]
async fn paths_take_the_documented_methods() {
    let document = OpenApiDocument::new();
    let node = TestNode::start().await;
    let mut documented: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    // A function takes every method.
    for operation in document.operations.iter().filter(|operation| !operation.path.starts_with("/fn/")) {
        let methods = documented.entry(operation.target(&[])).or_default();
        methods.insert(operation.method.clone());
        if operation.method == "GET" {
            methods.insert("HEAD".to_owned());
        }
    }
    for (path, methods) in documented {
        let answer = node.send(node.request(Method::from_bytes(UNKNOWN).unwrap(), &path)).await;
        let code = ErrorCode::MethodNotAllowed.as_str();
        assert_eq!((answer.status, answer.header("weir-error")), (405, Some(code)), "{path}");
        let allowed = answer.header("allow").unwrap_or_else(|| panic!("{path}: no allow")).split(',');
        let allowed: BTreeSet<String> = allowed.map(|method| method.trim().to_owned()).collect();
        assert_eq!(allowed, methods, "{path}: the node allows the methods on the left");
    }
}

#[tokio::test]
async fn head_has_the_headers_of_get() {
    let node = TestNode::start().await;
    for path in ["/healthz", "/metrics", "/v1/status", "/v2/health/live"] {
        let head = node.send(node.request(Method::HEAD, path)).await.ok();
        let get = node.get(path).await.ok();
        assert_eq!(head.header("content-type"), get.header("content-type"), "{path}");
        assert!(head.body.is_empty(), "{path}");
    }
}

#[tokio::test]
async fn unsupported_routes_of_triton_are_not_documented() {
    let document = OpenApiDocument::new();
    let node = TestNode::start().await;
    for path in [
        "/v2/models/m/generate",
        "/v2/models/m/generate_stream",
        "/v2/models/m/versions/1/trace/setting",
        "/v2/logging",
        "/v2/trace/setting",
        "/v2/systemsharedmemory/status",
        "/v2/cudasharedmemory/region/r/register",
    ] {
        assert_eq!(node.post(path, "").await.code(), ErrorCode::NotSupported, "{path}");
        assert!(!document.operations.iter().any(|operation| operation.matches(path)), "{path}");
    }
}

#[tokio::test]
async fn node_serves_the_document() {
    let node = TestNode::start().await;
    let answer = node.get("/v1/openapi.yaml").await.ok();
    assert_eq!(answer.header("content-type"), Some("application/yaml"));
    assert!(
        answer.text() == OpenApiDocument::TEXT,
        "the node serves another document than the repository has"
    );
    assert!(node.get("/").await.ok().text().contains("/v1/openapi.yaml"));
    let version = OpenApiDocument::new().root()["info"]["version"].clone();
    assert_eq!(version, node.status().await.version, "info.version");
}
