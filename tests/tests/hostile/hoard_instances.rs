//! Calls that sleep in every instance that the tenant gets.

use super::{attack, node};
use tokio_util::task::AbortOnDropHandle;
use weir_tests::{TestClient, eventually, function};
use weir_types::ErrorCode;

/// Instances of all tenants. The attack needs more calls than this.
const INSTANCES_MAX: usize = 8;

#[tokio::test(flavor = "multi_thread")]
async fn hoarded_instances_affect_no_other_tenant() {
    attack(node().set("sandbox.instances_max", INSTANCES_MAX), async |attacker| {
        let limits = "limits.deadline_ms=600000&limits.concurrency_max=1000";
        for name in ["a", "b"] {
            attacker.deploy_with(name, limits, function("misbehave")).await;
        }
        attacker.deploy_with("late", "limits.deadline_ms=1000", function("misbehave")).await;
        let calls = (0..4 * INSTANCES_MAX).map(|number| sleep(&attacker, ["a", "b"][number % 2]));
        let hoarded: Vec<_> = calls.collect();
        // The tenant uses up its share, and its further calls wait.
        eventually("the calls to wait", async || {
            let waits = attacker.metric("weir_instance_waits_total", "scope=\"tenant\"").await;
            (waits >= (3 * INSTANCES_MAX) as f64).then_some(())
        })
        .await;
        let refused = attacker.get("/fn/late/behave").await;
        assert_eq!((refused.status, refused.code()), (504, ErrorCode::DeadlineExceeded));
        assert!(refused.text().contains("instances_max of [node.tenants]"), "{}", refused.text());
        drop(hoarded);
        eventually("a free instance", async || {
            (attacker.get("/fn/late/behave").await.status == 200).then_some(())
        })
        .await;
    })
    .await;
}

/// Calls a function that sleeps for longer than its deadline, until the call is dropped.
fn sleep(client: &TestClient, name: &str) -> AbortOnDropHandle<()> {
    let client = client.clone();
    let path = format!("/fn/{name}/sleep");
    AbortOnDropHandle::new(tokio::spawn(async move {
        let _ = client.try_get(&path).await;
    }))
}
