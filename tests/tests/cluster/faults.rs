//! Failures of nodes, dispatchers and the datastore.

use crate::{INFER, one_model, one_model_in};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use weir_tests::{Answer, Etcd, TestClient, TestCluster, eventually, function, signal};
use weir_types::ErrorCode;

const INPUT: [u8; 4] = 1_f32.to_le_bytes();

/// Repeated calls until [`Calls::end`].
struct Calls {
    is_over: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    slowest_us: Arc<AtomicU64>,
    callers: Vec<JoinHandle<Vec<Answer>>>,
}

impl Calls {
    fn start(clients: &[&TestClient]) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let answered = Arc::new(AtomicUsize::new(0));
        let slowest_us = Arc::new(AtomicU64::new(0));
        let call = |client: &&TestClient| {
            let client = (*client).clone();
            let is_over = is_over.clone();
            let answered = answered.clone();
            let slowest_us = slowest_us.clone();
            tokio::spawn(async move {
                let mut answers = Vec::new();
                while !is_over.load(Ordering::Relaxed) {
                    let begun = Instant::now();
                    answers.push(client.post(INFER, &INPUT[..]).await);
                    let took_us = u64::try_from(begun.elapsed().as_micros()).unwrap();
                    slowest_us.fetch_max(took_us, Ordering::Relaxed);
                    answered.fetch_add(1, Ordering::Relaxed);
                }
                answers
            })
        };
        let callers = clients.iter().map(call).collect();
        Self { is_over, answered, slowest_us, callers }
    }

    /// Waits until `count` more calls are answered.
    async fn answer(&self, count: usize) {
        let before = self.answered.load(Ordering::Relaxed);
        let has_answered = || self.answered.load(Ordering::Relaxed) >= before + count;
        eventually("calls are answered", async || has_answered().then_some(())).await;
    }

    /// The time of the slowest call that has ended since this was called before.
    fn slowest(&self) -> Duration {
        Duration::from_micros(self.slowest_us.swap(0, Ordering::Relaxed))
    }

    async fn end(self) -> Vec<Answer> {
        self.is_over.store(true, Ordering::Relaxed);
        let mut answers = Vec::new();
        for caller in self.callers {
            answers.append(&mut caller.await.unwrap());
        }
        answers
    }
}

fn failed(answers: &[Answer]) -> Vec<&Answer> {
    answers.iter().filter(|answer| answer.status != 200).collect()
}

/// Returns a cluster, the dispatcher's index, and the index of a different node that has the model.
async fn model_elsewhere(query: &str) -> (TestCluster, usize, usize) {
    let cluster = one_model(3, query, 20).await;
    let dispatcher = cluster.settle().await;
    // Among equal nodes the first one is chosen; a concurrent call goes to another node.
    for _ in 0..20 {
        let calls = cluster.nodes.iter().map(|node| node.post(INFER, &INPUT[..]));
        futures::future::join_all(calls).await;
        let mut holders = Vec::new();
        for (at, node) in cluster.nodes.iter().enumerate() {
            let resident = node.status().await.devices.iter().any(|device| !device.resident.is_empty());
            holders.extend(resident.then_some(at));
        }
        if let Some(holder) = holders.into_iter().find(|holder| *holder != dispatcher) {
            return (cluster, dispatcher, holder);
        }
    }
    panic!("only the dispatcher runs models");
}

#[tokio::test]
async fn idempotent_calls_survive_a_killed_node() {
    if !Etcd::is_installed() {
        return;
    }
    let (mut cluster, dispatcher, holder) = model_elsewhere("&idempotent=true").await;
    let gateway = (0..3).find(|at| *at != dispatcher && *at != holder).unwrap();
    let clients = [cluster.nodes[gateway].client().clone(), cluster.nodes[dispatcher].client().clone()];
    let calls = Calls::start(&[&clients[0], &clients[1], &clients[0], &clients[1]]);
    calls.answer(20).await;
    cluster.nodes.remove(holder).kill().await;
    calls.answer(40).await;
    let answers = calls.end().await;
    assert!(failed(&answers).is_empty(), "of {} calls, {:?} failed", answers.len(), failed(&answers));
    cluster.settle().await;
}

