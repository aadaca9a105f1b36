//! More requests than the tenant's quota, over many connections.

use super::{attack, flood, node};
use std::collections::BTreeSet;

#[tokio::test(flavor = "multi_thread")]
async fn flooded_requests_affect_no_other_tenant() {
    let node = node().set("tenants.attacker.requests_per_s", 50);
    attack(node, async |attacker| {
        let statuses = flood(&attacker, "/v1/functions", 100, 10).await;
        assert_eq!(statuses, BTreeSet::from([200, 429]));
    })
    .await;
}
