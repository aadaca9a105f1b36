//! Functions that write as much as they can into their log.

use super::{attack, flood, node};
use std::collections::BTreeSet;
use weir_tests::function;

#[tokio::test(flavor = "multi_thread")]
async fn flooded_logs_affect_no_other_tenant() {
    attack(node(), async |attacker| {
        attacker.deploy_with("bad", "limits.log_bytes=16777216", function("misbehave")).await;
        assert_eq!(flood(&attacker, "/fn/bad/log", 8, 2).await, BTreeSet::from([200]));
    })
    .await;
}
