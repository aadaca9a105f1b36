//! Events: deploys, faults and removals, listed and followed.

use futures::StreamExt;
use weir_tests::{TestClient, TestNode, eventually, function, model};
use weir_types::ErrorCode;
use weir_types::api::{Event, EventKind, EventPage};

async fn list(node: &TestClient, query: &str) -> Vec<Event> {
    let page: EventPage = node.get(&format!("/v1/events{query}")).await.ok().json();
    page.events
}

fn told(events: &[Event]) -> Vec<(EventKind, &str)> {
    events.iter().map(|event| (event.kind, event.name.as_str())).collect()
}

#[tokio::test]
async fn changes_and_faults_are_listed() {
    let node = TestNode::start().await;
    node.deploy("bad", function("misbehave")).await;
    node.deploy("bad", function("hello")).await;
    node.roll_back("bad", None).await.ok();
    node.push_model("m", 1, model("good/matmul.onnx")).await;
    for _ in 0..3 {
        assert_eq!(node.get("/fn/bad/trap").await.code(), ErrorCode::GuestTrap);
    }
    node.delete("/v1/models/m/versions/1").await.ok();
    let faults = eventually("three counted faults", async || {
        Some(list(&node, "?kind=fault").await)
            .filter(|faults| faults.first().is_some_and(|fault| fault.count == 3))
    })
    .await;
    assert_eq!(told(&faults), [(EventKind::Fault, "bad")]);
    assert!(faults[0].text.contains("guest-trap") && faults[0].at_ms >= faults[0].first_at_ms);
    let all = list(&node, "").await;
    assert_eq!(all[0].kind, EventKind::NodeJoined, "the start of the node");
    let changes: Vec<_> = told(&all[1..]).into_iter().filter(|(kind, _)| *kind != EventKind::Fault).collect();
    let expected = [
        (EventKind::Deployed, "bad"),
        (EventKind::Deployed, "bad"),
        (EventKind::RolledBack, "bad"),
        (EventKind::Deployed, "m:1"),
        (EventKind::Removed, "m:1"),
    ];
    assert_eq!(changes, expected);
    assert_eq!(told(&list(&node, "?name=m&limit=1").await), [(EventKind::Removed, "m:1")]);
    let since = all.last().unwrap().at_ms + 60_000;
    assert_eq!(list(&node, &format!("?since_ms={since}")).await, []);
}

#[tokio::test]
async fn tenants_see_only_their_own_events_and_those_of_the_node() {
    let node = TestNode::builder().tokens(&["aaaaaaaaaaaaaaaa one", "bbbbbbbbbbbbbbbb two"]).start().await;
    let [one, two] = ["aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb"].map(|token| node.with_token(token));
    one.deploy("mine", function("hello")).await;
    assert_eq!(told(&list(&two, "").await), [(EventKind::NodeJoined, "0")]);
    let own = list(&one, "").await;
    assert_eq!(told(&own), [(EventKind::NodeJoined, "0"), (EventKind::Deployed, "mine")]);
    assert_eq!(own[1].tenant.as_ref().unwrap().to_string(), "one");
}

#[tokio::test]
async fn followers_get_new_events_and_on_request_earlier_ones() {
    let node = TestNode::start().await;
    node.deploy("before", function("hello")).await;
    let follow = async |query: &str| {
        let path = format!("/v1/events?follow=true{query}");
        let response = node.request(reqwest::Method::GET, &path).send().await.unwrap();
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        response.bytes_stream()
    };
    let mut news = Box::pin(follow("").await);
    let mut all = Box::pin(follow("&since_ms=1").await);
    node.deploy("after", function("hello")).await;
    let mut text = String::new();
    while !text.contains("after") {
        text += std::str::from_utf8(&news.next().await.unwrap().unwrap()).unwrap();
    }
    assert!(text.starts_with("event: deployed\n") && !text.contains("before"), "{text}");
    let mut text = String::new();
    while !text.contains("after") {
        text += std::str::from_utf8(&all.next().await.unwrap().unwrap()).unwrap();
    }
    assert!(text.contains("event: node-joined\n") && text.contains("before"), "{text}");
}

#[tokio::test]
async fn command_lists_events() {
    let node = TestNode::start().await;
    node.deploy("hello", function("hello")).await;
    let shown = node.weir(&["events", "--kind", "deployed"]).await.unwrap();
    assert!(shown.contains("function hello has version 1") && !shown.contains("node-joined"), "{shown}");
    let json = node.weir(&["--json", "events", "--since", "1h", "--name", "hello"]).await.unwrap();
    let event: Event = serde_json::from_str(json.trim()).unwrap();
    assert_eq!((event.kind, event.name.as_str()), (EventKind::Deployed, "hello"));
    assert!(node.weir(&["events", "--kind", "exploded"]).await.is_err());
}
