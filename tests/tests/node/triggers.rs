//! Triggers: schedules, missed ticks, overlaps, requests by hand, and the command line.

mod events;
mod streams;

use reqwest::Method;
use serde_json::{Value, json};
use std::time::Duration;
use weir_tests::{Answer, NodeBuilder, TestClient, TestNode, eventually, function, model};
use weir_types::ErrorCode;
use weir_types::api::{Event, EventPage, EventResource, Invocation, InvocationStatus, TickOutcome, Trigger};

/// A schedule without a tick during a test.
const RARELY: &str = "0 0 29 2 *";

async fn put(client: &TestClient, name: &str, spec: &Value) -> Answer {
    client.send(client.request(Method::PUT, &format!("/v1/triggers/{name}")).json(spec)).await
}

async fn show(client: &TestClient, name: &str) -> Trigger {
    client.get(&format!("/v1/triggers/{name}")).await.ok().json()
}

/// Waits until a trigger meets a condition.
async fn until(client: &TestClient, name: &str, what: &str, is_met: impl Fn(&Trigger) -> bool) -> Trigger {
    eventually(what, async || Some(show(client, name).await).filter(|trigger| is_met(trigger))).await
}

fn every(every_ms: u64) -> Value {
    json!({
        "source": {"every_ms": every_ms},
        "target": {"function": "echo"},
        "request": {"path": "/x", "body": "the body"},
    })
}

/// A spec with other settings.
#[expect(clippy::needless_pass_by_value, reason = "callers pass literals")]
fn with(mut spec: Value, settings: Value) -> Value {
    spec.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
    spec
}

fn builder() -> NodeBuilder {
    TestNode::builder().set("async.triggers.interval_ms_min", 100)
}

async fn start() -> TestNode {
    let node = builder().start().await;
    node.deploy("echo", function("echo-http")).await;
    node
}

#[tokio::test]
async fn every_tick_becomes_one_invocation() {
    let node = start().await;
    let created = put(&node, "t", &every(300)).await;
    assert_eq!(created.status, 201, "{created:?}");
    let fired = until(&node, "t", "ticks", |trigger| trigger.ticks.fired >= 4).await;
    let last = fired.last.unwrap();
    assert_eq!((last.outcome, last.error), (TickOutcome::Fired, None));
    assert_eq!(
        (last.scheduled_at_ms.unwrap() - fired.created_at_ms) % 300,
        0,
        "ticks count from the creation"
    );
    let ended = node.ended(last.invocation.unwrap()).await;
    assert_eq!((ended.status, ended.name.as_str()), (InvocationStatus::Done, "echo"));
    assert_eq!(node.result(ended.id).await.text(), "the body");
    // Deleted while ticks follow each other: the count of invocations is final.
    node.delete("/v1/triggers/t").await.ok();
    let counted = node.metric("weir_trigger_ticks_total", "outcome=\"fired\"").await;
    let accepted = node.invocations("name=echo").await;
    assert_eq!(accepted.len() as f64, counted);
    assert_eq!(node.get("/v1/triggers/t").await.code(), ErrorCode::TriggerNotFound);
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!(node.invocations("name=echo").await.len(), accepted.len(), "a deleted trigger has ticked");
}

#[tokio::test]
async fn cron_with_seconds_fires_in_its_time_zone() {
    let node = start().await;
    let spec = with(every(1), json!({"source": {"cron": "* * * * * *", "timezone": "Asia/Kolkata"}}));
    assert_eq!(put(&node, "t", &spec).await.status, 201);
    let fired = until(&node, "t", "ticks", |trigger| trigger.ticks.fired >= 2).await;
    assert!(fired.next_at_ms.iter().all(|at_ms| at_ms % 1_000 == 0), "{fired:?}");
    let daily = with(every(1), json!({"source": {"cron": "30 9 * * *", "timezone": "Asia/Kolkata"}}));
    let daily: Trigger = put(&node, "daily", &daily).await.ok().json();
    let first_ms = daily.next_at_ms[0];
    assert_eq!(first_ms % 86_400_000, 4 * 3_600_000, "9:30 in India is 4:00 UTC");
    assert_eq!(daily.next_at_ms.len(), 5);
}

