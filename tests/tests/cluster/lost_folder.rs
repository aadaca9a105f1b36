//! A shared folder of blobs that vanishes while nodes run, as when its file system is unmounted.

use std::fs;
use std::path::Path;
use weir_tests::{Etcd, TestNode, component_of_0_1_0, eventually, with_custom_section};
use weir_types::ErrorCode;

fn component(name: &str) -> bytes::Bytes {
    with_custom_section(&component_of_0_1_0("echo-tensor"), name)
}

fn entries(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().count()
}

/// Regression test: the node created the folders of the blobs in the mount point, and stored blobs
/// there that no other node had, and that vanished with the next mount.
#[tokio::test]
async fn vanished_folder_of_blobs_is_not_filled() {
    if !Etcd::is_installed() {
        return;
    }
    let mut etcd = Etcd::start();
    etcd.listening().await;
    let parent = tempfile::tempdir().unwrap();
    let mount = parent.path().join("mount");
    let away = parent.path().join("away");
    fs::create_dir(&mount).unwrap();
    let builder = TestNode::builder()
        .argument("--datastore")
        .argument(etcd.url())
        .argument("--blobs")
        .argument(format!("file://{}", mount.display()));
    let node = builder.start().await;
    node.deploy("f", component("f")).await;
    assert!(mount.join("identity").exists());

    // An unmounted file system leaves an empty folder.
    fs::rename(&mount, &away).unwrap();
    fs::create_dir(&mount).unwrap();
    let shape = "?datatype=FP32&shape=1&ttl_ms=60000";
    for (path, body) in [
        ("/v1/functions/g".to_owned(), component("g")),
        (format!("/v1/objects/o{shape}"), bytes::Bytes::from_static(&[0; 4])),
    ] {
        let refusal = node.put(&path, body).await.refusal();
        assert_eq!(refusal.code, ErrorCode::Unavailable, "{path}: {}", refusal.text);
        let text = &refusal.text;
        assert!(text.contains("mount the folder again") && text.contains(mount.to_str().unwrap()), "{text}");
    }
    let refusal = eventually("a readiness check that fails", async || {
        let answer = node.get("/readyz").await;
        (answer.status == 503).then(|| answer.refusal())
    })
    .await;
    assert!(refusal.text.contains(mount.to_str().unwrap()), "{}", refusal.text);
    let input = r#"{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}]}"#;
    node.post("/v2/models/f/infer", input).await.ok();
    assert_eq!(entries(&mount), 0, "the node stored something in the mount point");

    // A node that starts meanwhile refuses the folder, and names the way out.
    let builder = node.stop().await;
    let Err(log) = builder.clone().try_start().await else { panic!("the node used an empty mount point") };
    assert!(log.contains("mount or bring back the folder") && log.contains("--init"), "{log}");
    assert_eq!(entries(&mount), 0);

    fs::remove_dir(&mount).unwrap();
    fs::rename(&away, &mount).unwrap();
    let node = builder.start().await;
    fs::rename(&mount, &away).unwrap();
    let refusal = node.put("/v1/functions/g", component("g")).await.refusal();
    assert_eq!(refusal.code, ErrorCode::Unavailable, "{}", refusal.text);
    assert!(!mount.exists(), "the node created the folder again");
    fs::rename(&away, &mount).unwrap();
    node.deploy("g", component("g")).await;
    eventually("readiness", async || (node.get("/readyz").await.status == 200).then_some(())).await;
}
