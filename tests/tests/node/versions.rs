//! Function versions: immutable, numbered, one active.

use weir_tests::{TestNode, function, with_custom_section};
use weir_types::api::{Deployed, FunctionVersion};
use weir_types::{ErrorCode, Version};

async fn three_versions() -> TestNode {
    let node = TestNode::start().await;
    for n in 1..=3 {
        let deployed =
            node.deploy_with("f", &format!("outbound_hosts=n{n}.example"), function("hello")).await;
        assert_eq!(deployed.function.version, Version(n));
    }
    node
}

async fn active(node: &TestNode) -> (Version, String) {
    let active = node.function("f").await.unwrap().active;
    (active.version, active.manifest.outbound_hosts.concat())
}

#[tokio::test]
async fn rollback_changes_the_active_version() {
    let node = three_versions().await;
    assert_eq!(active(&node).await, (Version(3), "n3.example".into()));
    assert!(node.roll_back("f", None).await.is_ok());
    assert_eq!(active(&node).await, (Version(2), "n2.example".into()));
    assert!(node.roll_back("f", Some(1)).await.is_ok());
    assert_eq!(active(&node).await, (Version(1), "n1.example".into()));
    assert_eq!(node.roll_back("f", None).await.code(), ErrorCode::VersionNotFound);
    assert!(node.roll_back("f", Some(3)).await.is_ok());
    assert_eq!(active(&node).await, (Version(3), "n3.example".into()));
    // An empty body is equal to `{}`.
    assert!(node.post("/v1/functions/f/rollback", "").await.is_ok());
    assert_eq!(active(&node).await, (Version(2), "n2.example".into()));
}

#[tokio::test]
async fn deploy_after_a_rollback_creates_a_new_version() {
    let node = three_versions().await;
    node.roll_back("f", Some(1)).await.ok();
    let deployed = node.deploy_with("f", "outbound_hosts=n4.example", function("hello")).await;
    assert_eq!(deployed.function.version, Version(4));
    assert_eq!(active(&node).await, (Version(4), "n4.example".into()));
}

#[tokio::test]
async fn new_component_replaces_the_old_one_under_its_name() {
    let node = TestNode::start().await;
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
    assert_eq!(active(&node).await, (Version(1), "n1.example".into()));
    // Version numbers are never reused.
    node.delete("/v1/functions/f/versions/3").await.ok();
    assert_eq!(
        node.deploy_with("f", "outbound_hosts=n9.example", function("hello")).await.function.version,
        Version(4)
    );
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

#[tokio::test]
async fn values_of_environment_variables_are_never_returned() {
    let node = TestNode::start().await;
    let deployed = node.put("/v1/functions/f?env.TOKEN=s3cret&env.MODE=s3cret", function("hello")).await.ok();
    let paths =
        ["/v1/functions", "/v1/functions/f", "/v1/functions/f/versions", "/v1/functions/f/versions/1"];
    let mut texts = vec![deployed.text().to_owned()];
    for path in paths {
        texts.push(node.get(path).await.ok().text().to_owned());
    }
    texts.push(node.weir(&["functions", "show", "f"]).await.unwrap());
    texts.push(node.weir(&["--json", "functions", "show", "f"]).await.unwrap());
    for text in texts {
        assert!(text.contains("TOKEN") && !text.contains("s3cret"), "{text}");
    }
    assert_eq!(node.function("f").await.unwrap().active.env_names, ["MODE", "TOKEN"]);
    assert!(node.weir(&["functions", "show", "f"]).await.unwrap().contains("env          MODE, TOKEN\n"));
}

/// The number of files in a folder of the node's data.
fn files(node: &TestNode, folder: &str) -> usize {
    std::fs::read_dir(node.data().join(folder)).unwrap().count()
}

#[tokio::test]
async fn deploys_remove_the_oldest_versions_with_their_files() {
    let node = TestNode::builder().set("sandbox.versions_keep", 2).start().await;
    let component = |n: u32| with_custom_section(&function("hello"), &n.to_string());
    let mut removed = Vec::new();
    for n in 1..=5 {
        let deployed: Deployed = node.deploy("f", component(n)).await;
        removed.push(deployed.removed_versions);
    }
    let expected = [vec![], vec![], vec![Version(1)], vec![Version(2)], vec![Version(3)]];
    assert_eq!(removed, expected);
    assert_eq!(node.function("f").await.unwrap().versions, [Version(4), Version(5)]);
    assert_eq!(files(&node, "components"), 2);
    assert_eq!(node.get("/fn/f/ann").await.text(), "hello, ann\n");
    // The active version stays, however old.
    node.roll_back("f", Some(4)).await.ok();
    node.deploy("g", component(4)).await;
    assert!(
        node.deploy("f", component(4)).await.removed_versions.is_empty(),
        "an equal deploy removed versions"
    );
    assert_eq!(node.deploy("f", component(6)).await.removed_versions, [Version(4)]);
    assert_eq!(files(&node, "components"), 3, "function g has the component of version 4");
}

#[tokio::test]
async fn versions_that_a_manifest_names_are_kept() {
    let node = TestNode::builder().set("sandbox.versions_keep", 1).start().await;
    let component = |n: u32| with_custom_section(&function("echo-tensor"), &n.to_string());
    for n in 1..=3 {
        node.deploy("f", component(n)).await;
    }
    node.deploy_with("user", "models=f:3", function("infer")).await;
    let deployed = node.deploy("f", component(4)).await;
    assert_eq!(deployed.removed_versions, []);
    assert_eq!(node.function("f").await.unwrap().versions, [Version(3), Version(4)]);
    node.delete("/v1/functions/user").await.ok();
    assert_eq!(node.deploy("f", component(5)).await.removed_versions, [Version(3), Version(4)]);
}

#[tokio::test]
async fn zero_keeps_all_versions() {
    let node = TestNode::builder().set("sandbox.versions_keep", 0).start().await;
    for n in 1..=12 {
        let component = with_custom_section(&function("hello"), &n.to_string());
        assert_eq!(node.deploy("f", component).await.removed_versions, []);
    }
    assert_eq!(node.function("f").await.unwrap().versions.len(), 12);
}
