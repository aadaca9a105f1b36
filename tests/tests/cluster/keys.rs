//! API keys in a cluster.

use reqwest::Method;
use serde_json::{Value, json};
use weir_tests::{Etcd, TestCluster, eventually, write_private};

const ACME: &str = "acme-token-0123456789";

/// A new key works on every node immediately, and on no node after its revocation.
#[tokio::test]
async fn key_works_on_every_node_until_it_is_revoked() {
    if !Etcd::is_installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    write_private(&secret, "0123456789abcdef0123\n");
    // The harness asks its own node for the cluster's status without a token.
    let cluster = TestCluster::builder().set("cluster.secret_file", secret.display()).start(1).await;
    let first = cluster.node().tokens(&["acme-token-0123456789 acme"]).start().await;
    let second = cluster.node().tokens(&["acme-token-0123456789 acme"]).start().await;
    for round in 0..5 {
        let acme = first.with_token(ACME);
        let path = format!("/v1/keys/k{round}");
        let created = acme.send(acme.request(Method::PUT, &path).json(&json!({"scopes": ["read"]}))).await;
        assert_eq!(created.status, 201, "{created:?}");
        let token = created.json::<Value>()["token"].as_str().unwrap().to_owned();
        second.with_token(&token).get("/v1/functions").await.ok();
        acme.delete(&path).await.ok();
        assert_eq!(first.with_token(&token).get("/v1/functions").await.status, 401);
        eventually("the end on the other node", async || {
            (second.with_token(&token).get("/v1/functions").await.status == 401).then_some(())
        })
        .await;
    }
    let unknown = second.with_token(&format!("weir_{:048}", 1)).get("/v1/functions").await;
    assert_eq!(unknown.status, 401);
}
