//! Node shutdown.

use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;
use weir_tests::{TestNode, children, eventually, function, raw, signal};
use weir_types::ErrorCode;

#[tokio::test]
async fn shutdown_succeeds_and_leaves_no_processes() {
    let node = TestNode::start().await;
    node.deploy("hello", function("hello")).await;
    node.get("/fn/hello").await.ok();
    let pid = node.pid();
    let builder = node.stop().await;
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    let node = builder.start().await;
    assert_eq!(node.get("/fn/hello").await.ok().text(), "hello\n");
    assert_eq!(children(node.pid()), [0; 0]);
}

#[tokio::test]
async fn running_requests_finish_before_shutdown() {
    let node = TestNode::start().await;
    node.deploy("f", function("misbehave")).await;
    node.get("/fn/f/behave").await.ok();
    eventually("the end", async || (node.status().await.running == 0).then_some(())).await;
    let held = node.hold("/fn/f/wait");
    eventually("the start", async || (node.status().await.running == 1).then_some(())).await;
    let client = node.client().clone();
    let ending = tokio::spawn(node.stop());
    eventually("the refusal of others", async || {
        (!client.try_get("/readyz").await.is_ok_and(|answer| answer.is_ok())).then_some(())
    })
    .await;
    assert_eq!(held.let_go().await.ok().text(), "let go\n");
    ending.await.unwrap();
}

#[tokio::test]
async fn endless_request_does_not_block_shutdown() {
    let node = TestNode::builder().set("gateway.drain_timeout_ms", 500).start().await;
    node.deploy("f", function("misbehave")).await;
    node.get("/fn/f/behave").await.ok();
    eventually("the end", async || (node.status().await.running == 0).then_some(())).await;
    let client = node.client().clone();
    let sleep = tokio::spawn(async move { client.try_get("/fn/f/sleep").await });
    eventually("the start", async || (node.status().await.running == 1).then_some(())).await;
    node.stop().await;
    // The connection is cut off, or the response is an error.
    assert!(!sleep.await.unwrap().is_ok_and(|answer| answer.status < 500));
}

/// The first call of a function runs on a thread for guests, whose end was an internal error.
#[tokio::test]
async fn call_that_shutdown_cuts_off_is_unavailable() {
    let node = TestNode::builder().set("gateway.drain_timeout_ms", 500).start().await;
    node.deploy("f", function("misbehave")).await;
    let client = node.client().clone();
    let sleep = tokio::spawn(async move { client.try_get("/fn/f/sleep").await });
    eventually("the start", async || (node.status().await.running == 1).then_some(())).await;
    let stopped = node.stop().await;
    let refusal = sleep.await.unwrap().unwrap().refusal();
    assert_eq!((refusal.status, refusal.code), (503, ErrorCode::Unavailable), "{}", refusal.text);
    let log = stopped.log();
    assert!(!log.contains("ERROR"), "{log}");
}

/// The threads of a node that did not start yet were dropped on the thread of the start, which
/// panicked.
#[tokio::test]
async fn signals_during_start_end_the_process_without_panic() {
    for (name, file, wait_ms) in [("INT", "lock", 0), ("INT", "identity", 30), ("TERM", "lock", 15)] {
        let builder = TestNode::builder();
        let mut command = Command::new(builder.binary());
        command.args(["up", "--no-deploy", "--listen", "127.0.0.1:0", "--data"]).arg(builder.data());
        command.stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        let node = command.spawn().unwrap();
        let path = builder.data().join(file);
        eventually("the start", async || path.exists().then_some(())).await;
        tokio::time::sleep(Duration::from_millis(wait_ms)).await;
        signal(node.id().unwrap(), name);
        let ended = tokio::time::timeout(Duration::from_secs(20), node.wait_with_output());
        let ended = ended.await.expect("the node did not end").unwrap();
        let log = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success() || ended.status.signal().is_some(), "{name}, {file}: {log}");
        assert!(!log.contains("panicked"), "{name}, {file}: {log}");
    }
}

#[tokio::test]
async fn stopping_node_takes_calls_while_it_is_not_ready() {
    let node = TestNode::builder().set("gateway.lame_duck_ms", 3_000).start().await;
    node.deploy("hello", function("hello")).await;
    let client = node.client().clone();
    let ending = tokio::spawn(node.stop());
    eventually("the node to be unready", async || (client.get("/readyz").await.status == 503).then_some(()))
        .await;
    // Over a new connection, as a load balancer that has not noticed yet.
    let (status, answer) =
        raw(&client, "GET /fn/hello HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await;
    assert_eq!(status, 200, "{answer}");
    ending.await.unwrap();
}
