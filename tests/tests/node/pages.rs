//! Requests of web pages to a node without tokens, and heads that are read differently elsewhere.

use reqwest::Method;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use weir_tests::{TestNode, eventually, function, raw};
use weir_types::ErrorCode;

/// Sends a request with these header lines. Returns the status and the error code.
async fn ask(node: &TestNode, method: &str, headers: &str) -> (u16, Option<ErrorCode>) {
    let request = format!("{method} /v1/functions HTTP/1.1\r\n{headers}connection: close\r\n\r\n");
    let answered = raw(node, request).await;
    let code = ErrorCode::ALL.iter().copied().find(|code| answered.1.contains(&format!("\"{code}\"")));
    (answered.0, code)
}

/// DNS rebinding: the page's own name resolves to loopback, so that the browser sends that name.
#[tokio::test]
async fn foreign_hosts_are_refused_on_a_loopback_node_without_tokens() {
    let node = TestNode::builder().set("gateway.access.pages.hosts", "[\"weir.example\"]").start().await;
    let foreign = (421, Some(ErrorCode::ForeignHost));
    for (host, expected) in [
        (node.address(), (200, None)),
        ("localhost", (200, None)),
        ("[::1]:9347", (200, None)),
        ("weir.example:80", (200, None)),
        ("evil.example", foreign),
        ("127.0.0.1.evil.example:9347", foreign),
    ] {
        assert_eq!(ask(&node, "GET", &format!("host: {host}\r\n")).await, expected, "{host}");
    }
    let health = raw(&node, "GET /healthz HTTP/1.1\r\nhost: probe\r\nconnection: close\r\n\r\n").await;
    assert_eq!(health.0, 200, "health checks need no permission");
}

#[tokio::test]
async fn pages_of_other_origins_are_refused_before_their_bodies_are_read() {
    let node =
        TestNode::builder().set("gateway.access.pages.origins", "[\"https://ui.example\"]").start().await;
    node.deploy("echo", function("echo-http")).await;
    let own = format!("http://{}", node.address());
    let host = format!("host: {}\r\n", node.address());
    let refused = (403, Some(ErrorCode::CrossSite));
    for (headers, expected) in [
        ("sec-fetch-site: cross-site\r\n".to_owned(), refused),
        ("origin: https://evil.example\r\n".to_owned(), refused),
        ("origin: null\r\nsec-fetch-site: cross-site\r\n".to_owned(), refused),
        ("origin: http://localhost:1\r\nsec-fetch-site: same-site\r\n".to_owned(), refused),
        ("origin: https://ui.example\r\nsec-fetch-site: cross-site\r\n".to_owned(), (200, None)),
        (format!("origin: {own}\r\nsec-fetch-site: same-origin\r\n"), (200, None)),
        ("sec-fetch-site: none\r\n".to_owned(), (200, None)),
    ] {
        assert_eq!(ask(&node, "GET", &format!("{host}{headers}")).await, expected, "{headers}");
    }
    // The body never arrives.
    let request = format!(
        "POST /fn/echo HTTP/1.1\r\n{host}origin: https://evil.example\r\ncontent-length: 1000000\r\n\r\n"
    );
    let answer = raw(&node, request).await;
    assert!(answer.0 == 403 && answer.1.contains("cross-site"), "{}", answer.1);
    let own_page = node.request(Method::POST, "/fn/echo").header("origin", &own).body("x");
    assert_eq!(node.send(own_page).await.ok().text(), "x");
}

#[tokio::test]
async fn nodes_with_tokens_have_any_name() {
    let node = TestNode::builder().tokens(&["0123456789abcdef acme"]).start().await;
    let headers =
        "host: weir.example\r\norigin: https://ui.example\r\nauthorization: Bearer 0123456789abcdef\r\n";
    assert_eq!(ask(&node, "GET", headers).await, (200, None));
    assert_eq!(ask(&node, "GET", "host: weir.example\r\n").await, (401, Some(ErrorCode::Unauthorized)));
}

#[tokio::test]
async fn ambiguous_heads_are_rejected() {
    let node = TestNode::start().await;
    node.deploy("echo", function("echo-http")).await;
    for (what, headers) in [
        ("no host", ""),
        ("two hosts", "host: localhost\r\nhost: localhost\r\n"),
        ("space before the colon", "host : localhost\r\n"),
        ("folded header", "host: localhost\r\na: b\r\n c\r\n"),
    ] {
        let answer =
            raw(&node, format!("GET /v1/functions HTTP/1.1\r\n{headers}connection: close\r\n\r\n")).await;
        assert_eq!(answer.0, 400, "{what}: {}", answer.1);
    }
    let old = raw(&node, "GET /v1/functions HTTP/1.0\r\n\r\n").await;
    assert!(old.1.starts_with("HTTP/1.0 200"), "HTTP/1.0 has no host: {}", old.1);
    for (what, headers, body) in [
        ("unknown encoding", "transfer-encoding: xchunked\r\n", "3\r\nabc\r\n0\r\n\r\n"),
        ("two lengths", "content-length: 3\r\ncontent-length: 4\r\n", "abcd"),
        ("a signed length", "content-length: +3\r\n", "abc"),
    ] {
        let head = format!("POST /fn/echo HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n");
        let answer = raw(&node, format!("{head}{body}")).await;
        assert_eq!(answer.0, 400, "{what}: {}", answer.1);
    }
}