#[tokio::test]
async fn inference_runs_on_a_schedule() {
    let node = start().await;
    node.push_model("add", 1, model("good/add.onnx")).await;
    let metadata: Value = node.get("/v2/models/add").await.ok().json();
    let inputs: Vec<Value> = metadata["inputs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|input| {
            let shape: Vec<i64> =
                input["shape"].as_array().unwrap().iter().map(|size| size.as_i64().unwrap().max(1)).collect();
            let len = shape.iter().product::<i64>().unsigned_abs() as usize;
            json!({"name": input["name"], "datatype": input["datatype"], "shape": shape, "data": vec![1; len]})
        })
        .collect();
    let spec = json!({
        "source": {"every_ms": 300},
        "target": {"inference": "add", "version": 1},
        "request": {"body": json!({ "inputs": inputs }).to_string()},
    });
    assert_eq!(put(&node, "t", &spec).await.status, 201);
    let fired = until(&node, "t", "a tick", |trigger| trigger.ticks.fired >= 1).await;
    let ended = node.ended(fired.last.unwrap().invocation.unwrap()).await;
    assert_eq!(ended.status, InvocationStatus::Done, "{ended:?}");
    assert!(node.result(ended.id).await.ok().text().contains("outputs"));
}

#[tokio::test]
async fn paused_trigger_fires_only_by_hand() {
    let node = start().await;
    put(&node, "t", &with(every(200), json!({"enabled": false}))).await.ok();
    let started = node.post("/v1/triggers/t/run", "").await;
    assert_eq!(started.status, 202, "{started:?}");
    let started: Invocation = started.json();
    assert_eq!(node.result(node.ended(started.id).await.id).await.text(), "the body");
    tokio::time::sleep(Duration::from_millis(600)).await;
    let shown = show(&node, "t").await;
    let last = shown.last.unwrap();
    assert_eq!((last.scheduled_at_ms, last.invocation), (None, Some(started.id)));
    assert_eq!((last.status, shown.ticks.fired), (Some(InvocationStatus::Done), 0));
    assert!(shown.next_at_ms.is_empty());
    // The ticks of the pause are not made up.
    let resumed: Trigger = node.post("/v1/triggers/t/resume", "").await.ok().json();
    assert!(resumed.next_at_ms[0] > resumed.changed_at_ms, "{resumed:?}");
    let fired = until(&node, "t", "a tick", |trigger| trigger.ticks.fired >= 1).await;
    assert_eq!(fired.ticks.missed, 0);
    let paused: Trigger = node.post("/v1/triggers/t/pause", "").await.ok().json();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(show(&node, "t").await.ticks, paused.ticks);
}

#[tokio::test]
async fn overlapping_ticks_are_skipped_on_request() {
    let node = start().await;
    node.deploy_with("slow", "limits.deadline_ms=60000", function("misbehave")).await;
    let slow = json!({"target": {"function": "slow"}, "request": {"path": "/sleep"}, "overlap": "skip"});
    put(&node, "t", &with(every(200), slow)).await.ok();
    let overlapped = until(&node, "t", "skipped ticks", |trigger| trigger.ticks.overlapped >= 2).await;
    assert_eq!(overlapped.ticks.fired, 1);
    let [running] = &node.invocations("name=slow").await[..] else { panic!("expected one invocation") };
    // The next tick after its end fires.
    node.post(&format!("/v1/invocations/{}/cancel", running.id), "").await.ok();
    until(&node, "t", "another tick", |trigger| trigger.ticks.fired >= 2).await;
}

/// The node is down for more than `late_ms_max`.
#[tokio::test]
async fn restarted_node_follows_the_policy_for_missed_ticks() {
    let node = builder().set("async.triggers.late_ms_max", 200).start().await;
    node.deploy("echo", function("echo-http")).await;
    put(&node, "skip", &every(3_000)).await.ok();
    put(&node, "once", &with(every(3_000), json!({"missed": "run-once"}))).await.ok();
    put(&node, "old", &with(every(3_000), json!({"missed": "run-once", "missed_age_ms_max": 300})))
        .await
        .ok();
    let stopped = node.stop().await;
    tokio::time::sleep(Duration::from_millis(3_800)).await;
    let node = stopped.start().await;
    let made_up = until(&node, "once", "the missed tick", |trigger| trigger.last.is_some()).await;
    let last = made_up.last.unwrap();
    assert_eq!((last.outcome, made_up.ticks.fired), (TickOutcome::Fired, 1));
    assert!(last.at_ms - last.scheduled_at_ms.unwrap() > 500, "{last:?}");
    for name in ["skip", "old"] {
        let skipped = until(&node, name, "the missed tick", |trigger| trigger.last.is_some()).await;
        assert_eq!((skipped.ticks.missed, skipped.ticks.fired), (1, 0), "{name}: {skipped:?}");
    }
    assert_eq!(node.metric("weir_trigger_ticks_total", "outcome=\"missed\"").await, 2.0);
    // The next tick is the next of the schedule.
    let next = until(&node, "skip", "the next tick", |trigger| trigger.ticks.fired == 1).await;
    let scheduled_at_ms = next.last.unwrap().scheduled_at_ms.unwrap();
    assert_eq!((scheduled_at_ms - next.created_at_ms) % 3_000, 0);
}

