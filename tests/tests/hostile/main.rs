//! One tenant attacks the node, and every call of another tenant succeeds.
//!
//! Each attack has a file with its name. `docs/concepts/threat-model.md` lists them, and a test
//! compares the list with this folder.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod allocate;
mod churn_names;
mod fill_queues;
mod fill_storage;
mod flood_logs;
mod flood_requests;
mod forge_headers;
mod forge_tokens;
mod hoard_handles;
mod hoard_instances;
mod hoard_tensors;
mod open_connections;
mod poison_models;
mod recurse;
mod spin;
mod stall_bodies;
mod stall_uploads;
mod upload_garbage;
mod victim;

use reqwest::Method;
use std::collections::BTreeSet;
use std::path::Path;
use tokio::sync::Mutex;
use victim::Victim;
use weir_tests::{NodeBuilder, TestClient, TestNode};

const ATTACKER: &str = "attacker-token-0123456789";
const VICTIM: &str = "victim-token-0123456789";

/// A node with two tenants and the default limits.
fn node() -> NodeBuilder {
    TestNode::builder().tokens(&["attacker-token-0123456789 attacker", "victim-token-0123456789 victim"])
}

/// Runs `attack` as one tenant, while the other tenant calls its function and its model. Panics if a
/// call of the other tenant fails, or if the node has ended.
async fn attack(node: NodeBuilder, attack: impl AsyncFnOnce(TestClient)) {
    // Together, the attacks would measure the machine.
    static ALONE: Mutex<()> = Mutex::const_new(());
    let _alone = ALONE.lock().await;
    let node = node.start().await;
    let victim = Victim::deploy(node.with_token(VICTIM)).await;
    let calling = victim.call_until_stopped();
    attack(node.with_token(ATTACKER)).await;
    calling.stop().await;
    // The remains of the attack do not affect the other tenant either.
    victim.call_some().await;
    node.get("/readyz").await.ok();
}

/// Sends `count` concurrent requests in each of `rounds` rounds, and returns the statuses.
async fn flood(client: &TestClient, path: &str, count: usize, rounds: usize) -> BTreeSet<u16> {
    let mut statuses = BTreeSet::new();
    for _ in 0..rounds {
        let sending = (0..count).map(|_| async { client.get(path).await.status });
        statuses.extend(futures::future::join_all(sending).await);
    }
    statuses
}

/// Sends a request with one header.
async fn with_header(client: &TestClient, path: &str, header: (&str, &str)) -> weir_tests::Answer {
    client.send_refusable(client.request(Method::GET, path).header(header.0, header.1)).await
}

#[test]
fn threat_model_lists_every_attack() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(tests.join("../docs/concepts/threat-model.md")).unwrap();
    let listed = |name: &str| page.contains(&format!("| `{name}` |"));
    for file in std::fs::read_dir(tests.join("tests/hostile")).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        assert!(listed(name) || ["main", "victim"].contains(&name), "{name} is not listed");
    }
}
