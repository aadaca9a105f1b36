//! Functions that make tensors until their limit, many at once.

use super::{attack, flood, node};
use weir_tests::function;

#[tokio::test(flavor = "multi_thread")]
async fn hoarded_tensors_affect_no_other_tenant() {
    attack(node(), async |attacker| {
        attacker.deploy_with("bad", "limits.tensor_bytes=67108864", function("misbehave")).await;
        let statuses = flood(&attacker, "/fn/bad/tensors", 6, 2).await;
        assert!(!statuses.contains(&200), "{statuses:?}");
    })
    .await;
}
