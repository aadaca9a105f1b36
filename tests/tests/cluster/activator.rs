//! Scale to zero of nodes: a node without devices (an activator) accepts calls while a pool of nodes
//! with devices, which the tests start and stop, has no node.

use crate::{INFER, fake};
use futures::future::join_all;
use reqwest::Method;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, JoinSet};
use weir_tests::{ClusterBuilder, Etcd, TestClient, TestCluster, TestNode, eventually, function};
use weir_types::api::{Invocation, InvocationStatus};
use weir_types::{AsyncId, ErrorCode};

const INPUT: [u8; 4] = 1_f32.to_le_bytes();

/// Settings of a cluster whose first node is an activator.
fn activator() -> ClusterBuilder {
    TestCluster::builder().set("models.backend", "fake").set("devices", "none")
}

/// Starts the activator, with a function `echo`, a model `m` and a function `infer` that runs it.
async fn start(builder: ClusterBuilder) -> TestCluster {
    let cluster = builder.start(1).await;
    let activator = &cluster.nodes[0];
    activator.push_model("m", 1, fake(5, 1, 1_000)).await;
    activator.deploy_with("infer", "models=m", function("infer")).await;
    activator.deploy("echo", function("echo-http")).await;
    cluster
}

/// Starts a node with a device, and waits until the activator places calls on it.
async fn start_worker(cluster: &TestCluster) -> TestNode {
    cluster.node().set("devices", "cpu").start().await
}

async fn backlog_s(node: &TestClient) -> f64 {
    node.metric("weir_scheduler_backlog_seconds", "").await
}

async fn waiting_calls(node: &TestClient, calls: f64) {
    eventually("calls that wait for a device", async || {
        (node.metric("weir_scheduler_waiting_calls", "").await >= calls).then_some(())
    })
    .await;
}

/// Waits until an attempt of an asynchronous invocation was rejected for lack of a device.
async fn attempt_without_device(node: &TestClient, id: AsyncId) {
    eventually("an attempt without a device", async || {
        let error = node.invocation(id).await.error?;
        (error.code == ErrorCode::NoDevice).then_some(())
    })
    .await;
}

/// Calls that arrive one after the other, of functions and models, synchronous and asynchronous.
struct Trickle {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    sender: JoinHandle<Vec<Option<AsyncId>>>,
    client: TestClient,
}

impl Trickle {
    fn start(client: TestClient) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let sent = Arc::<AtomicU64>::default();
        let sender = tokio::spawn(send_until(client.clone(), stop.clone(), sent.clone()));
        Self { stop, sent, sender, client }
    }

    /// Waits until further calls were sent.
    async fn passes(&self, calls: u64) {
        let until = self.sent.load(Ordering::Relaxed) + calls;
        eventually("further calls", async || (self.sent.load(Ordering::Relaxed) >= until).then_some(()))
            .await;
    }

    /// Ends the load. Panics if a call has failed.
    async fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        for later in self.sender.await.unwrap().into_iter().flatten() {
            let ended = self.client.ended(later).await;
            assert_eq!(ended.status, InvocationStatus::Done, "{ended:?}");
            assert_eq!(self.client.result(later).await.text(), "later");
        }
    }
}

