//! Names, versions and metric series without end.

use super::{attack, node};
use weir_tests::function;
use weir_types::ErrorCode;

#[tokio::test(flavor = "multi_thread")]
async fn churned_names_affect_no_other_tenant() {
    let node = node().set("tenants.attacker.names_max", 20);
    attack(node, async |attacker| {
        let component = function("hello");
        for round in 0..2 {
            for number in 0..20 {
                attacker
                    .deploy_with(&format!("f{number}"), &format!("env.ROUND={round}"), component.clone())
                    .await;
                attacker.get(&format!("/fn/f{number}")).await.ok();
            }
        }
        let refused = attacker.try_deploy("one-more", "", component.clone()).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::QuotaExceeded);
        for number in 0..20 {
            attacker.delete(&format!("/v1/functions/f{number}")).await.ok();
        }
    })
    .await;
}
