//! Functions that take as many handles as they may have.

use super::{attack, flood, node};
use std::collections::BTreeSet;
use weir_tests::function;

#[tokio::test(flavor = "multi_thread")]
async fn hoarded_handles_affect_no_other_tenant() {
    attack(node(), async |attacker| {
        attacker.deploy("bad", function("misbehave")).await;
        assert_eq!(flood(&attacker, "/fn/bad/handles", 16, 2).await, BTreeSet::from([507]));
    })
    .await;
}