/// Returns the asynchronous invocations.
async fn send_until(client: TestClient, stop: Arc<AtomicBool>, sent: Arc<AtomicU64>) -> Vec<Option<AsyncId>> {
    let mut calls = JoinSet::new();
    while !stop.load(Ordering::Relaxed) {
        let number = sent.fetch_add(1, Ordering::Relaxed);
        calls.spawn(call(client.clone(), number));
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    calls.join_all().await
}

async fn call(client: TestClient, number: u64) -> Option<AsyncId> {
    match number % 4 {
        0 => {
            let body = format!("body {number}");
            let answer = client.post("/fn/echo", body.clone()).await;
            assert_eq!((answer.status, &*answer.text()), (200, &*body), "call {number}: {answer:?}");
        }
        1 => {
            let answer = client.post(INFER, &INPUT[..]).await;
            assert_eq!((answer.status, &answer.body[..]), (200, &INPUT[..]), "call {number}: {answer:?}");
        }
        2 => {
            let request = serde_json::json!({
                "inputs": [{ "name": "x", "datatype": "FP32", "shape": [1, 1], "data": [number] }],
            });
            let answer = client.post("/v2/models/m/infer", request.to_string()).await;
            assert_eq!(answer.status, 200, "call {number}: {answer:?}");
        }
        _ => {
            let request = client.later(Method::POST, "/fn/echo").body("later");
            let answer = request.send().await.unwrap();
            assert_eq!(answer.status(), 202, "call {number}");
            return Some(answer.json::<Invocation>().await.unwrap().id);
        }
    }
    None
}

#[tokio::test]
async fn pool_of_nodes_goes_to_zero_and_back_without_a_failed_call() {
    if !Etcd::is_installed() {
        return;
    }
    let cluster = start(activator()).await;
    let activator = &cluster.nodes[0];
    let mut pool = join_all((0..3).map(|_| start_worker(&cluster))).await;
    let trickle = Trickle::start(activator.client().clone());
    trickle.passes(20).await;
    // As an autoscaler whose threshold the present load does not reach.
    while let Some(node) = pool.pop() {
        trickle.passes(10).await;
        node.stop().await;
    }
    // As KEDA, which starts nodes as soon as the metric is above zero.
    eventually("a backlog", async || (backlog_s(activator).await > 0.0).then_some(())).await;
    assert!(activator.metric("weir_scheduler_waiting_calls", "").await > 0.0);
    assert_eq!(activator.metric("weir_scheduler_run_slots", "").await, 0.0);
    trickle.passes(20).await;
    pool = join_all((0..3).map(|_| start_worker(&cluster))).await;
    trickle.passes(40).await;
    trickle.end().await;
    assert_eq!(activator.metric("weir_scheduler_waiting_calls", "").await, 0.0);
    assert!(activator.metric("weir_scheduler_run_slots", "").await >= 3.0);
    assert_eq!(activator.metric("weir_invocations_total", "").await, 0.0, "a call ran on the activator");
    drop(pool);
}

/// The activator places the waiting calls once it has replaced the dispatcher.
#[tokio::test]
async fn dispatcher_with_the_last_device_leaves_without_a_failed_call() {
    if !Etcd::is_installed() {
        return;
    }
    let mut cluster = start(TestCluster::builder().set("models.backend", "fake")).await;
    let activator = cluster.node().set("devices", "none").start().await;
    let dispatcher = cluster.settle_with(&[&activator]).await;
    assert_eq!(dispatcher.address(), cluster.nodes[0].address());
    let trickle = Trickle::start(activator.client().clone());
    trickle.passes(20).await;
    cluster.nodes.remove(0).stop().await;
    trickle.passes(20).await;
    eventually("a backlog", async || (backlog_s(&activator).await > 0.0).then_some(())).await;
    cluster.nodes.push(cluster.node().start().await);
    trickle.passes(40).await;
    trickle.end().await;
    assert_eq!(activator.metric("weir_invocations_total", "").await, 0.0, "a call ran on the activator");
}

#[tokio::test]
async fn activator_is_ready_and_says_that_it_has_no_devices() {
    if !Etcd::is_installed() {
        return;
    }
    let cluster = start(activator()).await;
    let activator = &cluster.nodes[0];
    assert_eq!(activator.get("/readyz").await.status, 200);
    let status = activator.status().await;
    assert_eq!((status.state.as_str(), status.devices.len()), ("ready", 0));
    assert!(activator.log().contains("no devices"), "{}", activator.log());
    let shown = activator.weir(&["status"]).await.unwrap();
    assert!(shown.contains("no devices: this node accepts calls"), "{shown}");
    let metadata = activator.get("/v2/models/m").await;
    assert_eq!(metadata.status, 200, "{metadata:?}");
    // Measures a model on the node that receives the request.
    let profile = activator.post("/v1/models/m/profile", "").await;
    assert!(profile.text().contains("no-device"), "{profile:?}");
}

#[tokio::test]
async fn call_fails_once_it_has_waited_too_long_for_a_device() {
    if !Etcd::is_installed() {
        return;
    }
    let cluster = start(activator().set("scheduler.device_wait_ms", 300)).await;
    let activator = &cluster.nodes[0];
    assert_eq!(backlog_s(activator).await, 0.0);
    for (path, body) in [("/fn/echo", &b"body"[..]), (INFER, &INPUT[..])] {
        let answer = activator.post(path, body).await;
        assert!(answer.headers.contains_key("retry-after"), "{answer:?}");
        let refusal = answer.refusal();
        assert_eq!((refusal.status, refusal.code), (503, ErrorCode::NoDevice), "{path}");
        assert!(refusal.text.contains("scheduler.device_wait_ms"), "{}", refusal.text);
    }
    let started = activator.post_later("/fn/echo", "body").await;
    attempt_without_device(activator, started.id).await;
    let _worker = start_worker(&cluster).await;
    let ended = activator.ended(started.id).await;
    assert_eq!((ended.status, ended.attempts), (InvocationStatus::Done, 1), "no attempt had begun before");
}

#[tokio::test]
async fn deadline_ends_the_wait_for_a_device() {
    if !Etcd::is_installed() {
        return;
    }
    let cluster = start(activator()).await;
    let activator = &cluster.nodes[0];
    activator.deploy_with("brief", "limits.deadline_ms=2000", function("echo-http")).await;
    let refusal = activator.post("/fn/brief", "body").await.refusal();
    assert_eq!((refusal.status, refusal.code), (503, ErrorCode::NoDevice), "{}", refusal.text);
    assert_eq!(activator.metric("weir_scheduler_waiting_calls", "").await, 0.0);
    // The deadline is that of each attempt: an asynchronous invocation waits for longer.
    let later = activator.post_later("/fn/brief", "body").await;
    attempt_without_device(activator, later.id).await;
    let _worker = start_worker(&cluster).await;
    let ended = activator.ended(later.id).await;
    assert_eq!(ended.status, InvocationStatus::Done, "{ended:?}");
}

#[tokio::test]
async fn waiting_calls_of_a_tenant_are_limited() {
    if !Etcd::is_installed() {
        return;
    }
    let cluster = activator().mutual_tls().start(1).await;
    let gate = cluster
        .node()
        .tokens(&["0123456789abcdef acme", "fedcba9876543210 other"])
        .set("tenants.acme.requests_running_max", 2)
        .start()
        .await;
    let clients = ["0123456789abcdef", "fedcba9876543210"].map(|token| gate.client().with_token(token));
    for client in &clients {
        client.deploy("echo", function("echo-http")).await;
    }
    let [acme, other] = clients;
    let post = |client: &TestClient| {
        let client = client.clone();
        tokio::spawn(async move { client.post("/fn/echo", "body").await })
    };
    let waiting = [post(&acme), post(&acme)];
    waiting_calls(cluster.nodes[0].client(), 2.0).await;
    let refusal = acme.post("/fn/echo", "body").await.refusal();
    assert_eq!((refusal.status, refusal.code), (429, ErrorCode::RateLimited));
    let others = post(&other);
    waiting_calls(cluster.nodes[0].client(), 3.0).await;
    let _worker = start_worker(&cluster).await;
    for call in waiting.into_iter().chain([others]) {
        assert_eq!(call.await.unwrap().status, 200);
    }
}

#[tokio::test]
async fn stopping_activator_waits_for_a_device_and_then_refuses_its_waiting_calls() {
    if !Etcd::is_installed() {
        return;
    }
    let cluster = start(activator()).await;
    for (drain_timeout_ms, has_worker) in [(20_000, true), (700, false)] {
        let gate = cluster.node().set("gateway.drain_timeout_ms", drain_timeout_ms).start().await;
        eventually("the news of a deploy", async || gate.function("echo").await.ok()).await;
        let client = gate.client().clone();
        let call = tokio::spawn(async move { client.post("/fn/echo", "body").await });
        waiting_calls(cluster.nodes[0].client(), 1.0).await;
        if has_worker {
            let (worker, _) = tokio::join!(start_worker(&cluster), gate.stop());
            assert_eq!(call.await.unwrap().status, 200);
            worker.stop().await;
        } else {
            gate.stop().await;
            let refusal = call.await.unwrap().refusal();
            assert_eq!((refusal.status, refusal.code), (503, ErrorCode::Unavailable), "{}", refusal.text);
        }
    }
}

/// A call of a function that runs one call at a time arrives at placement when the call before ends.
#[tokio::test]
async fn stopping_activator_places_or_refuses_the_calls_at_the_gate_of_a_function() {
    if !Etcd::is_installed() {
        return;
    }
    let cluster = start(activator()).await;
    let first = &cluster.nodes[0];
    first.deploy_with("narrow", "limits.concurrency_max=1", function("echo-http")).await;
    for (drain_timeout_ms, has_worker) in [(20_000, true), (2_000, false)] {
        let gate = cluster.node().set("gateway.drain_timeout_ms", drain_timeout_ms).start().await;
        eventually("the news of a deploy", async || gate.function("narrow").await.ok()).await;
        let client = gate.client().clone();
        let running = gate.hold("/fn/narrow");
        waiting_calls(first.client(), 1.0).await;
        let queued = tokio::spawn(async move { client.post("/fn/narrow", "late").await });
        eventually("a call at the gate", async || {
            (gate.metric("weir_invocations_queued", "").await >= 2.0).then_some(())
        })
        .await;
        if has_worker {
            let worker = start_worker(&cluster).await;
            eventually("a call that runs", async || {
                (gate.metric("weir_invocations_queued", "").await <= 1.0).then_some(())
            })
            .await;
            let stopping = tokio::spawn(gate.stop());
            tokio::time::sleep(Duration::from_millis(600)).await;
            assert_eq!(running.let_go().await.status, 200);
            assert_eq!(queued.await.unwrap().status, 200);
            stopping.await.unwrap();
            worker.stop().await;
        } else {
            gate.stop().await;
            let refusal = queued.await.unwrap().refusal();
            assert_eq!((refusal.status, refusal.code), (503, ErrorCode::Unavailable), "{}", refusal.text);
        }
    }
}

#[tokio::test]
async fn activator_stops_within_its_drain_time() {
    if !Etcd::is_installed() {
        return;
    }
    let cluster = start(activator()).await;
    let gate = cluster.node().set("gateway.drain_timeout_ms", 4_000).start().await;
    eventually("the news of a deploy", async || gate.function("echo").await.ok()).await;
    let client = gate.client().clone();
    let call = tokio::spawn(async move { client.post("/fn/echo", "body").await });
    waiting_calls(cluster.nodes[0].client(), 1.0).await;
    // An upload that does not end, so that requests are in progress until the latest time.
    let mut upload = TcpStream::connect(gate.address()).await.unwrap();
    let head = format!(
        "PUT /v1/functions/other HTTP/1.1\r\nhost: {}\r\ncontent-length: 1000\r\n\r\nbegin",
        gate.address()
    );
    upload.write_all(head.as_bytes()).await.unwrap();
    let begun = Instant::now();
    gate.stop().await;
    assert!(begun.elapsed() < Duration::from_millis(6_000), "{:?}", begun.elapsed());
    assert_eq!(call.await.unwrap().refusal().status, 503);
}

/// Until the next dispatcher is elected, the activator knows no device.
#[tokio::test]
async fn activator_fails_no_call_while_a_dispatcher_is_elected() {
    if !Etcd::is_installed() {
        return;
    }
    let builder = TestCluster::builder().set("models.backend", "fake").set("scheduler.device_wait_ms", 0);
    let mut cluster = start(builder).await;
    let worker = start_worker(&cluster).await;
    let activator = cluster.node().set("devices", "none").start().await;
    let dispatcher = cluster.settle_with(&[&worker, &activator]).await;
    assert_eq!(dispatcher.address(), cluster.nodes[0].address());
    let trickle = Trickle::start(activator.client().clone());
    trickle.passes(20).await;
    cluster.nodes.remove(0).stop().await;
    trickle.passes(40).await;
    trickle.end().await;
}

#[tokio::test]
async fn activator_compiles_no_components_of_other_nodes() {
    if !Etcd::is_installed() {
        return;
    }
    let cluster = start(activator()).await;
    let gate = cluster.node().start().await;
    let worker = start_worker(&cluster).await;
    cluster.nodes[0].deploy("later", function("misbehave")).await;
    eventually("a compilation", async || worker.log().contains("recompiling").then_some(())).await;
    eventually("the news of a deploy", async || gate.function("later").await.ok()).await;
    // The news of the component follows that of the function.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!gate.log().contains("recompiling"), "{}", gate.log());
}

#[tokio::test]
async fn call_with_a_streamed_body_waits_for_a_device() {
    if !Etcd::is_installed() {
        return;
    }
    let cluster = start(activator()).await;
    let activator = &cluster.nodes[0];
    let held = activator.hold("/fn/echo");
    waiting_calls(activator.client(), 1.0).await;
    let _worker = start_worker(&cluster).await;
    eventually("the start of the call", async || {
        (activator.metric("weir_scheduler_waiting_calls", "").await == 0.0).then_some(())
    })
    .await;
    let answer = held.let_go().await;
    assert_eq!((answer.status, &*answer.text()), (200, "held"));
}

#[tokio::test]
async fn node_without_devices_needs_a_cluster() {
    let Err(error) = TestNode::builder().set("devices", "none").try_start().await else {
        panic!("the node runs no call, and has no cluster that would");
    };
    assert!(error.contains("--datastore"), "{error}");
}
