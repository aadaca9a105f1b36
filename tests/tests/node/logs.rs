//! Tests for `/v1/functions/{name}/logs`.

use futures::StreamExt;
use reqwest::Method;
use std::time::Duration;
use weir_tests::{TestNode, eventually, function};
use weir_types::Version;
use weir_types::api::{LogLine, REQUEST_ID_HEADER};

#[tokio::test]
async fn log_lines_have_time_version_and_request() {
    let node = TestNode::start().await;
    node.deploy_with("f", "limits.log_bytes=3000", function("misbehave")).await;
    assert_eq!(node.logs("f").await, []);
    let request = node.request(Method::GET, "/fn/f/log").header(REQUEST_ID_HEADER, "the-request");
    assert!(request.send().await.unwrap().status().is_success());
    let lines = node.logs("f").await;
    let first = &lines[0];
    assert_eq!((first.stream.as_str(), first.text.as_str()), ("stdout", "x".repeat(1_000).as_str()));
    assert_eq!((first.request_id.as_str(), first.version), ("the-request", Version(1)));
    let now_ms = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64;
    assert!(now_ms.abs_diff(first.at_ms) < 60_000);
}

#[tokio::test]
async fn trap_details_are_in_the_log_but_not_in_the_response() {
    let node = TestNode::start().await;
    node.deploy("f", function("misbehave")).await;
    let refusal = node.get("/fn/f/trap").await.refusal();
    assert!(!refusal.text.contains("on purpose"), "the response has details of the trap: {}", refusal.text);
    let lines = node.logs("f").await;
    assert!(
        lines.iter().any(|line| line.stream == "stderr" && line.text.contains("on purpose")),
        "{lines:?}"
    );
    assert!(lines.iter().any(|line| line.stream == "weir" && line.text.contains("trap")), "{lines:?}");
}

/// The function is built with `debug = "line-tables-only"`.
#[tokio::test]
async fn stack_traces_have_source_lines_and_inlined_functions() {
    let node = TestNode::start().await;
    node.deploy("f", function("misbehave")).await;
    let refusal = node.get("/fn/f/trap").await.refusal();
    assert!(!refusal.text.contains("lib.rs"), "the response has details of the trap: {}", refusal.text);
    let lines = node.logs("f").await;
    let trace = lines.iter().find(|line| line.stream == "weir" && line.text.contains("backtrace")).unwrap();
    let frames: Vec<&str> = trace.text.lines().map(str::trim).collect();
    let source = std::fs::read_to_string("../functions/misbehave/src/lib.rs").unwrap();
    let number = 1 + source.lines().position(|line| line.contains("panic!(\"on purpose\")")).unwrap();
    let at = frames.iter().position(|frame| frame.ends_with(&format!("misbehave/src/lib.rs:{number}:5")));
    let at = at.unwrap_or_else(|| panic!("line {number} is not in the trace: {}", trace.text));
    assert!(frames[at - 1].contains("misbehave::trap"), "{}", frames[at - 1]);
    assert!(frames[at..].iter().any(|frame| frame.starts_with("- ")), "no inlined function: {frames:?}");
    assert!(trace.text.ends_with("wasm `unreachable` instruction executed"), "{}", trace.text);
}

#[tokio::test]
async fn log_followers_receive_new_lines() {
    let node = TestNode::start().await;
    node.deploy_with("f", "limits.log_bytes=3000", function("misbehave")).await;
    let follow = node.request(Method::GET, "/v1/functions/f/logs?follow=true").send().await.unwrap();
    let mut pieces = follow.bytes_stream();
    let call = async {
        node.get("/fn/f/log").await.ok();
    };
    let end = pieces.next().await.unwrap().unwrap();
    assert_eq!(end, "\n", "an empty line ends the lines that existed");
    let first = async { tokio::time::timeout(Duration::from_secs(20), pieces.next()).await };
    let (first, ()) = tokio::join!(first, call);
    let first = first.expect("no log line arrived").unwrap().unwrap();
    let line: LogLine = serde_json::from_slice(first.split(|byte| *byte == b'\n').next().unwrap()).unwrap();
    assert_eq!(line.stream, "stdout");
    // A log follower does not delay the shutdown.
    node.stop().await;
    while let Some(Ok(_)) = pieces.next().await {}
}

#[tokio::test]
async fn oldest_log_lines_are_dropped_first() {
    let node = TestNode::builder().set("logs.function_lines_max", 5).start().await;
    node.deploy_with("f", "limits.log_bytes=4000", function("misbehave")).await;
    for i in 0..4 {
        let request = node.request(Method::GET, "/fn/f/log").header(REQUEST_ID_HEADER, format!("r{i}"));
        assert!(request.send().await.unwrap().status().is_success());
        // The last line is written at the guest's end, possibly after the response.
        eventually("the end", async || (node.status().await.running == 0).then_some(())).await;
    }
    let lines = node.logs("f").await;
    assert_eq!(lines.len(), 5);
    assert_eq!(lines[4].request_id, "r3");
}
