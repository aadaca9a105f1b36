//! Functions that compute without end, more at once than the machine has processors.

use super::{attack, flood, node};
use std::collections::BTreeSet;
use weir_tests::function;

#[tokio::test(flavor = "multi_thread")]
async fn spinning_functions_affect_no_other_tenant() {
    attack(node(), async |attacker| {
        attacker.deploy_with("bad", "limits.cpu_time_ms=300", function("misbehave")).await;
        assert_eq!(flood(&attacker, "/fn/bad/spin", 12, 1).await, BTreeSet::from([504]));
    })
    .await;
}
