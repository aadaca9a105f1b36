//! Authentication between nodes.

use weir_tests::{Etcd, TestCluster, write_private};
use weir_types::ErrorCode;

#[tokio::test]
async fn nodes_with_a_different_secret_are_rejected() {
    if !Etcd::is_installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let ours = folder.path().join("ours");
    let theirs = folder.path().join("theirs");
    write_private(&ours, "0123456789abcdef0123\n");
    write_private(&theirs, "fedcba9876543210fedc\n");
    let cluster = TestCluster::builder().set("cluster.secret_file", ours.display()).start(2).await;
    let node = &cluster.nodes[0];
    for (header, value) in [("weir-grant", "{}"), ("weir-cluster-secret", "0123456789abcdef0123")] {
        let request = node.request(reqwest::Method::POST, "/cluster/v1/link").header(header, value);
        let status = request.send().await.unwrap().status();
        // With the secret, an invalid message ends the link; without the secret, no link is
        // created.
        assert_eq!(status.as_u16() == 401, header == "weir-grant", "{header}");
    }
    let call = node.request(reqwest::Method::GET, "/fn/f").header("weir-grant", "{}");
    let answer = call.send().await.unwrap();
    assert_eq!(answer.status(), 401);
    let body: weir_types::api::ErrorBody = answer.json().await.unwrap();
    assert_eq!(body.code, ErrorCode::Unauthorized);

    // A node with another secret could register in the datastore and become an unreachable
    // dispatcher.
    let stranger = cluster.node().set("cluster.secret_file", theirs.display()).try_start().await;
    let Err(log) = stranger else { panic!("the node started") };
    assert!(log.contains("has another secret") && log.contains("--secret-file"), "{log}");
    assert_eq!(node.status().await.cluster.unwrap().nodes.len(), 2);
}

/// Without a secret, any client could pose as a node, and nodes need no tokens.
#[tokio::test]
async fn nodes_with_tokens_do_not_start_without_a_secret() {
    if !Etcd::is_installed() {
        return;
    }
    let cluster = TestCluster::builder().start(1).await;
    let Err(log) = cluster.node().tokens(&["0123456789abcdef"]).try_start().await else {
        panic!("the node started")
    };
    assert!(log.contains("--secret-file"), "{log}");
}