/// A proxy that reads only the length would take the subsequent bytes for another request.
#[tokio::test]
async fn request_with_length_and_chunks_is_rejected() {
    let node = TestNode::start().await;
    node.deploy("echo", function("echo-http")).await;
    let length = "content-length: 3\r\n";
    let chunks = "transfer-encoding: chunked\r\n";
    for headers in [format!("{length}{chunks}"), format!("{chunks}{length}")] {
        let request =
            format!("POST /fn/echo HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n3\r\nabc\r\n0\r\n\r\n");
        let smuggled = "GET /v1/functions HTTP/1.1\r\nhost: localhost\r\n\r\n";
        let answer = raw(&node, format!("{request}{smuggled}")).await;
        assert_eq!(answer.0, 400, "{headers}: {}", answer.1);
        assert_eq!(answer.1.matches("HTTP/1.1").count(), 1, "the connection ends: {}", answer.1);
    }
    // Both kinds of bodies are fine on their own, one after the other.
    let host = "host: localhost\r\n";
    let one = format!("POST /fn/echo HTTP/1.1\r\n{host}{length}\r\nabc");
    let two = format!("POST /fn/echo HTTP/1.1\r\n{host}{chunks}\r\n2\r\nde\r\n1;x=y\r\n\n\r\n0\r\n\r\n");
    let last = format!("GET /v1/functions HTTP/1.1\r\n{host}connection: close\r\n\r\n");
    let answers = raw(&node, format!("{one}{two}{last}")).await.1;
    assert!(answers.matches("HTTP/1.1 200").count() == 3 && answers.contains("de\n"), "{answers}");
}

/// RFC 9112 permits a lone line feed at the end of a line. Inside of a value, it smuggles a header
/// past a proxy that does not accept it.
#[tokio::test]
async fn bare_line_feeds_and_carriage_returns_are_rejected() {
    let node = TestNode::start().await;
    for request in [
        "GET /v1/functions HTTP/1.1\nhost: localhost\nconnection: close\n\n",
        "GET /v1/functions HTTP/1.1\r\nhost: localhost\r\nconnection: close\n\r\n",
        "GET /v1/functions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\n",
        "GET /v1/functions HTTP/1.1\r\nhost: localhost\r\na: b\nc: d\r\nconnection: close\r\n\r\n",
        "GET /v1/functions HTTP/1.1\r\nhost: localhost\r\na: b\rc\r\nconnection: close\r\n\r\n",
    ] {
        let answer = raw(&node, request).await;
        assert_eq!(answer.0, 400, "{request:?}: {}", answer.1);
    }
}

#[tokio::test]
async fn heads_are_limited_before_authentication() {
    let node = TestNode::builder().tokens(&["0123456789abcdef acme"]).start().await;
    let ask = async |bytes: usize| {
        let value = "v".repeat(bytes);
        ask(&node, "GET", &format!("host: localhost\r\na: {value}\r\n")).await
    };
    assert_eq!(ask(31 << 10).await, (401, Some(ErrorCode::Unauthorized)));
    assert_eq!(ask(33 << 10).await, (431, Some(ErrorCode::HeadTooLarge)));
}

#[tokio::test]
async fn connections_of_one_address_are_limited() {
    let node = TestNode::builder().set("gateway.connections_per_address_max", 4).start().await;
    let mut held = Vec::new();
    let mut closed = 0;
    for _ in 0..8 {
        let mut stream = TcpStream::connect(node.address()).await.unwrap();
        let request = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
        let sent = tokio::io::AsyncWriteExt::write_all(&mut stream, request).await;
        let mut answer = [0; 12];
        match sent.and(stream.read_exact(&mut answer).await.map(drop)) {
            Ok(()) => held.push(stream),
            Err(_) => closed += 1,
        }
    }
    assert_eq!(held.len() + closed, 8);
    assert!((1..=4).contains(&held.len()), "{} are open", held.len());
    drop(held);
    // The node first has to notice the closed connections, including those of the client.
    eventually("room for another connection", async || {
        let answer =
            raw(&node, "GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await;
        (answer.0 == 200).then_some(())
    })
    .await;
    assert!(node.metric("weir_connections_refused_total", "").await >= closed as f64);
}
