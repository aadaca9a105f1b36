//! Backups of a cluster, and their restoration into another one.

use serde_json::{Value, json};
use std::path::Path;
use tokio::process::Command;
use weir_tests::{Etcd, S3, TestCluster, TestNode, function, model};
use weir_types::api::InvocationStatus;

const ROW: &str = r#"{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [0, 0, 0, 1]}]}"#;

/// Runs `weir restore` for a cluster. Returns standard output, or standard error if the command
/// fails.
async fn restore(etcd: &Etcd, s3: &S3, file: &Path) -> Result<String, String> {
    let builder = TestNode::builder();
    let mut command = Command::new(builder.binary());
    command
        .args(["restore", "--json", "--datastore", &etcd.url(), "--blobs", &s3.url(), "--data"])
        .arg(builder.data())
        .arg(file)
        .envs(s3.environment())
        .kill_on_drop(true);
    let output = command.output().await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// etcd and the blob store are lost after the backup.
#[tokio::test]
async fn restored_cluster_has_everything_acknowledged_before_the_backup() {
    if !Etcd::is_installed() {
        return;
    }
    let mut cluster = TestCluster::builder().start(2).await;
    let [a, b] = &cluster.nodes[..] else { unreachable!("there are two") };
    a.deploy("f", function("hello")).await;
    a.deploy("echo", function("echo-http")).await;
    a.push_model("m", 1, model("good/matmul.onnx")).await;
    a.put("/v1/objects/o", "an object").await.ok();
    for alias in ["functions/f/aliases/live", "models/m/aliases/live"] {
        a.put(&format!("/v1/{alias}"), r#"{"version": 1}"#).await.ok();
    }
    let large = "x".repeat(3 << 20);
    let later = a.post_later("/fn/echo", large.clone()).await;
    assert_eq!(a.ended(later.id).await.status, InvocationStatus::Done);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("weir.tar");
    let saved = b.weir(&["backup", file.to_str().unwrap(), "--json"]).await.unwrap();
    let saved: Value = serde_json::from_str(&saved).unwrap();
    assert_eq!(saved["origin"], json!("cluster"));
    let used = restore(&cluster.etcd, &cluster.s3, &file).await.unwrap_err();
    assert!(used.contains("is not empty") && used.contains("etcdctl del --prefix"), "{used}");

    for node in cluster.nodes.drain(..) {
        node.kill().await;
    }
    cluster.etcd = Etcd::start();
    cluster.s3 = S3::start().await;
    let restored = weir_tests::eventually("etcd", async || {
        match restore(&cluster.etcd, &cluster.s3, &file).await {
            Ok(restored) => Some(restored),
            // etcd may still start.
            Err(error) if error.contains("cannot use the cluster's datastore") => None,
            Err(error) => panic!("{error}"),
        }
    })
    .await;
    let restored: Value = serde_json::from_str(&restored).unwrap();
    assert_eq!(restored["records"], saved["records"]);
    assert_eq!(restored["blobs"], saved["blobs"]);
    for _ in 0..2 {
        let node = cluster.node().start().await;
        cluster.nodes.push(node);
    }
    cluster.settle().await;
    for node in &cluster.nodes {
        assert_eq!(node.get("/fn/f/ann").await.ok().text(), "hello, ann\n");
        assert_eq!(node.get("/fn/f@live/ann").await.ok().text(), "hello, ann\n");
        node.post("/v2/models/m/infer", ROW).await.ok();
        node.post("/v2/models/m/versions/live/infer", ROW).await.ok();
        assert_eq!(node.get("/v1/objects/o/data").await.ok().text(), "an object");
        assert_eq!(node.result(later.id).await.ok().text(), large);
    }
    cluster.nodes[0].deploy("new", function("hello")).await;
    cluster.all_know("new").await;
}
