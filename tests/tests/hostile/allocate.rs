//! Functions that take all of the memory that they may have, many at once.

use super::{attack, flood, node};
use std::collections::BTreeSet;
use tokio_util::task::AbortOnDropHandle;
use weir_tests::{TestClient, eventually, function};
use weir_types::ErrorCode;

const MIB: u32 = 1 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn hoarded_memory_affects_no_other_tenant() {
    attack(node(), async |attacker| {
        attacker.deploy_with("bad", "limits.memory_bytes=67108864", function("misbehave")).await;
        assert_eq!(flood(&attacker, "/fn/bad/hoard", 16, 2).await, BTreeSet::from([507]));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_of_a_tenant_share_half_of_the_memory_of_all() {
    let node = node().set("sandbox.guest_memory_bytes_max", 256 * MIB);
    attack(node, async |attacker| {
        attacker.deploy("bad", function("misbehave")).await;
        let kept = [keep_50_mib(&attacker), keep_50_mib(&attacker)];
        until_bytes(&attacker, |bytes| bytes > 100 * MIB).await;
        let refused = attacker.get("/fn/bad/keep?50").await;
        assert_eq!((refused.status, refused.code()), (429, ErrorCode::QueueFull));
        assert!(refused.text().contains("guest_memory_bytes_max"), "{}", refused.text());
        attacker.get("/fn/bad/behave").await.ok();
        drop(kept);
        until_bytes(&attacker, |bytes| bytes == 0).await;
    })
    .await;
}

/// Calls a function that keeps 50 MiB of memory, until the call is dropped.
fn keep_50_mib(client: &TestClient) -> AbortOnDropHandle<()> {
    let client = client.clone();
    AbortOnDropHandle::new(tokio::spawn(async move {
        let _ = client.get("/fn/bad/keep?50").await;
    }))
}

/// Waits until the instances of the client's tenant have as many bytes of memory as `is_it` accepts.
async fn until_bytes(client: &TestClient, is_it: impl Fn(u32) -> bool) {
    eventually("the memory", async || {
        let bytes = client.metric("weir_tenant_instances_memory_bytes", "attacker").await;
        is_it(bytes as u32).then_some(())
    })
    .await;
}
