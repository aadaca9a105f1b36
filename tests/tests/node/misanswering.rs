//! Functions with invalid or missing responses.

use std::time::Duration;
use weir_tests::{TestNode, eventually, function};
use weir_types::ErrorCode;

#[tokio::test]
async fn invalid_responses_have_error_codes() {
    let node = TestNode::start().await;
    node.deploy_with("f", "limits.handles=500", function("misanswer")).await;
    for (path, status, code) in [
        ("/silent", 502, ErrorCode::NoResponse),
        ("/error", 502, ErrorCode::GuestError),
        ("/early", 502, ErrorCode::GuestError),
        ("/headers", 507, ErrorCode::HandleLimit),
        ("/overflow", 500, ErrorCode::GuestTrap),
    ] {
        let refusal = node.get(&format!("/fn/f{path}")).await.refusal();
        assert_eq!((refusal.status, refusal.code), (status, code), "{path}: {}", refusal.text);
    }
    assert_eq!(node.get("/fn/f/behave").await.ok().text(), "ok\n");
}

#[tokio::test]
async fn server_errors_of_a_function_are_counted_and_logged() {
    let node = TestNode::start().await;
    node.deploy("f", function("misanswer")).await;
    for status in [200, 404, 500, 503, 569] {
        assert_eq!(node.get(&format!("/fn/f/status?{status}")).await.status, status);
    }
    assert_eq!(node.get("/fn/f/silent").await.code(), ErrorCode::NoResponse);
    for outcome in [
        "code=\"ok\",status=\"200\"",
        "code=\"ok\",status=\"404\"",
        "code=\"ok\",status=\"500\"",
        "code=\"ok\",status=\"503\"",
        "code=\"ok\",status=\"5xx\"",
        "code=\"no-response\",status=\"502\"",
    ] {
        let counted = async || (node.metric("weir_invocations_total", outcome).await == 1.0).then_some(());
        eventually(outcome, counted).await;
    }
    let log = node.get("/v1/functions/f/logs").await.ok();
    for (status, count) in [("200", 0), ("404", 0), ("500", 1), ("503", 1), ("569", 1)] {
        let line = format!("the function answered with status {status}");
        assert_eq!(log.text().matches(&line).count(), count, "{line}: {}", log.text());
    }
}

#[tokio::test]
async fn equal_lengths_of_a_response_are_accepted_and_different_ones_logged() {
    let node = TestNode::start().await;
    node.deploy("f", function("misanswer")).await;
    for lengths in ["5", "5,5", "5,5,5"] {
        let answer = node.get(&format!("/fn/f/lengths?{lengths}")).await.ok();
        assert_eq!((answer.text(), answer.header("content-length")), ("hello", Some("5")), "{lengths}");
    }
    let answer = node.get("/fn/f/lengths?5,6").await.ok();
    assert_eq!(answer.text(), "HeaderError::InvalidSyntax\n");
    let log = node.logs("f").await;
    let line =
        log.iter().find(|line| line.stream == "weir").expect("the function's log has no line of the node");
    assert_eq!(line.text, "two content-length values are different: 5 and 6");
}

#[tokio::test]
async fn function_cannot_set_the_nodes_error_header() {
    let node = TestNode::start().await;
    node.deploy("f", function("misanswer")).await;
    let answer = node.get("/fn/f/pose").await;
    assert_eq!((answer.status, answer.header(weir_types::api::ERROR_CODE_HEADER)), (200, None));
}

#[tokio::test]
async fn truncated_response_breaks_the_connection() {
    let node = TestNode::start().await;
    node.deploy("f", function("misanswer")).await;
    // The connection breaks before or after the response head, depending on timing.
    if let Ok(response) = node.request(reqwest::Method::GET, "/fn/f/half").send().await {
        assert_eq!((response.status().as_u16(), response.content_length()), (200, Some(100)));
        assert!(response.bytes().await.is_err(), "14 of 100 bytes were accepted as the complete body");
    }
    let trapped = async || {
        let count = node.metric("weir_invocations_total", "function=\"f\",code=\"guest-trap\"").await;
        (count == 1.0).then_some(())
    };
    eventually("the count of the trap", trapped).await;
}

/// Reads a response that a limit cuts off, and returns the number of bytes before the cut.
async fn torn(node: &TestNode, path: &str) -> usize {
    let mut response = node.request(reqwest::Method::GET, path).send().await.expect("a head");
    assert_eq!((response.status().as_u16(), response.content_length()), (200, None), "{path}");
    let mut bytes = 0;
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) => bytes += chunk.len(),
            Ok(None) => panic!("{path}: {bytes} bytes were accepted as a complete response"),
            Err(_) => return bytes,
        }
    }
}

#[tokio::test]
async fn response_ended_by_a_limit_breaks_the_connection() {
    let node = TestNode::start().await;
    for (name, limits, code) in [
        ("late", "limits.deadline_ms=400&limits.response_body_bytes=1073741824", "deadline-exceeded"),
        ("busy", "limits.cpu_time_ms=50&limits.response_body_bytes=1073741824", "cpu-time-limit"),
        ("again", "limits.cpu_time_ms=50&limits.response_body_bytes=1073741824&reuse=true", "cpu-time-limit"),
    ] {
        node.deploy_with(name, limits, function("misbehave")).await;
        assert!(torn(&node, &format!("/fn/{name}/body")).await > 0);
        let labels = format!("function=\"{name}\",code=\"{code}\"");
        let counted = async || (node.metric("weir_invocations_total", &labels).await == 1.0).then_some(());
        eventually("the count of the error code", counted).await;
    }
}

#[tokio::test]
async fn work_after_the_response_does_not_delay_the_client() {
    let node = TestNode::start().await;
    node.deploy_with("f", "limits.cpu_time_ms=2000", function("misanswer")).await;
    node.get("/fn/f/behave").await.ok();
    let answer = tokio::time::timeout(Duration::from_millis(1500), node.get("/fn/f/late")).await;
    assert_eq!(answer.expect("the answer waited for the end of the function").ok().text(), "here you are\n");
    eventually("the end of the function", async || (node.status().await.running == 0).then_some(())).await;
}

#[tokio::test]
async fn function_may_continue_after_an_empty_response() {
    let node = TestNode::start().await;
    node.deploy("f", function("misanswer")).await;
    // Only the first call is not yet known to be short.
    for call in 1..=3 {
        assert_eq!(node.get("/fn/f/empty").await.ok().text(), "");
        let finished = async || {
            let log = node.get("/v1/functions/f/logs").await.ok();
            (log.text().matches("replied: true, written: true").count() == call).then_some(())
        };
        eventually("the function's last word", finished).await;
    }
}
