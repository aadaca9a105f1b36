//! WebSockets of functions that run on another node than the one with the client's connection.

use crate::{INFER, one_model};
use std::time::{Duration, Instant};
use weir_tests::tungstenite::Message;
use weir_tests::tungstenite::protocol::CloseFrame;
use weir_tests::{Etcd, TestClient, TestCluster, eventually, function};

/// Starts two nodes, and returns the index of the one where the function runs.
async fn start(query: &str) -> (TestCluster, usize) {
    let cluster = one_model(2, "", 1).await;
    cluster.nodes[0].post(INFER, 1.0_f32.to_le_bytes().to_vec()).await.ok();
    // The function may use the model, so it runs on the node that has the model in memory.
    cluster.nodes[0].deploy_with("ws", &format!("models=m{query}"), function("echo-socket")).await;
    cluster.all_know("ws").await;
    let holder = cluster.holder("m:1").await.unwrap();
    (cluster, holder)
}

async fn logged(node: &TestClient, text: &str) {
    eventually(text, async || {
        node.logs("ws").await.iter().any(|line| line.text.contains(text)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn messages_pass_through_the_node_with_the_connection() {
    if !Etcd::is_installed() {
        return;
    }
    // The limits of ordinary calls do not apply on either node.
    let (cluster, holder) = start("&limits.deadline_ms=1000&limits.request_body_bytes=1000").await;
    let there = &cluster.nodes[holder];
    let here = &cluster.nodes[1 - holder];
    let mut socket = here.web_socket("/fn/ws/echo").await;
    assert_eq!(here.metric("weir_invocations_forwarded_total", "").await, 1.0);
    assert_eq!(there.status().await.running, 1, "the function runs on the other node");
    for round in 0..20 {
        socket.send(vec![round; 50_000]).await;
        assert_eq!(socket.bytes().await, vec![round; 50_000]);
    }
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    socket.send("after the deadline").await;
    assert_eq!(socket.text().await, "after the deadline");
    socket.send(Message::Close(Some(CloseFrame { code: 4_001.into(), reason: "enough".into() }))).await;
    assert_eq!(socket.closed().await, (4_001, "enough".to_owned()));
    logged(there, "closed with 4001 enough").await;
    assert_eq!(here.web_socket("/fn/ws/trap").await.closed().await.0, 1011);
    assert_eq!(here.try_web_socket("/fn/ws/refuse", &[]).await.err().unwrap().status, 403);
}

#[tokio::test]
async fn client_that_does_not_read_stops_the_function_on_the_other_node() {
    if !Etcd::is_installed() {
        return;
    }
    let (cluster, holder) = start("").await;
    let there = &cluster.nodes[holder];
    let here = &cluster.nodes[1 - holder];
    let socket = here.web_socket("/fn/ws/flood").await;
    let mut before = 0;
    let messages = eventually("the function to wait", async || {
        let now = there.logs("ws").await.len();
        let last = std::mem::replace(&mut before, now);
        tokio::time::sleep(Duration::from_millis(500)).await;
        (now > 0 && now == last).then_some(now)
    })
    .await;
    assert!(messages < 500, "{messages} messages of 64 KiB were sent to a client that reads none");
    drop(socket);
    eventually("the end of the call", async || (there.status().await.running == 0).then_some(())).await;
}

/// WebSockets whose function receives nothing filled the window of the connection between the nodes.
#[tokio::test]
async fn unread_messages_do_not_block_other_calls_between_the_nodes() {
    if !Etcd::is_installed() {
        return;
    }
    let (cluster, holder) = start("").await;
    let here = &cluster.nodes[1 - holder];
    cluster.nodes[0].deploy_with("echo", "models=m", function("echo-body")).await;
    cluster.all_know("echo").await;
    let mut open = Vec::new();
    for _ in 0..20 {
        let mut socket = here.web_socket("/fn/ws/flood").await;
        for _ in 0..2 {
            socket.send(vec![7; 256 << 10]).await;
        }
        open.push(socket);
    }
    let body = vec![1; 500_000];
    let echoed = tokio::time::timeout(Duration::from_secs(10), here.post("/fn/echo", body.clone())).await;
    assert_eq!(echoed.expect("the body was blocked").ok().body, body);
}

/// The node with the client closed the WebSocket with 1011 after the whole drain time.
#[tokio::test]
async fn stop_of_the_node_with_the_function_closes_with_1001() {
    if !Etcd::is_installed() {
        return;
    }
    let (mut cluster, holder) = start("").await;
    let mut polite = cluster.nodes[1 - holder].web_socket("/fn/ws/echo").await;
    polite.send("hello").await;
    assert_eq!(polite.text().await, "hello");
    let mut sending = cluster.nodes[1 - holder].web_socket("/fn/ws/ticks").await;
    assert_eq!(sending.text().await, "0");
    let started = Instant::now();
    let stopping = tokio::spawn(cluster.nodes.remove(holder).stop());
    assert_eq!(polite.closed().await.0, 1001);
    assert_eq!(sending.closed().await.0, 1001);
    stopping.await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
}

#[tokio::test]
async fn loss_of_the_node_with_the_function_closes_with_1011() {
    if !Etcd::is_installed() {
        return;
    }
    let (mut cluster, holder) = start("").await;
    let mut socket = cluster.nodes[1 - holder].web_socket("/fn/ws/echo").await;
    socket.send("hello").await;
    assert_eq!(socket.text().await, "hello");
    cluster.nodes.remove(holder).kill().await;
    assert_eq!(socket.closed().await.0, 1011);
}
