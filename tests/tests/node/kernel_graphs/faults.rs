//! Faulting kernels: their tenant gets an error, and other tenants are unaffected.

use super::{infer, output, packed, push, tensor, test_kernel, with_kernel_graphs, workers};
use serde_json::{Value, json};
use weir_tests::{TestNode, eventually};
use weir_types::ErrorCode;
use weir_types::api::ModelVersion;

fn beyond() -> Value {
    test_kernel("weir_test_fill", &json!([{"out": "y"}, {"u32": 1}, {"u64": 1_000_000_000_000_u64}]))
}

/// Checks the result of the neighbour's graph.
async fn is_well(node: &weir_tests::TestClient) {
    let inputs = [tensor("a", &[1, 1], &[2.0]), tensor("b", &[1, 1], &[3.0]), tensor("c", &[1, 1], &[4.0])];
    assert_eq!(output(&infer(node, "chain", &inputs).await.ok(), "d"), [24.0]);
}

async fn with_neighbours(
    builder: weir_tests::NodeBuilder,
) -> (TestNode, weir_tests::TestClient, weir_tests::TestClient) {
    let node = builder.tokens(&["the-token-of-alice alice", "the-token-of-bob bob"]).start().await;
    let alice = node.with_token("the-token-of-alice");
    let bob = node.with_token("the-token-of-bob");
    push(&bob, "chain", &packed("sgemm-chain")).await.ok();
    is_well(&bob).await;
    (node, alice, bob)
}

#[tokio::test]
async fn out_of_bounds_kernel_loses_only_its_own_worker() {
    let (node, alice, bob) = with_neighbours(with_kernel_graphs()).await;
    let [neighbour] = workers(&node)[..] else { panic!("expected one worker") };
    push(&alice, "beyond", &beyond()).await.ok();
    push(&alice, "chain", &packed("sgemm-chain")).await.ok();
    is_well(&alice).await;
    for _ in 0..3 {
        let refusal = infer(&alice, "beyond", &[tensor("x", &[4], &[1.0; 4])]).await.refusal();
        if refusal.text.contains("again and again") {
            // The restart backoff has begun.
            assert_eq!((refusal.status, refusal.code), (503, ErrorCode::Unavailable), "{refusal:?}");
            break;
        }
        assert_eq!((refusal.status, refusal.code), (503, ErrorCode::WorkerLost), "{refusal:?}");
        assert!(refusal.text.contains("lost"), "{refusal:?}");
        is_well(&bob).await;
    }
    assert!(workers(&node).contains(&neighbour), "the neighbour's worker is the same");
    // The tenant's other graph works after the worker's restart.
    eventually("alice is well again", async || {
        let inputs =
            [tensor("a", &[1, 1], &[2.0]), tensor("b", &[1, 1], &[3.0]), tensor("c", &[1, 1], &[4.0])];
        infer(&alice, "chain", &inputs).await.is_ok().then_some(())
    })
    .await;
}

/// A tenant's residency quota counts its worker once, in addition to its graphs.
#[tokio::test]
async fn worker_counts_once_against_the_tenant_quota() {
    // A worker takes 128 MiB.
    let capped = |mib: u64| with_kernel_graphs().set("tenants.alice.resident_bytes_max", mib << 20);
    let (node, alice, bob) = with_neighbours(capped(120)).await;
    push(&alice, "chain", &packed("sgemm-chain")).await.ok();
    let inputs = [tensor("a", &[1, 1], &[2.0]), tensor("b", &[1, 1], &[3.0]), tensor("c", &[1, 1], &[4.0])];
    let refusal = infer(&alice, "chain", &inputs).await.refusal();
    assert_eq!((refusal.status, refusal.code), (507, ErrorCode::NoCapacity), "{refusal:?}");
    assert!(refusal.text.contains("resident_bytes_max"), "{refusal:?}");
    assert_eq!(workers(&node).len(), 1, "only the worker of the neighbour runs");
    is_well(&bob).await;

    let (_node, alice, bob) = with_neighbours(capped(140)).await;
    for name in ["chain", "again"] {
        push(&alice, name, &packed("sgemm-chain")).await.ok();
    }
    for name in ["chain", "again", "chain"] {
        infer(&alice, name, &inputs).await.ok();
    }
    let devices = alice.status().await.devices;
    let resident: Vec<_> = devices.iter().flat_map(|device| &device.resident).collect();
    assert_eq!(resident.len(), 2, "one graph was evicted for another: {devices:?}");
    is_well(&bob).await;
}

