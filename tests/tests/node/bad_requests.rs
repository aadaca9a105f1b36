//! Invalid requests: each is rejected with a 4xx status, and the node continues.

use reqwest::Method;
use weir_tests::{TestNode, function, raw, raw_cut_off};
use weir_types::ErrorCode;
use weir_types::api::MANIFEST_HEADER;

#[tokio::test]
async fn invalid_names_are_rejected() {
    let node = TestNode::start().await;
    let long = "a".repeat(10 << 10);
    let names = [
        "..",
        "%2e%2e",
        "%2E.",
        "a%2fb",
        "..%2f..%2fetc%2fpasswd",
        "a%00b",
        "%00",
        "A",
        "-a",
        ".a",
        "a..b",
        "%ff%fe",
        "%C3%A4",
        "a%20b",
        &long,
    ];
    for name in names {
        let shown: String = name.chars().take(30).collect();
        for (method, path) in [
            ("PUT", format!("/v1/functions/{name}")),
            ("GET", format!("/v1/functions/{name}")),
            ("DELETE", format!("/v1/functions/{name}")),
            ("GET", format!("/fn/{name}")),
            ("GET", format!("/fn/{name}/path")),
            ("PUT", format!("/v1/models/{name}/versions/1")),
            ("GET", format!("/v1/models/{name}")),
        ] {
            let request = format!(
                "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\nconnection: close\r\n\r\nx"
            );
            let (status, answer) = raw(&node, request).await;
            assert!((400..500).contains(&status), "{method} of {shown}: {answer}");
            let is_named = ["invalid-name", "invalid-request"].iter().any(|code| answer.contains(code));
            assert!(is_named, "{method} of {shown}: {answer}");
        }
    }
    let outside = node.data().parent().unwrap().join("etc");
    assert!(!outside.exists());
    assert_eq!(node.functions().await, []);
    assert_eq!(node.models().await, []);
}

#[tokio::test]
async fn invalid_manifests_are_rejected() {
    let node = TestNode::start().await;
    for (query, code) in [
        ("modles=a", ErrorCode::InvalidManifest),
        ("limits.memory=1", ErrorCode::InvalidManifest),
        ("limits.memory_bytes=lots", ErrorCode::InvalidManifest),
        ("limits.memory_bytes=-1", ErrorCode::InvalidManifest),
        ("models=../x", ErrorCode::InvalidManifest),
        ("models=a:0", ErrorCode::InvalidManifest),
        ("manifest=[]", ErrorCode::InvalidManifest),
        ("manifest={", ErrorCode::InvalidManifest),
        ("limits.deadline_ms=0", ErrorCode::InvalidManifest),
        ("limits.deadline_ms=999999999", ErrorCode::LimitOverCap),
        ("limits.memory_bytes=99999999999", ErrorCode::LimitOverCap),
        ("limits.concurrency_max=100000", ErrorCode::LimitOverCap),
    ] {
        let refusal = node.try_deploy("f", query, function("hello")).await.expect_err(query);
        assert_eq!((refusal.status, refusal.code), (400, code), "{query}: {}", refusal.text);
    }
    for header in ["", "{", "[]", "{\"limits\":{\"memory\":1}}", "{\"env\":{\"A\":{}}}"] {
        let request = node.request(Method::PUT, "/v1/functions/f").header(MANIFEST_HEADER, header).body("x");
        assert_eq!(request.send().await.unwrap().status(), 400, "{header}");
    }
    assert_eq!(node.functions().await, []);
}