#[tokio::test]
async fn ticks_without_their_function_fail_visibly() {
    let node = start().await;
    put(&node, "t", &every(300)).await.ok();
    node.delete("/v1/functions/echo").await.ok();
    let failed = until(&node, "t", "a failed tick", |trigger| trigger.ticks.failed >= 1).await;
    let last = failed.last.unwrap();
    assert_eq!((last.outcome, last.invocation), (TickOutcome::Failed, None));
    assert!(last.error.unwrap().contains("there is no function echo"));
    let events: EventPage = node.get("/v1/events").await.ok().json();
    let is_it = |event: &Event| event.resource == EventResource::Trigger && event.name == "t";
    assert!(events.events.iter().any(is_it), "{events:?}");
    node.deploy("echo", function("echo-http")).await;
    until(&node, "t", "a tick", |trigger| trigger.ticks.fired >= 1).await;
}

#[tokio::test]
async fn tick_waits_while_the_queue_is_full() {
    let node = builder().set("async.queue_len_max", 1).set("async.running_max", 0).start().await;
    node.deploy("echo", function("echo-http")).await;
    let queued = node.post_later("/fn/echo", "first").await;
    put(&node, "t", &with(every(1), json!({"source": {"every_ms": 2_000}}))).await.ok();
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    let waiting = show(&node, "t").await;
    assert_eq!((waiting.ticks.fired, waiting.ticks.failed, waiting.last), (0, 0, None), "it is retried");
    node.post(&format!("/v1/invocations/{}/cancel", queued.id), "").await.ok();
    until(&node, "t", "the tick", |trigger| trigger.ticks.fired >= 1).await;
}

#[tokio::test]
async fn invalid_triggers_are_refused() {
    let node = TestNode::builder()
        .set("async.triggers.tenant_triggers_max", 1)
        .set("async.triggers.body_bytes_max", 8)
        .start()
        .await;
    node.deploy("echo", function("echo-http")).await;
    let base = json!({"source": {"every_ms": 60_000}, "target": {"function": "echo"}});
    for (settings, status, code) in [
        (json!({"source": {"cron": "61 * * * *"}}), 422, ErrorCode::InvalidTrigger),
        (json!({"source": {"cron": "* * * * *", "timezone": "Mars/Base"}}), 422, ErrorCode::InvalidTrigger),
        (json!({"source": {"cron": "0 0 31 2 *"}}), 422, ErrorCode::InvalidTrigger),
        (json!({"source": {"every_ms": 999}}), 422, ErrorCode::InvalidTrigger),
        (json!({"request": {"body": "123456789"}}), 422, ErrorCode::InvalidTrigger),
        (json!({"request": {"headers": {"weir-token": "x"}}}), 422, ErrorCode::InvalidTrigger),
        (json!({"target": {}}), 422, ErrorCode::InvalidTrigger),
        (json!({"target": {"function": "missing"}}), 404, ErrorCode::FunctionNotFound),
        (json!({"target": {"inference": "missing"}}), 404, ErrorCode::ModelNotFound),
        (json!({"overlaps": "skip"}), 400, ErrorCode::InvalidRequest),
    ] {
        let refused = put(&node, "t", &with(base.clone(), settings.clone())).await;
        assert_eq!((refused.status, refused.code()), (status, code), "{settings}: {refused:?}");
    }
    assert_eq!(put(&node, "BAD", &base).await.code(), ErrorCode::InvalidName);
    assert_eq!(put(&node, "t", &base).await.status, 201);
    assert_eq!(put(&node, "t", &base).await.status, 200, "a change needs no room");
    let full = put(&node, "other", &base).await;
    assert_eq!((full.status, full.code()), (507, ErrorCode::QuotaExceeded), "{full:?}");
}

