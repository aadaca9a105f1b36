//! Streaming responses.

use futures::{StreamExt, stream};
use reqwest::{Body, Method};
use weir_tests::{TestNode, function};

/// The second part of the request is sent only after the first event arrives, so any buffering
/// would deadlock.
#[tokio::test]
async fn server_sent_events_are_not_buffered() {
    let node = TestNode::start().await;
    node.deploy("events", function("echo-events")).await;
    let (sender, pieces) = futures::channel::mpsc::unbounded::<Result<&'static str, std::io::Error>>();
    sender.unbounded_send(Ok("first")).unwrap();
    let request = node.request(Method::POST, "/fn/events").body(Body::wrap_stream(pieces));
    let answer = request.send().await.unwrap();
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    assert_eq!(answer.headers().get("content-length"), None, "a stream has no content-length");
    let mut events = answer.bytes_stream();
    let mut read = async |until: &str| {
        let mut text = String::new();
        while !text.ends_with(until) {
            let piece =
                events.next().await.unwrap_or_else(|| panic!("the stream ended with {text:?}")).unwrap();
            text.push_str(std::str::from_utf8(&piece).unwrap());
        }
        text
    };
    assert_eq!(read("\n\n").await, "data: first\n\n");
    sender.unbounded_send(Ok("second\nand more")).unwrap();
    assert_eq!(read("\n\n").await, "data: second\ndata: and more\n\n");
    drop(sender);
    assert!(events.next().await.is_none());
}

/// The result of an asynchronous call has all events.
#[tokio::test]
async fn asynchronous_result_contains_all_server_sent_events() {
    let node = TestNode::start().await;
    node.deploy("events", function("echo-events")).await;
    let pieces = stream::iter(["one", "two"].map(Ok::<_, std::io::Error>));
    let later = node.post_later("/fn/events", Body::wrap_stream(pieces)).await;
    node.ended(later.id).await;
    let result = node.result(later.id).await;
    assert_eq!(result.header("content-type"), Some("text/event-stream"));
    assert!(result.text().starts_with("data: one"), "{}", result.text());
}