#[tokio::test]
async fn endless_kernel_is_stopped_with_its_worker() {
    let (node, alice, bob) =
        with_neighbours(with_kernel_graphs().set("kernel_graphs.run_wall_ms_max", 3_000)).await;
    let [neighbour] = workers(&node)[..] else { panic!("expected one worker") };
    push(&alice, "spin", &test_kernel("weir_test_spin", &json!([{"out": "y"}]))).await.ok();
    let inputs = [tensor("x", &[4], &[1.0; 4])];
    let (spun, ()) = tokio::join!(infer(&alice, "spin", &inputs), is_well(&bob));
    let refusal = spun.refusal();
    assert_eq!((refusal.status, refusal.code), (503, ErrorCode::WorkerLost), "{refusal:?}");
    assert!(refusal.text.contains("longer than 3000 ms (kernel_graphs.run_wall_ms_max)"), "{refusal:?}");
    is_well(&bob).await;
    eventually("the end of the worker", async || (workers(&node) == [neighbour]).then_some(())).await;

    // The caller's deadline also ends the run.
    let body = json!({"inputs": inputs, "parameters": {"timeout": 200_000}}).to_string();
    eventually("the deadline counts", async || {
        let answer = alice.post("/v2/models/spin/infer", body.clone()).await;
        (answer.refusal().code == ErrorCode::DeadlineExceeded).then_some(())
    })
    .await;
    eventually("the end of the worker", async || (workers(&node) == [neighbour]).then_some(())).await;
    is_well(&bob).await;
}

#[tokio::test]
async fn calls_waiting_for_a_worker_hold_no_run_slot() {
    let builder = with_kernel_graphs().set("kernel_graphs.run_wall_ms_max", 3_000).set("models.slots", 2);
    let (_node, alice, bob) = with_neighbours(builder).await;
    let names = ["spin-a", "spin-b", "spin-c"];
    for name in names {
        push(&alice, name, &test_kernel("weir_test_spin", &json!([{"out": "y"}]))).await.ok();
    }
    let inputs = [tensor("x", &[4], &[1.0; 4])];
    let spinning = names.map(|name| infer(&alice, name, &inputs));
    let calls = async {
        // Repeatedly, so that all spinning graphs are queued by the end.
        for _ in 0..10 {
            is_well(&bob).await;
        }
    };
    tokio::select! {
        ended = futures::future::select_all(spinning.map(Box::pin)) => panic!("a kernel that never ends has ended: {:?}", ended.0),
        () = calls => {}
    }
}

#[tokio::test]
async fn killed_kernel_graph_worker_is_restarted() {
    let (node, alice, _) = with_neighbours(with_kernel_graphs()).await;
    push(&alice, "chain", &packed("sgemm-chain")).await.ok();
    is_well(&alice).await;
    for worker in workers(&node) {
        weir_tests::signal(worker, "KILL");
    }
    let inputs = [tensor("a", &[1, 1], &[2.0]), tensor("b", &[1, 1], &[3.0]), tensor("c", &[1, 1], &[4.0])];
    let refusal = infer(&alice, "chain", &inputs).await.refusal();
    assert_eq!(refusal.code, ErrorCode::WorkerLost, "{refusal:?}");
    is_well(&alice).await;
}

/// Whether a process runs and is no zombie.
fn is_running(pid: u32) -> bool {
    std::fs::read_link(format!("/proc/{pid}/exe")).is_ok()
}

#[tokio::test]
async fn worker_without_room_is_not_started() {
    let node = with_kernel_graphs().set("kernel_graphs.context_bytes", 4_u64 << 30).start().await;
    push(&node, "chain", &packed("sgemm-chain")).await.ok();
    let inputs = [tensor("a", &[1, 1], &[2.0]), tensor("b", &[1, 1], &[3.0]), tensor("c", &[1, 1], &[4.0])];
    let refusal = infer(&node, "chain", &inputs).await.refusal();
    assert_eq!((refusal.status, refusal.code), (507, ErrorCode::NoCapacity), "{refusal:?}");
    assert!(workers(&node).is_empty());
    // The reason is visible before any call, and names the settings.
    let kept: ModelVersion = node.get("/v1/kernel-graphs/chain/versions/1").await.ok().json();
    let why: Vec<_> = kept.devices.iter().map(|device| device.why_not.clone().unwrap_or_default()).collect();
    let settings = ["context_bytes and memory_bytes_max of [node.kernel_graphs]", "models.memory_bytes_max"];
    for setting in settings {
        assert!(refusal.text.contains(setting) && why[1].contains(setting), "{refusal:?}, {why:?}");
    }
    let unready = node.get("/v2/models/chain/ready").await.refusal();
    assert_eq!((unready.status, unready.text), (503, format!("chain is not ready: {}", refusal.text)));
}

#[tokio::test]
async fn workers_have_no_secrets_and_end_with_their_node() {
    let node = with_kernel_graphs().env("AWS_SECRET_ACCESS_KEY", "not for kernels").start().await;
    push(&node, "chain", &packed("sgemm-chain")).await.ok();
    is_well(&node).await;
    let [worker] = workers(&node)[..] else { panic!("expected one worker") };
    let environment = std::fs::read(format!("/proc/{worker}/environ")).expect("the worker is not running");
    assert!(!String::from_utf8_lossy(&environment).contains("not for kernels"));
    let _builder = node.kill().await;
    eventually("the end of the worker", async || (!is_running(worker)).then_some(())).await;
}
