//! Functions that make tensors until their limit, many at once, and hold them.

use super::{attack, flood, node};
use std::collections::BTreeSet;
use tokio_util::task::AbortOnDropHandle;
use weir_tests::{TestClient, eventually, function};

const MIB: u32 = 1 << 20;
/// Memory for the tensors of all tenants. One function may take all of it.
const ARENA_MIB: u32 = 64;

#[tokio::test(flavor = "multi_thread")]
async fn hoarded_tensors_affect_no_other_tenant() {
    attack(node().set("gateway.arena_bytes_max", ARENA_MIB * MIB), async |attacker| {
        attacker.deploy_with("bad", "limits.tensor_bytes=67108864", function("misbehave")).await;
        let hoarded: Vec<_> = (0..4).map(|_| hold(&attacker)).collect();
        // The tenant uses up its share of memory, and the functions get an error.
        let share = f64::from(ARENA_MIB / 2 * MIB);
        eventually("the share to be used up", async || {
            let bytes = attacker.metric("weir_tenant_arena_used_bytes", "attacker").await;
            (bytes > 0.9 * share).then_some(())
        })
        .await;
        // Functions get an error; a request that finds no memory for its body is refused.
        let statuses = flood(&attacker, "/fn/bad/tensors", 6, 4).await;
        assert!(statuses.is_subset(&BTreeSet::from([418, 429])), "{statuses:?}");
        let refused = attacker.get("/fn/bad/tensors").await;
        assert!(refused.text().contains("arena_bytes_max of [node.tenants]"), "{}", refused.text());
        drop(hoarded);
    })
    .await;
}

/// Calls a function that holds all tensors that it gets, until the call is dropped.
fn hold(client: &TestClient) -> AbortOnDropHandle<()> {
    let client = client.clone();
    AbortOnDropHandle::new(tokio::spawn(async move {
        let _ = client.try_get("/fn/bad/tensors?hold").await;
    }))
}