#[tokio::test]
async fn calls_of_a_hung_node_are_retried_or_reported_as_lost() {
    if !Etcd::is_installed() {
        return;
    }
    for is_idempotent in [true, false] {
        let (mut cluster, dispatcher, holder) =
            model_elsewhere(if is_idempotent { "&idempotent=true" } else { "" }).await;
        let gateway = (0..3).find(|at| *at != dispatcher && *at != holder).unwrap();
        let client = cluster.nodes[gateway].client().clone();
        let calls = Calls::start(&[&client, &client, &client]);
        calls.answer(20).await;
        let hung = cluster.nodes.remove(holder);
        let began = Instant::now();
        signal(hung.pid(), "STOP");
        // The other nodes settle without the stopped node.
        cluster.settle().await;
        eventually("calls are answered again", async || {
            client.post(INFER, &INPUT[..]).await.is_ok().then_some(())
        })
        .await;
        let answers = calls.end().await;
        let failed = failed(&answers);
        assert!(began.elapsed() < Duration::from_secs(20), "it took {:?}", began.elapsed());
        if is_idempotent {
            assert!(failed.is_empty(), "of {} calls, {failed:?} failed", answers.len());
        } else {
            assert!(failed.len() <= 3, "of {} calls, {failed:?} failed", answers.len());
            for answer in failed {
                let refusal = answer.refusal();
                assert_eq!((refusal.status, refusal.code), (502, ErrorCode::NodeLost), "{refusal:?}");
            }
        }
        signal(hung.pid(), "CONT");
        cluster.nodes.push(hung);
        cluster.settle().await;
        assert!(cluster.nodes[2].post(INFER, &INPUT[..]).await.is_ok());
    }
}

#[tokio::test]
async fn dispatcher_failover_loses_no_idempotent_calls() {
    if !Etcd::is_installed() {
        return;
    }
    // The default lease. With `--nocapture`, this measures fail-over at default settings.
    let builder = TestCluster::builder().set("cluster.lease_ms", 3_000);
    let mut cluster = one_model_in(builder, 3, "&idempotent=true", 5).await;
    for how in ["kill", "stop"] {
        let dispatcher = cluster.settle().await;
        let lost = cluster.nodes.remove(dispatcher);
        let clients: Vec<_> = cluster.nodes.iter().map(|node| node.client().clone()).collect();
        let calls = Calls::start(&clients.iter().chain(&clients).collect::<Vec<_>>());
        calls.answer(20).await;
        let before = calls.slowest();
        let began = Instant::now();
        let builder = if how == "kill" { lost.kill().await } else { lost.stop().await };
        cluster.settle().await;
        let took = began.elapsed();
        calls.answer(20).await;
        let slowest = calls.slowest();
        println!(
            "{how}: a dispatcher with all nodes after {took:?}, slowest call {slowest:?}, {before:?} before"
        );
        let answers = calls.end().await;
        assert!(
            failed(&answers).is_empty(),
            "{how}: of {} calls, {:?} failed",
            answers.len(),
            failed(&answers)
        );
        // A stopped node returns its lease; the address of a killed node refuses connections.
        assert!(took < Duration::from_secs(10), "{how}: a dispatcher after {took:?}");
        cluster.nodes.push(builder.start().await);
    }
}

/// The lease of the killed dispatcher lasts for half a minute, and its address refuses connections
/// at once.
#[tokio::test]
async fn killed_dispatcher_is_replaced_before_its_lease_expires() {
    if !Etcd::is_installed() {
        return;
    }
    let builder = TestCluster::builder().set("cluster.lease_ms", 30_000);
    let mut cluster = one_model_in(builder, 3, "&idempotent=true", 5).await;
    let dispatcher = cluster.settle().await;
    let lost = cluster.nodes.remove(dispatcher);
    let clients: Vec<_> = cluster.nodes.iter().map(|node| node.client().clone()).collect();
    let calls = Calls::start(&clients.iter().collect::<Vec<_>>());
    calls.answer(20).await;
    let killed_at = Instant::now();
    let _builder = lost.kill().await;
    cluster.settle().await;
    let took = killed_at.elapsed();
    calls.answer(20).await;
    let answers = calls.end().await;
    assert!(failed(&answers).is_empty(), "of {} calls, {:?} failed", answers.len(), failed(&answers));
    assert!(took < Duration::from_secs(5), "a dispatcher after {took:?}");
}

