//! Functions that take all of the memory that they may have, many at once.

use super::{attack, flood, node};
use std::collections::BTreeSet;
use weir_tests::function;

#[tokio::test(flavor = "multi_thread")]
async fn hoarded_memory_affects_no_other_tenant() {
    attack(node(), async |attacker| {
        attacker.deploy_with("bad", "limits.memory_bytes=67108864", function("misbehave")).await;
        assert_eq!(flood(&attacker, "/fn/bad/hoard", 16, 2).await, BTreeSet::from([507]));
    })
    .await;
}