/// Serde reads a struct also from an array of its fields.
#[tokio::test]
async fn arrays_are_no_objects() {
    let node = TestNode::start().await;
    node.deploy("f", function("hello")).await;
    let trigger = |source: &str| format!(r#"{{"source": {source}, "target": {{"function": "f"}}}}"#);
    for (method, path, body) in [
        (Method::PUT, "/v1/triggers/t", "[1]".to_owned()),
        (Method::PUT, "/v1/triggers/t", trigger(r#"[null, null, 60000]"#)),
        (Method::PUT, "/v1/functions/f/aliases/a", "[1]".to_owned()),
        (Method::POST, "/v1/functions/f/rollback", "[1]".to_owned()),
        (Method::POST, "/v1/embeddings", r#"["f"]"#.to_owned()),
        (Method::POST, "/v2/repository/index", "[true]".to_owned()),
    ] {
        let answer = node.send(node.request(method, path).body(body.clone())).await;
        let text = answer.text();
        assert!(answer.status == 400 && text.contains("expected an object"), "{path}, {body}: {text}");
    }
    node.send(node.request(Method::PUT, "/v1/triggers/t").body(trigger(r#"{"every_ms": 60000}"#))).await.ok();
}

#[tokio::test]
async fn malformed_multipart_forms_are_rejected() {
    let node = TestNode::start().await;
    let component = "--x\r\ncontent-disposition: form-data; name=component\r\n\r\nwasm\r\n";
    for (what, body) in [
        ("no end", component.to_owned()),
        ("no file", "--x\r\ncontent-disposition: form-data; name=manifest\r\n\r\n{}\r\n--x--\r\n".to_owned()),
        (
            "an unknown field",
            format!("--x\r\ncontent-disposition: form-data; name=extra\r\n\r\n{{}}\r\n{component}--x--\r\n"),
        ),
        (
            "a manifest behind the file",
            format!(
                "{component}--x\r\ncontent-disposition: form-data; name=manifest\r\n\r\n{{}}\r\n--x--\r\n"
            ),
        ),
        ("no form at all", "wasm".to_owned()),
    ] {
        let request = node
            .request(Method::PUT, "/v1/functions/f")
            .header("content-type", "multipart/form-data; boundary=x");
        let response = request.body(body).send().await.unwrap();
        assert!(response.status().is_client_error(), "{what}: {response:?}");
    }
    let no_boundary =
        node.request(Method::PUT, "/v1/functions/f").header("content-type", "multipart/form-data");
    assert_eq!(no_boundary.body("x").send().await.unwrap().status(), 400);
}

#[tokio::test]
async fn bodies_with_wrong_length_are_rejected() {
    let node = TestNode::start().await;
    node.deploy("echo", function("echo-http")).await;
    for path in ["/fn/echo", "/v1/functions/f", "/v1/models/m/versions/1"] {
        let method = if path.starts_with("/fn") { "POST" } else { "PUT" };
        let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
        for (what, rest) in [
            ("less than was said", "content-length: 1000\r\n\r\nshort"),
            ("half a chunk", "transfer-encoding: chunked\r\n\r\nff\r\nbody"),
        ] {
            let (status, answer) = raw_cut_off(&node, format!("{head}{rest}")).await;
            assert_eq!(status, 400, "{path}, {what}: {answer}");
            assert!(answer.contains("body-mismatch"), "{path}, {what}: {answer}");
        }
        for (what, rest) in [
            ("a length that is no number", "content-length: many\r\n\r\nbody"),
            ("two lengths", "content-length: 1\r\ncontent-length: 2\r\n\r\nbody"),
            ("a negative length", "content-length: -5\r\n\r\nbody"),
            ("an absurd length", "content-length: 99999999999999999999\r\n\r\n"),
            ("a broken chunk", "transfer-encoding: chunked\r\n\r\nZZ\r\nbody\r\n0\r\n\r\n"),
        ] {
            let (status, answer) = raw(&node, format!("{head}{rest}")).await;
            assert_eq!(status, 400, "{path}, {what}: {answer}");
        }
        let (status, answer) = raw(&node, format!("{head}content-length: 999999999999\r\n\r\n")).await;
        assert_eq!(status, 413, "{path}, a huge length: {answer}");
        assert!(answer.contains("body-too-large"), "{path}, a huge length: {answer}");
    }
    assert_eq!(node.functions().await.len(), 1);
    assert_eq!(node.models().await, []);
    assert_eq!(node.post("/fn/echo", "fine").await.ok().text(), "fine");
}

#[tokio::test]
async fn truncated_body_error_contains_no_backtrace() {
    let node = TestNode::builder().env("RUST_BACKTRACE", "1").start().await;
    node.deploy("echo", function("echo-body")).await;
    let request = "POST /fn/echo HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nff\r\nbody"
        .to_owned();
    let (status, answer) = raw_cut_off(&node, request).await;
    assert_eq!(status, 400, "{answer}");
    assert!(answer.contains("the body ended early: "), "{answer}");
    assert!(!answer.contains("backtrace") && !answer.contains(".rs:"), "{answer}");
}

#[tokio::test]
async fn body_over_the_functions_limit_is_rejected() {
    let node = TestNode::start().await;
    node.deploy_with("echo", "limits.request_body_bytes=1000", function("echo-http")).await;
    assert_eq!(node.post("/fn/echo", vec![0; 1_000]).await.ok().body.len(), 1_000);
    let answer = node.post("/fn/echo", vec![0; 1_001]).await;
    assert_eq!((answer.status, answer.code()), (413, ErrorCode::BodyTooLarge));
    let pieces = futures::stream::iter((0..2).map(|_| std::io::Result::Ok(vec![0_u8; 600])));
    let answer = node.post("/fn/echo", reqwest::Body::wrap_stream(pieces)).await;
    assert_eq!((answer.status, answer.code()), (413, ErrorCode::BodyTooLarge), "chunked");
}

#[tokio::test]
async fn invalid_http_is_rejected() {
    let node = TestNode::start().await;
    let headers = format!("GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "y".repeat(1 << 20));
    let many = format!("GET /healthz HTTP/1.1\r\nhost: localhost\r\n{}\r\n", "a: b\r\n".repeat(10_000));
    for (what, request) in [
        ("noise", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec()),
        ("nothing", vec![]),
        ("half a request", b"GET /hea".to_vec()),
        ("a header of 1 MiB", headers.into_bytes()),
        ("10,000 headers", many.into_bytes()),
        (
            "a target of 1 MiB",
            format!("GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "a".repeat(1 << 20)).into_bytes(),
        ),
    ] {
        let (status, answer) = raw_cut_off(&node, request).await;
        assert!(status == 0 || (400..500).contains(&status), "{what}: {answer}");
    }
    assert_eq!(node.get("/healthz").await.ok().text(), "ok\n");
}

#[tokio::test]
async fn unsupported_methods_return_405_with_allow() {
    let node = TestNode::start().await;
    for (method, path) in [
        (Method::POST, "/v1/functions"),
        (Method::PATCH, "/v1/functions/f"),
        (Method::GET, "/v1/functions/f/rollback"),
        (Method::POST, "/v1/status"),
    ] {
        let response = node.request(method.clone(), path).send().await.unwrap();
        assert_eq!(response.status(), 405, "{method} {path}");
        assert!(response.headers().contains_key("allow"), "{method} {path}");
    }
}
