//! Streamed responses and server-sent events in Python and TypeScript.

use futures::StreamExt;
use reqwest::{Method, Response};
use std::pin::pin;
use std::time::Duration;
use weir_tests::{TestNode, eventually, function, has_function};

/// Functions with the same streams.
const ALL: [&str; 2] = ["stream-py", "stream-ts"];
const CHUNK_BYTES: usize = 65_536;

/// Runs `check` with each function on a node.
async fn for_each(limits: &str, check: impl AsyncFn(&TestNode, &str)) {
    let node = TestNode::start().await;
    for name in ALL.into_iter().filter(|name| has_function(name)) {
        node.deploy_with(name, limits, function(name)).await;
        check(&node, name).await;
    }
}

async fn ask(node: &TestNode, name: &str, path: &str) -> Response {
    node.request(Method::GET, &format!("/fn/{name}{path}")).send().await.unwrap()
}

#[tokio::test]
async fn generators_are_streamed_without_a_length() {
    for_each("", async |node, name| {
        let answer = node.get(&format!("/fn/{name}/text?count=1000")).await.ok();
        let lines: Vec<String> = (0..1000).map(|n| format!("{n}\n")).collect();
        assert_eq!(answer.text(), lines.concat(), "{name}");
        assert_eq!(answer.headers["content-type"], "text/plain; charset=utf-8", "{name}");
        assert!(!answer.headers.contains_key("content-length"), "{name}");
        let events = node.get(&format!("/fn/{name}/async?count=3")).await.ok();
        assert_eq!(events.text(), "data: 0\n\ndata: 1\n\ndata: 2\n\n", "{name}");
    })
    .await;
}

/// The function waits after each event for longer than its delivery takes.
#[tokio::test]
async fn events_arrive_before_the_next_ones_exist() {
    for_each("", async |node, name| {
        let answer = ask(node, name, "/events?count=2&pause=2").await;
        for (header, value) in
            [("content-type", "text/event-stream"), ("cache-control", "no-cache"), ("x-count", "2")]
        {
            assert_eq!(answer.headers()[header], value, "{name}");
        }
        let mut pieces = answer.bytes_stream();
        let mut text = String::new();
        while !text.ends_with("\n\n") {
            text.push_str(std::str::from_utf8(&pieces.next().await.unwrap().unwrap()).unwrap());
        }
        let event =
            |n| format!("event: count\nid: {n}\nretry: 1000\ndata: {{\"n\":{n},\"text\":\"one\\ntwo\"}}\n\n");
        assert_eq!(text, event(0), "{name}");
        while let Some(piece) = pieces.next().await {
            text.push_str(std::str::from_utf8(&piece.unwrap()).unwrap());
        }
        assert_eq!(text, format!("{}{}data: one\ndata: two\n\n", event(0), event(1)), "{name}");
    })
    .await;
}

#[tokio::test]
async fn errors_before_the_first_chunk_are_responses_and_later_ones_cut_the_body_off() {
    for_each("", async |node, name| {
        let early = node.get(&format!("/fn/{name}/early")).await;
        assert_eq!((early.status, early.text()), (404, "nothing more\n"), "{name}");
        let late = ask(node, name, "/late?count=3").await;
        assert_eq!(late.status(), 200, "{name}");
        let mut pieces = late.bytes_stream();
        let mut text = String::new();
        let end = loop {
            match pieces.next().await {
                Some(Ok(piece)) => text.push_str(std::str::from_utf8(&piece).unwrap()),
                end => break end,
            }
        };
        // The connection may end before the last chunks are sent.
        assert!("0\n1\n2\n".starts_with(&text), "{name}: {text:?}");
        assert!(end.is_some_and(|end| end.is_err()), "{name}: the body looks complete");
        eventually(&format!("the error in the log of {name}"), async || {
            let lines = node.logs(name).await;
            lines.iter().any(|line| line.text.contains("StatusError: nothing more")).then_some(())
        })
        .await;
    })
    .await;
}

/// The number of the last chunk that the function has made.
async fn chunks_made(node: &TestNode, name: &str) -> Option<usize> {
    let lines = node.logs(name).await;
    lines.iter().rev().find_map(|line| line.text.strip_prefix("chunk ")?.parse().ok())
}

#[tokio::test]
async fn clients_that_do_not_read_hold_functions_back() {
    for_each("limits.response_body_bytes=1073741824", async |node, name| {
        let answer = ask(node, name, "/flood?count=16000").await;
        let made = async || chunks_made(node, name).await;
        let mut before = None;
        let stalled = eventually(&format!("{name} waits for the client"), async || {
            let made = made().await;
            let is_still = made.is_some() && made == before;
            before = made;
            tokio::time::sleep(Duration::from_millis(300)).await;
            made.filter(|_| is_still)
        })
        .await;
        // The buffers of the node and of two sockets.
        assert!(stalled * CHUNK_BYTES < 64 << 20, "{name} has made {stalled} chunks");
        let mut pieces = pin!(answer.bytes_stream());
        let mut read = 0;
        while read < (stalled + 100) * CHUNK_BYTES {
            read += pieces.next().await.unwrap().unwrap().len();
        }
        eventually(&format!("{name} continues"), async || (made().await > Some(stalled)).then_some(())).await;
    })
    .await;
}

#[tokio::test]
async fn streams_end_at_the_limit_of_the_response() {
    for_each("limits.response_body_bytes=1000000", async |node, name| {
        let answer = ask(node, name, "/flood?count=1000").await;
        let mut pieces = answer.bytes_stream();
        let mut read = 0;
        let end = loop {
            match pieces.next().await {
                Some(Ok(piece)) => read += piece.len(),
                end => break end,
            }
        };
        assert!(read <= 1_000_000 && end.is_some_and(|end| end.is_err()), "{name}: {read} bytes");
        let made = chunks_made(node, name).await;
        assert!(made < Some(500), "{name} has made {made:?} chunks");
    })
    .await;
}

#[tokio::test]
async fn timers_run_in_order_and_end_with_the_call() {
    let name = "stream-ts";
    if !has_function(name) {
        return eprintln!("skipped: {name} was not built");
    }
    let node = TestNode::start().await;
    // The deadline does not end the call before this test gives up.
    node.deploy_with(name, "limits.deadline_ms=120000", function(name)).await;
    let ran: Vec<String> = node.get(&format!("/fn/{name}/timers")).await.ok().json();
    let without_intervals: Vec<&str> = ran.iter().map(|it| &**it).filter(|it| *it != "interval").collect();
    assert_eq!(without_intervals, ["first", "second", "waited"], "{ran:?}");
    assert!(ran.len() > without_intervals.len(), "the interval did not run: {ran:?}");
    // A timer of a minute is left.
    eventually("the end", async || (node.status().await.running == 0).then_some(())).await;
}

#[tokio::test]
async fn variables_of_the_manifest_are_in_env() {
    let name = "stream-ts";
    if !has_function(name) {
        return eprintln!("skipped: {name} was not built");
    }
    let node = TestNode::start().await;
    for greeting in ["hello", "goodbye"] {
        node.deploy_with(name, &format!("env.GREETING={greeting}"), function(name)).await;
        let found: serde_json::Value = node.get(&format!("/fn/{name}/env")).await.ok().json();
        assert_eq!(found, serde_json::json!({"greeting": greeting, "names": ["GREETING"]}));
    }
}
