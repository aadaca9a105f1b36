//! Function versions: immutable, numbered, one active.

use weir_tests::{Node, function};
use weir_types::api::FunctionVersion;
use weir_types::{ErrorCode, Version};

async fn three_versions() -> Node {
    let node = Node::start().await;
    for n in 1..=3 {
        let deployed = node.deploy_with("f", &format!("env.N={n}"), function("hello")).await;
        assert_eq!(deployed.function.version, Version(n));
    }
    node
}

async fn active(node: &Node) -> (Version, String) {
    let active = node.function("f").await.unwrap().active;
    (active.version, active.manifest.env["N"].clone())
}

#[tokio::test]
async fn rollback_changes_the_active_version() {
    let node = three_versions().await;
    assert_eq!(active(&node).await, (Version(3), "3".into()));
    assert!(node.roll_back("f", None).await.is_ok());
    assert_eq!(active(&node).await, (Version(2), "2".into()));
    assert!(node.roll_back("f", Some(1)).await.is_ok());
    assert_eq!(active(&node).await, (Version(1), "1".into()));
    assert_eq!(node.roll_back("f", None).await.code(), ErrorCode::VersionNotFound);
    assert!(node.roll_back("f", Some(3)).await.is_ok());
    assert_eq!(active(&node).await, (Version(3), "3".into()));
    // An empty body is equal to `{}`.
    assert!(node.post("/v1/functions/f/rollback", "").await.is_ok());
    assert_eq!(active(&node).await, (Version(2), "2".into()));
}

#[tokio::test]
async fn deploy_after_a_rollback_creates_a_new_version() {
    let node = three_versions().await;
    node.roll_back("f", Some(1)).await.ok();
    let deployed = node.deploy_with("f", "env.N=4", function("hello")).await;
    assert_eq!(deployed.function.version, Version(4));
    assert_eq!(active(&node).await, (Version(4), "4".into()));
}

#[tokio::test]
async fn new_component_replaces_the_old_one_under_its_name() {
    let node = Node::start().await;
    node.deploy("f", function("hello")).await;
    assert_eq!(node.get("/fn/f/ann").await.text(), "hello, ann\n");
    node.deploy("f", function("echo-http")).await;
    assert_eq!(node.post("/fn/f", "echoed").await.text(), "echoed");
    node.roll_back("f", None).await.ok();
    assert_eq!(node.get("/fn/f/ann").await.text(), "hello, ann\n");
}

#[tokio::test]
async fn inactive_versions_can_be_listed_and_removed() {
    let node = three_versions().await;
    let listed: Vec<FunctionVersion> = node.get("/v1/functions/f/versions").await.ok().json();
    let listed: Vec<_> = listed.iter().map(|version| (version.version.0, version.active)).collect();
    assert_eq!(listed, [(1, false), (2, false), (3, true)]);
    assert_eq!(node.delete("/v1/functions/f/versions/3").await.code(), ErrorCode::Conflict);
    assert_eq!(node.delete("/v1/functions/f/versions/2").await.status, 204);
    assert_eq!(node.delete("/v1/functions/f/versions/2").await.code(), ErrorCode::VersionNotFound);
    assert_eq!(node.function("f").await.unwrap().versions, [Version(1), Version(3)]);
    assert_eq!(node.roll_back("f", Some(2)).await.code(), ErrorCode::VersionNotFound);
    node.roll_back("f", None).await.ok();
    assert_eq!(active(&node).await, (Version(1), "1".into()));
    // Version numbers are never reused.
    node.delete("/v1/functions/f/versions/3").await.ok();
    assert_eq!(node.deploy_with("f", "env.N=9", function("hello")).await.function.version, Version(4));
}

#[tokio::test]
async fn invalid_versions_are_rejected() {
    let node = three_versions().await;
    for bad in ["0", "-1", "x", "1.5", "99999999999"] {
        let answer = node.get(&format!("/v1/functions/f/versions/{bad}")).await;
        assert_eq!((answer.status, answer.code()), (400, ErrorCode::InvalidRequest), "{bad}");
    }
    assert_eq!(node.get("/v1/functions/f/versions/4").await.code(), ErrorCode::VersionNotFound);
    assert_eq!(node.post("/v1/functions/f/rollback", "{\"to\":1}").await.code(), ErrorCode::InvalidRequest);
    assert_eq!(node.roll_back("nobody", None).await.code(), ErrorCode::FunctionNotFound);
}
