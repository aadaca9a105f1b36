//! Tests for `fetch` in JavaScript.

use serde_json::Value;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use weir_tests::{Answer, Receiver, TestNode, function, has_function};

const NAME: &str = "fetch-js";

/// Starts a node with the function and grants it `hosts`. Returns `None` if the function is not
/// built.
async fn node(hosts: &[String]) -> Option<TestNode> {
    if !has_function(NAME) {
        eprintln!("skipped: {NAME} was not built");
        return None;
    }
    let node = TestNode::start().await;
    node.deploy_with(NAME, &format!("outbound_hosts={}", hosts.join(",")), function(NAME)).await;
    Some(node)
}

async fn fetched(node: &TestNode, urls: &[String]) -> Answer {
    let query: Vec<String> = urls.iter().map(|url| format!("url={url}")).collect();
    node.get(&format!("/fn/{NAME}/?{}", query.join("&"))).await
}

#[tokio::test]
async fn fetch_transfers_bodies_unchanged() {
    // A node refuses requests of its guests to itself.
    let server = TestNode::start().await;
    server.deploy("echo", function("echo-http")).await;
    let host = server.address().to_string();
    let Some(node) = node(std::slice::from_ref(&host)).await else { return };
    let body: Vec<u8> = (0..1_000_000).map(|at| (at % 251) as u8).collect();
    for body in [&body[..], b"short", b""] {
        let answer = node.post(&format!("/fn/{NAME}/?url=http://{host}/fn/echo"), body.to_vec()).await.ok();
        assert_eq!(answer.body, body, "{} bytes", body.len());
    }
    let answer = fetched(&node, &[format!("http://{host}/fn/none")]).await;
    assert_eq!(answer.status, 404);
    assert!(answer.text().contains("function-not-found"), "{}", answer.text());
}

#[tokio::test]
async fn fetch_sends_method_and_headers_and_follows_redirects() {
    let receiver = Receiver::start(&[307]).await;
    let Some(node) = node(&[receiver.host()]).await else { return };
    let path = format!("/fn/{NAME}/?url={}", receiver.url("/here"));
    assert_eq!(node.post(&path, "hello").await.ok().text(), "");
    let received = receiver.received();
    let lines: Vec<&str> = received.iter().map(|request| &*request.line).collect();
    assert_eq!(lines, ["POST /here HTTP/1.1", "POST /redirected HTTP/1.1"]);
    for request in &received {
        assert_eq!(&request.body[..], b"hello");
        assert_eq!(request.header("x-asked-by"), Some("fetch-js"));
        assert_eq!(request.header("host"), Some(&*receiver.host()));
    }
}

/// The server responds only after all requests have arrived.
#[tokio::test]
async fn fetch_requests_run_concurrently() {
    const AT_ONCE: usize = 3;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let Some(node) = node(&[address.to_string()]).await else { return };
    let serving = tokio::spawn(async move {
        let mut streams = Vec::new();
        while streams.len() < AT_ONCE {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = [0; 4096];
            let bytes = stream.read(&mut head).await.unwrap();
            let path = String::from_utf8_lossy(&head[..bytes]).split(' ').nth(1).unwrap().to_owned();
            streams.push((stream, path));
        }
        for (mut stream, path) in streams {
            let length = path.len();
            let answer =
                format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{path}");
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    let urls: Vec<String> = (0..AT_ONCE).map(|at| format!("http://{address}/{at}")).collect();
    let answer: Value = fetched(&node, &urls).await.ok().json();
    assert_eq!(answer, serde_json::json!(["/0", "/1", "/2"]));
    serving.await.unwrap();
}

#[tokio::test]
async fn failed_fetch_throws_a_type_error_with_the_reason() {
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let Some(node) = node(&[gone.to_string()]).await else { return };
    for (url, why) in [
        (format!("http://{gone}/"), "connection refused"),
        ("http://other.example/".to_owned(), "outbound_hosts = [\"other.example\"] in weir.toml grants it"),
        ("nowhere".to_owned(), "an address begins with http:// or https://"),
    ] {
        let answer = fetched(&node, &[url]).await;
        assert_eq!(answer.status, 502, "{}", answer.text());
        assert!(answer.text().starts_with("TypeError: ") && answer.text().contains(why), "{}", answer.text());
    }
    // Without a grant for any host.
    node.deploy(NAME, function(NAME)).await;
    let answer = fetched(&node, &[format!("http://{gone}/")]).await;
    assert!(answer.text().contains("outbound_hosts"), "{}", answer.text());
}
