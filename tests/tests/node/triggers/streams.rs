//! Triggers for the messages of NATS JetStream: delivery, refusals, batches, logins and restarts.

use super::{put, show, start, until, with};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::time::Duration;
use weir_tests::{NatsServer, TestNode, eventually, eventually_within, function};
use weir_types::api::{InvocationStatus, TickOutcome, Trigger};

fn stream(server: &NatsServer, settings: Value) -> Value {
    let source = with(json!({"url": server.url(), "stream": "ORDERS"}), settings);
    json!({"source": {"nats": source}, "target": {"function": "echo"}})
}

/// The consumers of the stream.
async fn consumers(server: &NatsServer) -> Vec<String> {
    let names = server.api("CONSUMER.NAMES.ORDERS", &Value::Null).await;
    let names = names["consumers"].as_array().cloned().unwrap_or_default();
    names.iter().map(|name| name.as_str().unwrap().to_owned()).collect()
}

/// Waits until the trigger `t` reads the stream. Returns its consumer.
async fn reading(node: &TestNode, server: &NatsServer) -> String {
    let consumer = eventually("the consumer", async || consumers(server).await.pop()).await;
    until(node, "t", "the connection", |trigger| trigger.error.is_none()).await;
    consumer
}

/// Waits until all messages of the stream are acknowledged.
async fn acknowledged(server: &NatsServer, consumer: &str) {
    // A server that was killed may have lost acknowledgements, and delivers their messages again
    // after half a minute.
    eventually_within(Duration::from_secs(120), "the acknowledgements", async || {
        let info = server.api(&format!("CONSUMER.INFO.ORDERS.{consumer}"), &Value::Null).await;
        (info["num_ack_pending"] == 0 && info["num_pending"] == 0).then_some(())
    })
    .await;
}

/// The bodies of all invocations of `echo`, once `count` have ended.
async fn bodies(node: &TestNode, count: usize) -> Vec<String> {
    let all = eventually("all invocations", async || {
        let all = node.invocations("name=echo").await;
        let ended = all.iter().filter(|invocation| invocation.status == InvocationStatus::Done).count();
        (ended >= count).then_some(all)
    })
    .await;
    let mut bodies = Vec::new();
    for invocation in all {
        bodies.push(node.result(invocation.id).await.text().to_owned());
    }
    bodies.sort();
    bodies
}

#[tokio::test]
async fn each_message_becomes_one_invocation_across_restarts() {
    if !NatsServer::is_installed() {
        return;
    }
    let mut server = NatsServer::start().await;
    server.create_stream("ORDERS").await;
    server.publish("ORDERS.old", &[], b"before the trigger").await;
    let node = start().await;
    let created = put(&node, "t", &stream(&server, json!({"subject": "ORDERS.new"}))).await;
    assert_eq!(created.status, 201, "{created:?}");
    let consumer = reading(&node, &server).await;
    assert!(consumer.starts_with("weir-default-t-"), "{consumer}");
    server.publish("ORDERS.other", &[], b"another subject").await;
    for at in 0..20 {
        server.publish("ORDERS.new", &[("Content-Type", "text/plain")], format!("m{at:02}").as_bytes()).await;
    }
    let expected: Vec<String> = (0..20).map(|at| format!("m{at:02}")).collect();
    assert_eq!(bodies(&node, 20).await, expected);
    acknowledged(&server, &consumer).await;
    let shown = until(&node, "t", "the counts", |trigger| trigger.ticks.fired >= 20).await;
    let last = shown.last.unwrap();
    let result = node.result(last.invocation.unwrap()).await;
    assert_eq!(
        ["ce-type", "ce-subject", "ce-source"].map(|name| result.header(name).unwrap().to_owned()),
        ["weir.nats.message".to_owned(), "ORDERS.new".to_owned(), format!("{}/ORDERS", server.url())]
    );
    // While the node is down, messages wait. While the server is down, the node tries again.
    let stopped = node.stop().await;
    server.publish("ORDERS.new", &[], b"m20").await;
    let node = stopped.start().await;
    assert_eq!(bodies(&node, 21).await.len(), 21);
    server.restart().await;
    server.publish("ORDERS.new", &[], b"m21").await;
    let all = bodies(&node, 22).await;
    assert_eq!((all.len(), all.last().map(String::as_str)), (22, Some("m21")));
    acknowledged(&server, &consumer).await;
}

