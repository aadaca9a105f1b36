//! Uploads and objects until every quota of storage is used up.

use super::{attack, node};
use weir_tests::{function, with_custom_section};

#[tokio::test(flavor = "multi_thread")]
async fn filled_storage_affects_no_other_tenant() {
    let node =
        node().set("tenants.attacker.stored_bytes_max", 1 << 20).set("objects.tenant_bytes_max", 4 << 20);
    attack(node, async |attacker| {
        let component = function("hello");
        let refused = |statuses: &[u16], full: u16| {
            assert!(statuses.iter().all(|status| [200, 202, full].contains(status)), "{statuses:?}");
            assert!(statuses.contains(&full), "{statuses:?}");
        };
        let mut statuses = Vec::new();
        // Under other names, because a deploy removes old versions of the same name.
        for number in 0..64 {
            let component = with_custom_section(&component, &format!("{number}"));
            let deployed = attacker.try_deploy(&format!("f{number}"), "", component).await;
            statuses.push(deployed.map_or_else(|error| error.status, |_| 200));
            if statuses.ends_with(&[507]) {
                break;
            }
        }
        refused(&statuses, 507);
        let mut statuses = Vec::new();
        for number in 0..8 {
            statuses.push(attacker.put(&format!("/v1/objects/o{number}"), vec![0; 1 << 20]).await.status);
        }
        refused(&statuses, 507);
    })
    .await;
}
