//! Calls of the highest priority that fill every queue that the tenant can reach.

use super::{attack, node, with_header};
use std::collections::BTreeSet;
use weir_tests::function;

#[tokio::test(flavor = "multi_thread")]
async fn queues_full_of_urgent_calls_affect_no_other_tenant() {
    // The gate of one function admits 128 calls, so only several functions together reach the later
    // limits, and take more instances than the node has.
    attack(node().set("sandbox.instances_max", 256), async |attacker| {
        let names = ["a", "b", "c"];
        for name in names {
            attacker.deploy_with(name, "limits.deadline_ms=2000", function("misbehave")).await;
        }
        let calls = names.iter().cycle().take(600).map(|name| {
            let path = format!("/fn/{name}/sleep");
            let attacker = &attacker;
            async move { with_header(attacker, &path, ("weir-priority", "1")).await.status }
        });
        let statuses: BTreeSet<u16> = futures::future::join_all(calls).await.into_iter().collect();
        assert!(statuses.is_subset(&BTreeSet::from([429, 503, 504])), "{statuses:?}");
    })
    .await;
}
