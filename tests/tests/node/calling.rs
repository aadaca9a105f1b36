//! Calls through `/fn/{name}/{path}`.

use futures::stream;
use reqwest::{Body, Method};
use std::io;
use weir_tests::{TestNode, function};
use weir_types::ErrorCode;
use weir_types::api::REQUEST_ID_HEADER;

#[tokio::test]
async fn function_sees_the_path_below_its_prefix() {
    let node = TestNode::start().await;
    node.deploy("hello", function("hello")).await;
    for (path, expected) in [
        ("/fn/hello", "hello\n"),
        ("/fn/hello/", "hello\n"),
        ("/fn/hello/ann", "hello, ann\n"),
        ("/fn/hello/ann?x=y", "hello, ann\n"),
    ] {
        assert_eq!(node.get(path).await.ok().text(), expected, "{path}");
    }
    assert_eq!(node.get("/fn/nobody").await.code(), ErrorCode::FunctionNotFound);
    assert_eq!(node.get("/fn/").await.status, 400);
    assert_eq!(node.get("/nothing").await.code(), ErrorCode::RouteNotFound);
    assert_eq!(node.post("/healthz/x", "").await.code(), ErrorCode::RouteNotFound);
}

#[tokio::test]
async fn request_id_is_echoed_or_generated() {
    let node = TestNode::start().await;
    node.deploy("hello", function("hello")).await;
    let request = node.request(Method::GET, "/fn/hello").header(REQUEST_ID_HEADER, "order-66");
    let response = request.send().await.unwrap();
    assert_eq!(response.headers()[REQUEST_ID_HEADER], "order-66");
    let first = node.get("/fn/hello").await;
    let second = node.get("/fn/hello").await;
    let (first, second) =
        (first.header(REQUEST_ID_HEADER).unwrap(), second.header(REQUEST_ID_HEADER).unwrap());
    assert!(!first.is_empty() && first != second);
}

#[tokio::test]
async fn bodies_are_echoed_with_and_without_chunking() {
    let node = TestNode::start().await;
    node.deploy("echo", function("echo-http")).await;
    for length in [0, 1, 1_000, 65_536, 600_000, 8 << 20] {
        let body: Vec<u8> = (0..length).map(|i: usize| (i * 31 % 251) as u8).collect();
        let with_length = node.post("/fn/echo", body.clone()).await.ok();
        assert_eq!(with_length.header("weir-echo-bytes"), Some(&*length.to_string()));
        assert!(with_length.body == body, "a body of {length} bytes was changed");
        let pieces: Vec<_> = body.chunks(100_000).map(|piece| io::Result::Ok(piece.to_vec())).collect();
        let chunked = node.post("/fn/echo", Body::wrap_stream(stream::iter(pieces))).await.ok();
        assert!(chunked.body == body, "a chunked body of {length} bytes was changed");
    }
}

#[tokio::test]
async fn concurrent_clients_get_their_own_responses() {
    let node = TestNode::start().await;
    node.deploy("echo", function("echo-http")).await;
    let calls = (0..200).map(|i| {
        let client = node.client().clone();
        async move {
            let body = format!("{i} ").repeat(i * 10 + 1);
            assert_eq!(client.post("/fn/echo", body.clone()).await.ok().text(), body);
        }
    });
    futures::future::join_all(calls).await;
    weir_tests::eventually("the count of all calls", async || {
        (node.metric("weir_invocations_total", "code=\"ok\"").await == 200.0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn http2_is_supported() {
    let node = TestNode::start().await;
    node.deploy("hello", function("hello")).await;
    let client = reqwest::Client::builder().no_proxy().http2_prior_knowledge().build().unwrap();
    let calls = (0..20).map(|_| async {
        let response = client.get(node.url("/fn/hello/two")).send().await.unwrap();
        assert_eq!(response.version(), reqwest::Version::HTTP_2);
        assert_eq!(response.text().await.unwrap(), "hello, two\n");
    });
    futures::future::join_all(calls).await;
}

#[tokio::test]
async fn command_line_reports_why_a_large_body_is_rejected() {
    let node = TestNode::start().await;
    node.deploy_with("echo", "limits.request_body_bytes=1000", function("echo-body")).await;
    let body = node.data().join("body");
    std::fs::write(&body, vec![b'x'; 16 << 20]).unwrap();
    let body = format!("@{}", body.display());
    let refused = node.weir(&["invoke", "echo", "-d", &body]).await.unwrap_err();
    assert!(refused.contains("body-too-large") && refused.contains("request_body_bytes"), "{refused}");
    let refused = node.weir(&["invoke", "nobody", "-d", &body]).await.unwrap_err();
    assert!(refused.contains("function-not-found"), "{refused}");
}

#[tokio::test]
async fn invalid_manifest_error_names_the_key() {
    let node = TestNode::start().await;
    let refusal = node.try_deploy("f", "limits.deadline_ms=soon", function("hello")).await.unwrap_err();
    assert_eq!((refusal.status, refusal.code), (400, ErrorCode::InvalidManifest));
    assert!(refusal.text.contains("limits.deadline_ms"), "{}", refusal.text);
}
