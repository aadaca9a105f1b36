//! Outgoing requests in JavaScript and Python.

use serde_json::Value;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use weir_tests::{Answer, Receiver, TestNode, function, has_function};

/// Functions that send the same requests.
const ALL: [&str; 2] = ["fetch-js", "fetch-py"];

/// Runs `check` with each function on a node, which grants it `hosts`.
async fn for_each(hosts: &[String], check: impl AsyncFn(&TestNode, &str)) {
    let node = TestNode::start().await;
    for name in ALL.into_iter().filter(|name| has_function(name)) {
        node.deploy_with(name, &format!("outbound_hosts={}", hosts.join(",")), function(name)).await;
        check(&node, name).await;
    }
}

async fn fetched(node: &TestNode, name: &str, urls: &[String]) -> Answer {
    let query: Vec<String> = urls.iter().map(|url| format!("url={url}")).collect();
    node.get(&format!("/fn/{name}/?{}", query.join("&"))).await
}

#[tokio::test]
async fn fetch_transfers_bodies_unchanged() {
    // A node refuses requests of its guests to itself.
    let server = TestNode::start().await;
    server.deploy("echo", function("echo-http")).await;
    let host = server.address().to_string();
    for_each(std::slice::from_ref(&host), async |node, name| {
        let body: Vec<u8> = (0..1_000_000).map(|at| (at % 251) as u8).collect();
        for body in [&body[..], b"short", b""] {
            let path = format!("/fn/{name}/?url=http://{host}/fn/echo");
            let answer = node.post(&path, body.to_vec()).await.ok();
            assert_eq!(answer.body, body, "{name}: {} bytes", body.len());
        }
        let answer = fetched(node, name, &[format!("http://{host}/fn/none")]).await;
        assert_eq!(answer.status, 404, "{name}");
        assert!(answer.text().contains("function-not-found"), "{name}: {}", answer.text());
    })
    .await;
}

#[tokio::test]
async fn fetch_sends_method_and_headers_and_follows_redirects() {
    for name in ALL.into_iter().filter(|name| has_function(name)) {
        let receiver = Receiver::start(&[307]).await;
        let node = TestNode::start().await;
        node.deploy_with(name, &format!("outbound_hosts={}", receiver.host()), function(name)).await;
        let path = format!("/fn/{name}/?url={}", receiver.url("/here"));
        assert_eq!(node.post(&path, "hello").await.ok().text(), "", "{name}");
        let received = receiver.received();
        let lines: Vec<&str> = received.iter().map(|request| &*request.line).collect();
        assert_eq!(lines, ["POST /here HTTP/1.1", "POST /redirected HTTP/1.1"], "{name}");
        for request in &received {
            assert_eq!(&request.body[..], b"hello", "{name}");
            assert_eq!(request.header("x-asked-by"), Some(name));
            assert_eq!(request.header("host"), Some(&*receiver.host()), "{name}");
        }
    }
}

/// The server responds only after all requests have arrived.
#[tokio::test]
async fn fetch_requests_run_concurrently() {
    const AT_ONCE: usize = 3;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let serving = tokio::spawn(async move {
        loop {
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
        }
    });
    for_each(&[address.to_string()], async |node, name| {
        let urls: Vec<String> = (0..AT_ONCE).map(|at| format!("http://{address}/{at}")).collect();
        let answer: Value = fetched(node, name, &urls).await.ok().json();
        assert_eq!(answer, serde_json::json!(["/0", "/1", "/2"]), "{name}");
    })
    .await;
    serving.abort();
}

#[tokio::test]
async fn failed_fetch_has_the_reason() {
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let cases = [
        ("fetch-js", "TypeError", "TypeError", "TypeError", "an address begins with http:// or https://"),
        ("fetch-py", "RequestFailed", "NotGranted", "InvalidRun", "is no URL of the form https://host/path"),
    ];
    for_each(&[gone.to_string()], async |node, name| {
        let (_, failed, refused, invalid, form) = *cases.iter().find(|case| case.0 == name).unwrap();
        for (url, kind, why) in [
            (format!("http://{gone}/"), failed, "connection refused"),
            (
                "http://other.example/".to_owned(),
                refused,
                "outbound_hosts = [\"other.example\"] in weir.toml grants it",
            ),
            ("nowhere".to_owned(), invalid, form),
        ] {
            let answer = fetched(node, name, &[url]).await;
            assert_eq!(answer.status, 502, "{name}: {}", answer.text());
            let text = answer.text();
            assert!(text.starts_with(&format!("{kind}: ")) && text.contains(why), "{name}: {text}");
        }
        // Without a grant for any host.
        node.deploy(name, function(name)).await;
        let answer = fetched(node, name, &[format!("http://{gone}/")]).await;
        assert!(answer.text().contains("outbound_hosts"), "{name}: {}", answer.text());
    })
    .await;
}

/// The server accepts connections and never responds.
#[tokio::test]
async fn fetch_ends_at_its_timeout() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", silent.local_addr().unwrap());
    for_each(&[silent.local_addr().unwrap().to_string()], async |node, name| {
        let started = Instant::now();
        let answer = node.get(&format!("/fn/{name}/?timeout=0.3&url={url}")).await;
        assert_eq!(answer.status, 502, "{name}");
        let kinds = ["TimeoutError: ", "DeadlineExceeded: "];
        assert!(kinds.iter().any(|kind| answer.text().starts_with(kind)), "{name}: {}", answer.text());
        assert!(started.elapsed() < Duration::from_secs(15), "{name}");
    })
    .await;
}