#[tokio::test]
async fn equal_settings_change_nothing_and_a_new_schedule_starts_anew() {
    let node = start().await;
    let first: Trigger = put(&node, "t", &every(3_600_000)).await.ok().json();
    tokio::time::sleep(Duration::from_millis(20)).await;
    let same: Trigger = put(&node, "t", &every(3_600_000)).await.ok().json();
    assert_eq!(same, first);
    let body = with(every(3_600_000), json!({"request": {"body": "other"}}));
    let changed: Trigger = put(&node, "t", &body).await.ok().json();
    assert!(changed.changed_at_ms > first.changed_at_ms);
    assert_eq!(changed.next_at_ms, first.next_at_ms, "the schedule is the same");
    let moved: Trigger = put(&node, "t", &every(3_600_001)).await.ok().json();
    assert_eq!(moved.next_at_ms[0], moved.changed_at_ms + 3_600_001);
    assert_eq!(moved.created_at_ms, first.created_at_ms);
    let listed: Vec<Trigger> = node.get("/v1/triggers").await.ok().json();
    assert_eq!(listed[0].spec.request.body, None, "lists have no bodies");
}

#[tokio::test]
async fn tenants_have_their_own_triggers() {
    let [one, other] = ["one-token-0123456789", "other-token-0123456789"];
    let node = TestNode::builder().tokens(&[&format!("{one} one"), &format!("{other} other")]).start().await;
    let [one, other] = [node.with_token(one), node.with_token(other)];
    one.deploy("echo", function("echo-http")).await;
    put(&one, "t", &every(1_000)).await.ok();
    assert_eq!(other.get("/v1/triggers/t").await.code(), ErrorCode::TriggerNotFound);
    assert_eq!(other.post("/v1/triggers/t/run", "").await.code(), ErrorCode::TriggerNotFound);
    assert_eq!(other.get("/v1/triggers").await.ok().json::<Vec<Trigger>>(), []);
    assert_eq!(put(&other, "t", &every(1_000)).await.code(), ErrorCode::FunctionNotFound);
    until(&one, "t", "a tick", |trigger| trigger.ticks.fired >= 1).await;
    assert!(!one.invocations("").await.is_empty());
    assert_eq!(other.invocations("").await, []);
}

#[tokio::test]
async fn commands_manage_triggers() {
    let node = start().await;
    let create = [
        "triggers",
        "create",
        "nightly",
        "--cron",
        RARELY,
        "--timezone",
        "Europe/Berlin",
        "--function",
        "echo",
        "--path",
        "x?y=1",
        "--header",
        "x-kind: daily",
        "--body",
        "{\"a\": 1}",
        "--missed",
        "run-once",
    ];
    let created = node.weir(&create).await.unwrap();
    assert!(created.contains("schedule     0 0 29 2 * (Europe/Berlin)\n"), "{created}");
    let spec = show(&node, "nightly").await.spec;
    assert_eq!((spec.request.path.as_str(), spec.request.body.as_deref()), ("/x?y=1", Some("{\"a\": 1}")));
    assert_eq!(spec.request.headers["content-type"], "application/json");
    assert!(node.weir(&["triggers"]).await.unwrap().contains("nightly"));
    let started: Value =
        serde_json::from_str(&node.weir(&["--json", "triggers", "run", "nightly"]).await.unwrap()).unwrap();
    let id = started["id"].as_str().unwrap().parse().unwrap();
    assert_eq!(node.result(node.ended(id).await.id).await.text(), "{\"a\": 1}");
    assert!(
        node.weir(&["triggers", "show", "nightly"]).await.unwrap().contains(started["id"].as_str().unwrap())
    );
    node.weir(&["triggers", "pause", "nightly"]).await.unwrap();
    assert!(node.weir(&["triggers"]).await.unwrap().contains("paused"));
    assert!(node.weir(&["triggers", "resume", "nightly"]).await.unwrap().contains("-02-2"), "the next tick");
    node.weir(&["triggers", "create", "ping", "--every", "1m30s", "--function", "echo"]).await.unwrap();
    assert_eq!(show(&node, "ping").await.spec.source.every_ms, Some(90_000));
    node.weir(&["triggers", "delete", "nightly"]).await.unwrap();
    let missing = node.weir(&["triggers", "show", "nightly"]).await.unwrap_err();
    assert!(missing.contains("trigger-not-found"), "{missing}");
}
