//! Functions that overflow their stack.

use super::{attack, flood, node};
use std::collections::BTreeSet;
use weir_tests::function;

#[tokio::test(flavor = "multi_thread")]
async fn overflown_stacks_affect_no_other_tenant() {
    attack(node(), async |attacker| {
        attacker.deploy("bad", function("misbehave")).await;
        assert_eq!(flood(&attacker, "/fn/bad/recurse", 16, 4).await, BTreeSet::from([500]));
    })
    .await;
}