#[tokio::test]
async fn position_is_kept_by_a_pause_and_deleted_with_the_trigger() {
    if !NatsServer::is_installed() {
        return;
    }
    let server = NatsServer::start().await;
    server.create_stream("ORDERS").await;
    let node = start().await;
    put(&node, "t", &stream(&server, json!({}))).await.ok();
    let consumer = reading(&node, &server).await;
    node.post("/v1/triggers/t/pause", "").await.ok();
    server.publish("ORDERS.a", &[], b"during the pause").await;
    node.post("/v1/triggers/t/resume", "").await.ok();
    assert_eq!(bodies(&node, 1).await, ["during the pause"]);
    acknowledged(&server, &consumer).await;
    // A paused trigger has no reader, and its consumer is deleted with it. A new trigger of the same
    // name starts with the next message.
    node.post("/v1/triggers/t/pause", "").await.ok();
    server.publish("ORDERS.a", &[], b"before the new trigger").await;
    node.delete("/v1/triggers/t").await.ok();
    assert_eq!(consumers(&server).await, [""; 0]);
    put(&node, "t", &stream(&server, json!({}))).await.ok();
    assert_eq!(reading(&node, &server).await, consumer);
    server.publish("ORDERS.a", &[], b"after it").await;
    assert_eq!(bodies(&node, 2).await, ["after it", "during the pause"]);
    // Another stream has another position.
    server.create_stream("OTHERS").await;
    put(&node, "t", &stream(&server, json!({"stream": "OTHERS"}))).await.ok();
    assert_eq!(consumers(&server).await, [""; 0]);
}

#[tokio::test]
async fn invocations_of_a_trigger_are_limited() {
    if !NatsServer::is_installed() {
        return;
    }
    let server = NatsServer::start().await;
    server.create_stream("ORDERS").await;
    for _ in 0..6 {
        server.publish("ORDERS.a", &[], b"").await;
    }
    let node = start().await;
    node.deploy("slow", function("misbehave")).await;
    let mut spec = stream(&server, json!({"start": "oldest", "running_max": 2}));
    spec["target"] = json!({"function": "slow"});
    spec["request"] = json!({"path": "/nap?300"});
    put(&node, "t", &spec).await.ok();
    let mut most = 0;
    eventually("all invocations", async || {
        let all = node.invocations("name=slow").await;
        let unfinished = all.iter().filter(|one| !one.status.is_end()).count();
        most = most.max(unfinished);
        (all.len() == 6 && unfinished == 0).then_some(())
    })
    .await;
    assert!((1..=2).contains(&most), "{most} invocations at once");
}

#[tokio::test]
async fn messages_wait_for_a_missing_function_and_give_way_if_they_are_too_large() {
    if !NatsServer::is_installed() {
        return;
    }
    let server = NatsServer::start().await;
    server.create_stream("ORDERS").await;
    let node = super::builder().set("async.triggers.message_bytes_max", 1_000).start().await;
    node.deploy("echo", function("echo-http")).await;
    put(&node, "t", &stream(&server, json!({"start": "oldest"}))).await.ok();
    server.publish("ORDERS.a", &[], &[b'x'; 1_001]).await;
    let shown = until(&node, "t", "the refusal", |trigger| trigger.ticks.failed == 1).await;
    let last = shown.last.unwrap();
    assert_eq!(last.outcome, TickOutcome::Failed);
    assert!(last.error.unwrap().contains("message_bytes_max"));
    node.delete("/v1/functions/echo").await.ok();
    server.publish("ORDERS.a", &[], b"patient").await;
    let waiting = until(&node, "t", "an error", |trigger| trigger.error.is_some()).await;
    assert!(waiting.error.unwrap().contains("echo"), "the missing function is named");
    node.deploy("echo", function("echo-http")).await;
    assert_eq!(bodies(&node, 1).await, ["patient"]);
    until(&node, "t", "the end of the error", |trigger| trigger.error.is_none()).await;
}

