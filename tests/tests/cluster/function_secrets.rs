//! Secrets of functions in a cluster.

use weir_tests::{Etcd, TestCluster, TestNode, eventually, function};
use weir_types::ErrorCode;
use weir_types::api::Secret;

/// Makes a key file in `folder`.
fn key_file(folder: &tempfile::TempDir, name: &str) -> String {
    let path = folder.path().join(name).display().to_string();
    let status = std::process::Command::new(TestNode::builder().binary())
        .args(["secrets", "new-key", &path])
        .status()
        .unwrap();
    assert!(status.success());
    path
}

/// A value is usable on every node as soon as it is stored. A node with another key says so.
#[tokio::test]
async fn secret_is_usable_on_every_node_that_has_the_key() {
    if !Etcd::is_installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let key = key_file(&folder, "key");
    let cluster = TestCluster::builder().set("sandbox.secrets.key_file", &key).start(2).await;
    let [a, b] = &cluster.nodes[..] else { unreachable!("there are two") };
    for round in 0..5 {
        let name = format!("key-{round}");
        let stored: Secret = a.put(&format!("/v1/secrets/{name}"), "first").await.ok().json();
        b.deploy_with(&format!("f{round}"), &format!("secrets.MARK={name}&reuse=true"), function("stamp"))
            .await;
        for node in [b, a] {
            let answer = node.get(&format!("/fn/f{round}")).await.ok();
            assert!(answer.text().starts_with("first "), "{answer:?}");
        }
        let again: Secret = b.put(&format!("/v1/secrets/{name}"), "second").await.ok().json();
        assert_eq!(again.version.0, stored.version.0 + 1);
        for node in [a, b] {
            eventually("the new value", async || {
                let answer = node.get(&format!("/fn/f{round}")).await.ok();
                answer.text().starts_with("second ").then_some(())
            })
            .await;
        }
    }

    let other_key = key_file(&folder, "other-key");
    let wrong = cluster.node().set("sandbox.secrets.key_file", &other_key).start().await;
    let refused = eventually("a call on the node with another key", async || {
        let answer = wrong.get("/fn/f0").await;
        (answer.status == 503).then_some(answer)
    })
    .await;
    assert_eq!(refused.code(), ErrorCode::SecretUnavailable);
    let secret: Secret = wrong.get("/v1/secrets/key-0").await.ok().json();
    assert!(!secret.usable);
    let refused = wrong.put("/v1/secrets/new", "value").await.refusal();
    assert_eq!(refused.code, ErrorCode::Conflict);
    assert!(refused.text.contains(&secret.key_id), "{refused:?}");
    assert!(wrong.log().contains("a key that this node lacks"), "{}", wrong.log());
}

#[tokio::test]
async fn node_without_a_key_file_stores_no_secret() {
    if !Etcd::is_installed() {
        return;
    }
    let cluster = TestCluster::builder().start(1).await;
    let refused = cluster.nodes[0].put("/v1/secrets/KEY", "value").await.refusal();
    assert_eq!((refused.status, refused.code), (409, ErrorCode::Conflict));
    assert!(refused.text.contains("weir secrets new-key FILE"), "{refused:?}");
    assert!(!cluster.nodes[0].data().join("secrets.key").exists());
}
