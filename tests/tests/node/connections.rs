//! Slow clients that hold connections, memory or responses.

use reqwest::Method;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use weir_tests::{TestNode, eventually, function, raw};
use weir_types::ErrorCode;

/// Size of a tensor that is larger than the buffers of the systems of both sides.
const TENSOR_BYTES: usize = 16_000_000;

#[tokio::test]
async fn connections_without_a_request_are_closed() {
    let node = TestNode::builder()
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
    let node = TestNode::builder().set("gateway.arena_bytes_max", 16 << 20).start().await;
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
    eventually("the start of all senders", under_way).await;
    assert_eq!(node.post("/fn/echo", vec![7; 1 << 20]).await.ok().body.len(), 1 << 20);
}

#[tokio::test]
async fn rejection_does_not_wait_for_the_request_body() {
    let node = TestNode::start().await;
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
    let node = TestNode::start().await;
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
        let well = of("code=\"ok\"");
        let all = of("");
        assert_eq!(well, all, "a HEAD was counted as failed");
        (well == names.len() as f64).then_some(())
    };
    eventually("every HEAD to be counted", all_are_well).await;
}

/// Inference whose answer has [`TENSOR_BYTES`] and some more.
fn large_inference() -> Vec<u8> {
    let json = serde_json::json!({
        "inputs": [{
            "name": "x",
            "datatype": "UINT8",
            "shape": [TENSOR_BYTES],
            "parameters": {"binary_data_size": TENSOR_BYTES},
        }],
        "parameters": {"binary_data_output": true},
    })
    .to_string();
    let json_bytes = json.len();
    let body_bytes = json_bytes + TENSOR_BYTES;
    let head = format!(
        "POST /v2/models/echo/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: {body_bytes}\r\ninference-header-content-length: {json_bytes}\r\n\r\n"
    );
    [head.as_bytes(), json.as_bytes(), vec![7; TENSOR_BYTES].as_slice()].concat()
}

/// Sends an inference, and does not read its answer.
async fn ask_without_reading(node: &TestNode) -> TcpStream {
    let mut client = TcpStream::connect(node.address()).await.unwrap();
    client.write_all(&large_inference()).await.unwrap();
    client
}

/// Reads until the end of an answer to [`large_inference`], slowly.
async fn read_slowly(mut client: TcpStream) {
    let mut room = vec![0; 256 << 10];
    let mut read_bytes = 0;
    while read_bytes < TENSOR_BYTES {
        let read = client.read(&mut room).await.unwrap();
        assert!(read > 0, "the node cut the answer after {read_bytes} bytes");
        read_bytes += read;
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
}

#[tokio::test]
async fn unread_answers_are_limited_and_cut() {
    let node = TestNode::builder()
        .set("gateway.answers.tenant_bytes_max", 40_000_000)
        .set("gateway.answers.stall_ms", 10_000)
        .start()
        .await;
    node.deploy("echo", function("echo-tensor")).await;
    let mut clients = Vec::new();
    for count in 1..=3_i32 {
        clients.push(ask_without_reading(&node).await);
        let answers = async || {
            let bytes = node.metric("weir_tenant_answer_bytes", "default").await;
            // The third answer does not fit, so its call is refused after its run.
            (bytes >= f64::from(count.min(2)) * TENSOR_BYTES as f64).then_some(())
        };
        eventually("the answer to wait for its client", answers).await;
    }
    let refused = async || (node.metric("weir_answers_refused_total", "tenant").await > 0.0).then_some(());
    eventually("the third answer to be refused", refused).await;
    let cut = async || {
        let bytes = node.metric("weir_answer_bytes", "").await;
        let cuts = node.metric("weir_answers_cut_total", "stalled").await;
        (cuts == 2.0 && bytes < 1e6).then_some(())
    };
    eventually("the stalled answers to be cut", cut).await;
    read_slowly(ask_without_reading(&node).await).await;
}

#[tokio::test]
async fn client_that_reads_outlasts_the_idle_timeout() {
    let node = TestNode::builder()
        .set("gateway.header_timeout_ms", 300)
        .set("gateway.idle_timeout_ms", 300)
        .start()
        .await;
    node.deploy("echo", function("echo-tensor")).await;
    read_slowly(ask_without_reading(&node).await).await;
}

#[tokio::test]
async fn request_body_that_stops_arriving_is_answered_with_408() {
    let node = TestNode::builder().set("gateway.arrival.stall_ms", 500).start().await;
    for path in
        ["PUT /v1/workflows/w", "PUT /v1/functions/f", "POST /v1/functions/f/rollback", "PUT /v1/objects/o"]
    {
        let request = format!("{path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n{{\"half\"");
        let (status, answer) = raw(&node, request).await;
        assert_eq!(status, 408, "{path}: {answer}");
        assert!(answer.contains("body-stalled"), "{path}: {answer}");
        assert!(answer.to_lowercase().contains("connection: close"), "{path}: {answer}");
    }
}