#[tokio::test]
async fn batches_are_cloud_events() {
    if !NatsServer::is_installed() {
        return;
    }
    let server = NatsServer::start().await;
    server.create_stream("ORDERS").await;
    for at in 0..10 {
        let id = format!("event-{at}");
        let headers =
            [("ce-specversion", "1.0"), ("ce-id", id.as_str()), ("content-type", "application/json")];
        server.publish("ORDERS.a", &headers, format!("{{\"n\":{at}}}").as_bytes()).await;
    }
    let node = start().await;
    let settings = json!({"start": "oldest", "batch_max": 4, "batch_wait_ms": 200, "running_max": 1});
    put(&node, "t", &stream(&server, settings)).await.ok();
    let consumer = reading(&node, &server).await;
    let bodies = bodies(&node, 3).await;
    acknowledged(&server, &consumer).await;
    let mut numbers = HashSet::new();
    for body in &bodies {
        let batch: Vec<Value> = serde_json::from_str(body).unwrap();
        assert!((1..=4).contains(&batch.len()), "{body}");
        for event in batch {
            let number = event["data"]["n"].as_u64().unwrap();
            assert_eq!(event["id"], format!("event-{number}"));
            numbers.insert(number);
        }
    }
    assert_eq!((numbers.len(), bodies.len()), (10, 3));
}

#[tokio::test]
async fn login_is_that_of_a_secret_and_errors_are_shown() {
    if !NatsServer::is_installed() {
        return;
    }
    // A pair of keys for tests: the seed is in the secret.
    let seed = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY";
    let users = "authorization { users: [ {user: me, password: pass}, \
        {nkey: UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4} ] }";
    let server = NatsServer::start_with(users, json!({"user": "me", "pass": "pass"})).await;
    server.create_stream("ORDERS").await;
    let node = start().await;
    put(&node, "t", &stream(&server, json!({"secret": "login", "start": "oldest"}))).await.ok();
    let error = async |what: &str| {
        let trigger: Trigger = until(&node, "t", what, |trigger| {
            trigger.error.as_ref().is_some_and(|error| error.contains(what))
        })
        .await;
        trigger.error.unwrap()
    };
    assert!(error("no secret").await.contains("login"));
    node.put("/v1/secrets/login", "me:wrong").await.ok();
    assert!(!error("Authorization Violation").await.contains("wrong"));
    node.put("/v1/secrets/login", "me:pass").await.ok();
    server.publish("ORDERS.a", &[], b"by password").await;
    assert_eq!(bodies(&node, 1).await, ["by password"]);
    node.put("/v1/secrets/login", seed).await.ok();
    // Changed settings make a new connection.
    put(&node, "t", &stream(&server, json!({"secret": "login", "start": "oldest", "running_max": 2})))
        .await
        .ok();
    server.publish("ORDERS.a", &[], b"by key").await;
    assert_eq!(bodies(&node, 2).await, ["by key", "by password"]);
    put(&node, "t", &stream(&server, json!({"secret": "login", "stream": "ABSENT"}))).await.ok();
    error("stream not found").await;
}

#[tokio::test]
async fn settings_of_streams_are_checked() {
    let node = start().await;
    for (source, said) in [
        (json!({"url": "http://h", "stream": "S"}), "nats://HOST"),
        (json!({"url": "nats://u:p@h", "stream": "S"}), "source.nats.secret"),
        (json!({"url": "nats://h", "stream": "a.b"}), "source.nats.stream"),
        (json!({"url": "nats://h", "stream": "S", "batch_max": 0}), "source.nats.batch_max"),
    ] {
        let spec = json!({"source": {"nats": source}, "target": {"function": "echo"}});
        let refused = put(&node, "t", &spec).await;
        assert_eq!(refused.status, 422, "{refused:?}");
        assert!(refused.text().contains(said), "{}", refused.text());
    }
    let spec =
        json!({"source": {"nats": {"url": "nats://h", "stream": "S"}}, "target": {"function": "echo"}});
    for settings in [json!({"overlap": "skip"}), json!({"request": {"body": "x"}})] {
        assert_eq!(put(&node, "t", &with(spec.clone(), settings)).await.status, 422);
    }
    put(&node, "t", &with(spec, json!({"enabled": false}))).await.ok();
    assert!(show(&node, "t").await.next_at_ms.is_empty());
    assert_eq!(node.post("/v1/triggers/t/run", "").await.status, 422);
}
