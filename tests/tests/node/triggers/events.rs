//! Triggers for events: CloudEvents, notifications of stores, repeated and refused events.

use super::{put, start, until};
use serde_json::{Value, json};
use weir_tests::{Answer, TestNode, function};
use weir_types::ErrorCode;
use weir_types::api::AcceptedEvents;

async fn send(
    node: &TestNode,
    content_type: &str,
    headers: &[(&str, &str)],
    body: impl Into<String>,
) -> Answer {
    let mut request = node.request(reqwest::Method::POST, "/v1/triggers/t/events");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    node.send(request.header("content-type", content_type).body(body.into())).await
}

async fn accepted(answer: Answer) -> AcceptedEvents {
    assert_eq!(answer.status, 202, "{answer:?}");
    answer.json()
}

fn notification(key: &str, sequencer: &str) -> String {
    json!({"EventName": "s3:ObjectCreated:Put", "Key": format!("photos/{key}"), "Records": [{
        "eventName": "s3:ObjectCreated:Put",
        "eventTime": "2026-01-02T03:04:05Z",
        "s3": {"bucket": {"name": "photos"}, "object": {"key": key, "sequencer": sequencer}},
    }]})
    .to_string()
}

#[tokio::test]
async fn notifications_of_a_store_become_invocations_once() {
    let node = start().await;
    let source = json!({"events": {"types": ["s3:ObjectCreated:*"], "subject_suffix": ".png"}});
    put(&node, "t", &json!({"source": source, "target": {"function": "echo"}})).await.ok();
    let first = accepted(send(&node, "application/json", &[], notification("a.png", "1")).await).await;
    let again = accepted(send(&node, "application/json", &[], notification("a.png", "1")).await).await;
    let newer = accepted(send(&node, "application/json", &[], notification("a.png", "2")).await).await;
    assert_eq!(first, again, "a repeated event is one invocation");
    assert_ne!(first, newer);
    let skipped = accepted(send(&node, "application/json", &[], notification("a.txt", "1")).await).await;
    assert_eq!((skipped.invocations.len(), skipped.skipped), (0, 1));
    let result = node.result(node.ended(first.invocations[0]).await.id).await;
    assert_eq!(result.header("ce-subject"), Some("a.png"));
    let record: Value = result.json();
    assert_eq!(record["s3"]["object"]["key"], "a.png");
    assert_eq!(node.invocations("name=echo").await.len(), 2);
    until(&node, "t", "the counts", |trigger| trigger.ticks.fired == 3).await;
}

#[tokio::test]
async fn cloud_events_arrive_in_every_mode() {
    let node = start().await;
    put(&node, "t", &json!({"source": {"events": {}}, "target": {"function": "echo"}})).await.ok();
    let event = json!({"specversion": "1.0", "id": "1", "source": "/a", "type": "t", "subject": "Größe", "data": {"n": 1}});
    let structured =
        accepted(send(&node, "application/cloudevents+json", &[], event.to_string()).await).await;
    let binary = [("ce-specversion", "1.0"), ("ce-id", "2"), ("ce-source", "/a"), ("ce-type", "t")];
    let binary = accepted(send(&node, "text/plain", &binary, "plain").await).await;
    let batch = json!([event, {"specversion": "1.0", "id": "3", "source": "/a", "type": "t"}]).to_string();
    let batch = accepted(send(&node, "application/cloudevents-batch+json", &[], batch).await).await;
    assert_eq!(batch.invocations.len(), 2);
    assert_eq!(batch.invocations[0], structured.invocations[0], "the same event in another mode");
    let result = node.result(node.ended(structured.invocations[0]).await.id).await;
    assert_eq!((result.header("ce-subject"), result.text()), (Some("Gr%C3%B6%C3%9Fe"), "{\"n\":1}"));
    assert_eq!(node.result(node.ended(binary.invocations[0]).await.id).await.text(), "plain");
}

#[tokio::test]
async fn events_need_a_trigger_that_takes_them_and_a_key_for_its_function() {
    let node = TestNode::builder().tokens(&["acme-token-0123456789 acme"]).start().await;
    let node = node.with_token("acme-token-0123456789");
    node.deploy("echo", function("echo-http")).await;
    let spec = |source: Value| json!({"source": source, "target": {"function": "echo"}});
    put(&node, "t", &spec(json!({"events": {}}))).await.ok();
    put(&node, "ticks", &spec(json!({"every_ms": 3_600_000}))).await.ok();
    let event = json!({"specversion": "1.0", "id": "1", "source": "/a", "type": "t"}).to_string();
    let sent = async |token: &str, name: &str, body: &str| {
        let client = node.with_token(token);
        let request = client.request(reqwest::Method::POST, &format!("/v1/triggers/{name}/events"));
        client
            .send(request.header("content-type", "application/cloudevents+json").body(body.to_owned()))
            .await
    };
    let own = "acme-token-0123456789";
    assert_eq!(sent(own, "t", "{}").await.code(), ErrorCode::InvalidRequest);
    assert_eq!(sent(own, "t", &"x".repeat(2 << 20)).await.code(), ErrorCode::BodyTooLarge);
    assert_eq!(sent(own, "ticks", &event).await.code(), ErrorCode::InvalidTrigger);
    assert_eq!(sent(own, "absent", &event).await.code(), ErrorCode::TriggerNotFound);
    let key = async |name: &str, settings: Value| {
        let request = node.request(reqwest::Method::PUT, &format!("/v1/keys/{name}")).json(&settings);
        node.send(request).await.ok().json::<Value>()["token"].as_str().unwrap().to_owned()
    };
    let limited = key("limited", json!({"scopes": ["invoke"], "functions": ["echo"]})).await;
    let other = key("other", json!({"scopes": ["invoke"], "functions": ["others"]})).await;
    let reader = key("reader", json!({"scopes": ["read"]})).await;
    assert_eq!(sent(&limited, "t", &event).await.status, 202);
    assert_eq!(sent(&other, "t", &event).await.code(), ErrorCode::TriggerNotFound);
    assert_eq!(sent(&reader, "t", &event).await.code(), ErrorCode::Forbidden);
    node.post("/v1/triggers/t/pause", "").await.ok();
    assert_eq!(sent(&limited, "t", &event).await.code(), ErrorCode::Conflict);
}
