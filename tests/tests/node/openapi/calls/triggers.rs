//! Triggers of the function `f`.

use super::ResponseChecker;
use reqwest::RequestBuilder;
use serde_json::json;

pub(in super::super) async fn call(checker: &mut ResponseChecker<'_>) {
    let spec = |every_ms: u64, function: &str| {
        json!({
            "source": {"every_ms": every_ms},
            "target": {"function": function},
            "request": {"headers": {"x-a": "b"}, "body": "x"},
        })
        .to_string()
    };
    checker.put(("putTrigger", 201), "/v1/triggers/t", spec(3_600_000, "f")).await;
    checker.put(("putTrigger", 200), "/v1/triggers/t", spec(7_200_000, "f")).await;
    checker.put(("putTrigger", 400), "/v1/triggers/t", "{}").await;
    checker.put(("putTrigger", 404), "/v1/triggers/t", spec(3_600_000, "missing")).await;
    checker.put(("putTrigger", 422), "/v1/triggers/t", spec(1, "f")).await;
    checker.call(("runTrigger", 202), "/v1/triggers/t/run").await;
    checker.call(("showTrigger", 200), "/v1/triggers/t").await;
    checker.call(("listTriggers", 200), "/v1/triggers").await;
    checker.call(("pauseTrigger", 200), "/v1/triggers/t/pause").await;
    checker.call(("resumeTrigger", 200), "/v1/triggers/t/resume").await;
    let event = json!({"specversion": "1.0", "id": "1", "source": "/a", "type": "t"}).to_string();
    let structured = |request: RequestBuilder| request.header("content-type", "application/cloudevents+json");
    let send = |body: String| move |request| structured(request).body(body);
    checker.send(("sendEvents", 422), "/v1/triggers/t/events", send(event.clone())).await;
    let events = json!({"source": {"events": {"types": ["t"]}}, "target": {"function": "f"}}).to_string();
    checker.put(("putTrigger", 200), "/v1/triggers/t", events).await;
    checker.call(("runTrigger", 422), "/v1/triggers/t/run").await;
    checker.send(("sendEvents", 202), "/v1/triggers/t/events", send(event.clone())).await;
    checker.send(("sendEvents", 400), "/v1/triggers/t/events", send("{}".to_owned())).await;
    checker.send(("sendEvents", 404), "/v1/triggers/absent/events", send(event.clone())).await;
    checker.send(("sendEvents", 413), "/v1/triggers/t/events", send("x".repeat(2 << 20))).await;
    checker.call(("pauseTrigger", 200), "/v1/triggers/t/pause").await;
    checker.send(("sendEvents", 409), "/v1/triggers/t/events", send(event)).await;
    checker.call(("deleteTrigger", 204), "/v1/triggers/t").await;
}
