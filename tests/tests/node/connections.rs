//! Slow clients that hold connections, memory or responses.

use reqwest::Method;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use weir_tests::{Node, eventually, function, raw};
use weir_types::ErrorCode;

#[tokio::test]
async fn connections_without_a_request_are_closed() {
    let node = Node::builder()
        .set("gateway.header_timeout_ms", 300)
        .set("gateway.idle_timeout_ms", 300)
        .start()
        .await;
    let h2_preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00".to_vec();
    for (what, bytes) in [
        ("silence", vec![]),
        ("half a preface", b"PRI * HT".to_vec()),
        ("half a head", b"GET / HTTP/1.1\r\nhost:".to_vec()),
        ("http/2 without a request", h2_preface),
        ("one request", b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n".to_vec()),
    ] {
        // `raw` waits until the node closes the connection, and fails after a timeout.
        let (status, answer) = raw(&node, bytes).await;
        assert!(matches!(status, 0 | 200 | 408), "{what}: {answer}");
    }
}

#[tokio::test]
async fn announced_bodies_reserve_no_memory() {
    let node = Node::builder().set("gateway.arena_bytes_max", 16 << 20).start().await;
    node.deploy("echo", function("echo-http")).await;
    let mut senders = Vec::new();
    for _ in 0..20 {
        let mut sender = TcpStream::connect(node.address()).await.unwrap();
        let head =
            b"POST /fn/echo HTTP/1.1\r\nhost: localhost\r\ncontent-length: 8000000\r\n\r\nthe first of it";
        sender.write_all(head).await.unwrap();
        senders.push(sender);
    }
    let under_way = async || (node.metric("weir_connections", "").await > 20.0).then_some(());
    eventually("all senders to be under way", under_way).await;
    assert_eq!(node.post("/fn/echo", vec![7; 1 << 20]).await.ok().body.len(), 1 << 20);
}

#[tokio::test]
async fn rejection_does_not_wait_for_the_request_body() {
    let node = Node::start().await;
    node.deploy_with("add", "limits.deadline_ms=300", function("echo-tensor")).await;
    for (path, code) in [("/fn/none", ErrorCode::FunctionNotFound), ("/fn/add", ErrorCode::DeadlineExceeded)]
    {
        let mut client = TcpStream::connect(node.address()).await.unwrap();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n1\r\n[\r\n"
        );
        client.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        // The sending side stays open.
        client.read_to_string(&mut answer).await.unwrap();
        assert!(answer.contains(code.as_str()), "{path}: {answer}");
        assert!(answer.to_lowercase().contains("connection: close"), "{path}: {answer}");
    }
}

#[tokio::test]
async fn head_requests_count_as_calls() {
    let node = Node::start().await;
    let names = ["hello", "echo-http", "wstd-hello", "waki-hello", "spin-hello"];
    for name in names {
        node.deploy(name, function(name)).await;
        let response = node.request(Method::HEAD, &format!("/fn/{name}/")).send().await.unwrap();
        assert_eq!(response.status(), 200, "{name}");
    }
    let all_are_well = async || {
        // Use one snapshot: a second one could contain more calls.
        let counts = node.metrics().await;
        let of = |label: &str| {
            let samples = counts.iter().filter(|(name, _)| name.starts_with("weir_invocations_total{"));
            samples.filter(|(name, _)| name.contains(label)).map(|(_, count)| count).sum::<f64>()
        };
        let (well, all) = (of("code=\"ok\""), of(""));
        assert_eq!(well, all, "a HEAD was counted as failed");
        (well == names.len() as f64).then_some(())
    };
    eventually("every HEAD to be counted", all_are_well).await;
}
