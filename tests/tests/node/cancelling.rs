//! Disconnected clients cancel their invocations.

use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use weir_tests::{TestClient, TestNode, eventually, function};

async fn running(node: &TestClient, count: u64) {
    eventually("the change of the running calls", async || {
        (node.status().await.running == count).then_some(())
    })
    .await;
}

#[tokio::test]
async fn client_disconnect_cancels_its_invocation() {
    let node = TestNode::start().await;
    node.deploy("f", function("misbehave")).await;
    node.get("/fn/f/behave").await.ok();
    running(&node, 0).await;
    // In a host call, while computing, and while streaming a response.
    for (at, path) in ["sleep", "spin", "body"].into_iter().enumerate() {
        let mut stream = TcpStream::connect(node.address()).await.unwrap();
        stream
            .write_all(format!("GET /fn/f/{path} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes())
            .await
            .unwrap();
        running(&node, 1).await;
        if path == "body" {
            // The response has begun.
            stream.read_exact(&mut [0; 1]).await.unwrap();
        }
        let left = Instant::now();
        drop(stream);
        running(&node, 0).await;
        assert!(
            left.elapsed() < Duration::from_secs(5),
            "{path} ran for {:?} after the client left",
            left.elapsed()
        );
        let counts = eventually("the count", async || {
            let counts = node.metrics().await;
            let ended = counts.iter().filter(|(name, _)| name.starts_with("weir_invocations_total{"));
            let ended: Vec<_> = ended.map(|(name, count)| (name.clone(), *count)).collect();
            // The first call, and one per cancelled call.
            (ended.iter().map(|(_, count)| count).sum::<f64>() == (at + 2) as f64).then_some(ended)
        });
        let counts = counts.await;
        let cancelled = counts.iter().filter(|(name, _)| name.contains("code=\"cancelled\""));
        assert_eq!(cancelled.map(|(_, count)| count).sum::<f64>(), (at + 1) as f64, "{path}: {counts:?}");
    }
}

#[tokio::test]
async fn client_disconnect_removes_its_queued_call() {
    let node = TestNode::start().await;
    node.deploy_with("f", "limits.concurrency_max=1", function("misbehave")).await;
    node.get("/fn/f/behave").await.ok();
    running(&node, 0).await;
    let mut first = TcpStream::connect(node.address()).await.unwrap();
    first.write_all(b"GET /fn/f/sleep HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    running(&node, 1).await;
    let mut second = TcpStream::connect(node.address()).await.unwrap();
    second.write_all(b"GET /fn/f/sleep HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    eventually("the wait", async || (node.status().await.queued == 1).then_some(())).await;
    drop(second);
    eventually("the end of the wait", async || (node.status().await.queued == 0).then_some(())).await;
    drop(first);
    running(&node, 0).await;
    assert_eq!(node.get("/fn/f/behave").await.ok().text(), "ok\n");
}