/// The killed node is a member for half a minute, and announces nothing.
#[tokio::test]
async fn second_dispatcher_in_a_row_does_not_wait_for_the_killed_one() {
    if !Etcd::is_installed() {
        return;
    }
    let builder = TestCluster::builder().set("cluster.lease_ms", 30_000);
    let mut cluster = one_model_in(builder, 4, "&idempotent=true", 5).await;
    let first = cluster.settle().await;
    let _killed = cluster.nodes.remove(first).kill().await;
    let second = cluster.settle().await;
    let _stopped = cluster.nodes.remove(second).stop().await;
    let third = cluster.settle().await;
    for node in &cluster.nodes {
        assert_eq!(node.post(INFER, &INPUT[..]).await.status, 200);
    }
    let log = cluster.nodes[third].log();
    assert!(!log.contains("did not announce their running calls"), "{log}");
}

#[tokio::test]
async fn calls_continue_and_deploys_fail_during_a_datastore_outage() {
    if !Etcd::is_installed() {
        return;
    }
    let mut cluster = one_model(2, "", 1).await;
    cluster.etcd.kill();
    for node in &cluster.nodes {
        assert_eq!(node.post(INFER, &INPUT[..]).await.status, 200);
    }
    let refusal = cluster.nodes[1].try_deploy("late", "", function("hello")).await.unwrap_err();
    assert_eq!((refusal.status, refusal.code), (503, ErrorCode::Unavailable), "{refusal:?}");
    // Longer than the lease.
    tokio::time::sleep(Duration::from_secs(3)).await;
    for node in &cluster.nodes {
        assert_eq!(node.post(INFER, &INPUT[..]).await.status, 200);
    }
    cluster.etcd.run();
    eventually("deploys are taken again", async || {
        cluster.nodes[1].try_deploy("late", "", function("hello")).await.ok()
    })
    .await;
    cluster.all_know("late").await;
    cluster.settle().await;
    for node in &cluster.nodes {
        assert_eq!(node.get("/fn/late").await.ok().text(), "hello\n");
    }
}

#[tokio::test]
async fn rolling_restart_fails_no_calls() {
    if !Etcd::is_installed() {
        return;
    }
    let mut cluster = one_model(3, "", 5).await;
    // Call a node that stays: load balancing around stopped nodes is not under test.
    let client = cluster.nodes[0].client().clone();
    let calls = Calls::start(&[&client, &client, &client, &client]);
    for _ in 0..2 {
        let builder = cluster.nodes.remove(1).stop().await;
        cluster.nodes.push(builder.start().await);
        cluster.settle().await;
    }
    let answers = calls.end().await;
    assert!(failed(&answers).is_empty(), "of {} calls, {:?} failed", answers.len(), failed(&answers));
}

/// A stopping dispatcher waits for its calls on other nodes.
#[tokio::test]
async fn stopping_dispatcher_waits_for_its_calls_on_other_nodes() {
    if !Etcd::is_installed() {
        return;
    }
    let mut cluster = one_model(2, "", 2_000).await;
    let dispatcher = cluster.settle().await;
    // Calls through both nodes keep both busy, so that the next free node has the model.
    let other = cluster.nodes[1 - dispatcher].client().clone();
    let client = cluster.nodes[dispatcher].client().clone();
    let calls: Vec<_> = (0..4)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.post(INFER, &INPUT[..]).await })
        })
        .collect();
    eventually("a call on the other node", async || {
        (other.metric("weir_invocations_running", "").await >= 1.0).then_some(())
    })
    .await;
    let stopped = cluster.nodes.remove(dispatcher).stop();
    let (_, answers) = tokio::join!(stopped, futures::future::join_all(calls));
    for answer in answers {
        let answer = answer.unwrap();
        assert_eq!(answer.status, 200, "{answer:?}");
    }
}
