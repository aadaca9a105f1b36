//! WebSockets in Rust, Python and TypeScript.

use std::time::Duration;
use weir_tests::tungstenite::Message;
use weir_tests::tungstenite::protocol::CloseFrame;
use weir_tests::{TestNode, eventually, function, has_function};

/// Functions with the same WebSockets.
const ALL: [&str; 3] = ["echo-socket", "echo-socket-py", "echo-socket-ts"];

/// Runs `check` with each function on a node.
async fn for_each(check: impl AsyncFn(&TestNode, &str)) {
    let node = TestNode::start().await;
    for name in ALL.into_iter().filter(|name| has_function(name)) {
        node.deploy(name, function(name)).await;
        check(&node, name).await;
        eventually("the end of the calls", async || (node.status().await.running == 0).then_some(())).await;
    }
}

async fn logged(node: &TestNode, name: &str, text: &str) {
    eventually(text, async || {
        node.logs(name).await.iter().any(|line| line.text.contains(text)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn messages_are_echoed_with_their_kinds() {
    for_each(async |node, name| {
        let offered = [("sec-websocket-protocol", "chat, echo")];
        let mut socket = node.try_web_socket(&format!("/fn/{name}/echo"), &offered).await.unwrap();
        assert_eq!(socket.protocol(), Some("echo"), "{name}");
        for bytes in [0, 1, 5_000, 300_000, 1 << 20] {
            socket.send("ü".repeat(bytes / 2)).await;
            assert_eq!(socket.text().await, "ü".repeat(bytes / 2), "{name}");
            socket.send(vec![7; bytes]).await;
            assert_eq!(socket.bytes().await, vec![7; bytes], "{name}");
        }
        // The client sends a burst before it reads.
        for n in 0..50 {
            socket.send(n.to_string()).await;
        }
        for n in 0..50 {
            assert_eq!(socket.text().await, n.to_string(), "{name}");
        }
        socket.send(Message::Close(Some(CloseFrame { code: 4_001.into(), reason: "enough".into() }))).await;
        assert_eq!(socket.closed().await, (4_001, "enough".to_owned()), "{name}");
        logged(node, name, "closed with 4001 enough").await;
    })
    .await;
}

#[tokio::test]
async fn function_sends_and_receives_at_the_same_time() {
    for_each(async |node, name| {
        let mut socket = node.web_socket(&format!("/fn/{name}/ticks")).await;
        for tick in 0..3 {
            assert_eq!(socket.text().await, tick.to_string(), "{name}");
        }
        socket.send("stop").await;
        let mut last = socket.text().await;
        while last != "stop" {
            last = socket.text().await;
        }
        assert_eq!(socket.closed().await.0, 1000, "{name}");
    })
    .await;
}

#[tokio::test]
async fn function_decides_how_the_websocket_ends() {
    for_each(async |node, name| {
        let mut socket = node.web_socket(&format!("/fn/{name}/close")).await;
        socket.send("3001 that is all").await;
        assert_eq!(socket.closed().await, (3_001, "that is all".to_owned()), "{name}");
        assert_eq!(node.web_socket(&format!("/fn/{name}/fail")).await.closed().await.0, 1011, "{name}");
        logged(node, name, "as asked").await;
        let refused = async |path: &str| {
            node.try_web_socket(&format!("/fn/{name}{path}"), &[]).await.err().unwrap().status
        };
        assert_eq!((refused("/refuse").await, refused("/other").await), (403, 404), "{name}");
        assert_eq!(node.get(&format!("/fn/{name}/echo")).await.status, 426, "{name}");
    })
    .await;
}

#[tokio::test]
async fn client_that_does_not_read_stops_the_function() {
    for_each(async |node, name| {
        let socket = node.web_socket(&format!("/fn/{name}/flood")).await;
        let mut before = 0;
        let messages = eventually("the function to wait", async || {
            let now = node.logs(name).await.len();
            let last = std::mem::replace(&mut before, now);
            tokio::time::sleep(Duration::from_millis(500)).await;
            (now > 0 && now == last).then_some(now)
        })
        .await;
        assert!(
            messages < 500,
            "{name}: {messages} messages of 64 KiB were sent to a client that reads none"
        );
        drop(socket);
    })
    .await;
}
