//! Backups while the node serves, and their restoration.

use bytes::Bytes;
use reqwest::Method;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use tokio::process::Command;
use weir_tests::{
    NodeBuilder, TestClient, TestNode, eventually, function, model, signal, with_custom_section,
};
use weir_types::ErrorCode;
use weir_types::api::InvocationStatus;

const ROW: &str = r#"{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}"#;
const WORKFLOW: &str = r#"
inputs = { x = "FP32[n, 4]" }
outputs = { y = "step" }
[steps.step]
run = "m:1"
inputs = { x = "x" }
"#;
const ACME: &str = "acme-token-0123456789";
const OTHER: &str = "other-token-0123456789";
const BACKUP: &str = "backup-token-0123456789";

/// Runs `weir restore` for the data folder of `builder`. Returns standard output, or standard error
/// if the command fails.
async fn restore(builder: &NodeBuilder, file: &Path) -> Result<String, String> {
    let mut command = Command::new(builder.binary());
    command.arg("restore").arg(file).arg("--json").arg("--data").arg(builder.data()).kill_on_drop(true);
    let output = command.output().await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// Deploys `w0`, `w1`, ... and puts an object of the same name, until it is told to stop.
struct Writer {
    /// Number of writes that the node has acknowledged.
    acknowledged: Arc<AtomicU32>,
    stop: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<()>,
}

impl Writer {
    fn start(client: TestClient) -> Self {
        let acknowledged = Arc::new(AtomicU32::new(0));
        let stop = Arc::new(AtomicBool::new(false));
        let task = tokio::spawn({
            let acknowledged = acknowledged.clone();
            let stop = stop.clone();
            async move {
                for number in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let name = format!("w{number}");
                    client.deploy(&name, with_custom_section(&function("hello"), &name)).await;
                    client.put(&format!("/v1/objects/{name}"), name).await.ok();
                    acknowledged.store(number + 1, Ordering::SeqCst);
                }
            }
        });
        Self { acknowledged, stop, task }
    }

    fn acknowledged(&self) -> u32 {
        self.acknowledged.load(Ordering::SeqCst)
    }

    async fn reach(&self, number: u32) {
        eventually("writes", async || (self.acknowledged() >= number).then_some(())).await;
    }

    async fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.unwrap();
    }
}

/// A backup is made during writes, and the data folder is lost. The restored node has every write
/// that was acknowledged before the backup, and serves calls.
#[tokio::test]
async fn restored_node_has_everything_acknowledged_before_the_backup() {
    let node = TestNode::start().await;
    node.deploy_with("f", "env.N=1", function("hello")).await;
    node.deploy_with("f", "env.N=2", function("hello")).await;
    node.deploy("echo", function("echo-http")).await;
    node.push_model("m", 1, model("good/matmul.onnx")).await;
    node.push_model("m", 2, model("good/matmul_v2.onnx")).await;
    node.put("/v1/workflows/w", WORKFLOW).await.ok();
    for alias in ["functions/f/aliases/old", "models/m/aliases/stable", "workflows/w/aliases/live"] {
        node.put(&format!("/v1/{alias}"), r#"{"version": 1}"#).await.ok();
    }
    node.put("/v1/models/m/aliases/stable", r#"{"version": 2}"#).await.ok();
    let sum = node.post("/v2/models/m/infer", ROW).await.ok().json::<Value>()["outputs"].clone();
    let large = "x".repeat(3 << 20);
    let later = node.post_later("/fn/echo", large.clone()).await;
    assert_eq!(node.ended(later.id).await.status, InvocationStatus::Done);
    let trigger = json!({"source": {"cron": "0 0 29 2 *"}, "target": {"function": "f"}});
    let trigger = node.send(node.request(Method::PUT, "/v1/triggers/t").json(&trigger)).await.ok();
    let trigger: Value = trigger.json();

    let writer = Writer::start(node.client().clone());
    writer.reach(3).await;
    let before = writer.acknowledged();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("weir.tar");
    let path = file.to_str().unwrap();
    let saved: Value = serde_json::from_str(&node.weir(&["backup", path, "--json"]).await.unwrap()).unwrap();
    assert_eq!((&saved["origin"], &saved["format"]), (&json!("node"), &json!(1)));
    writer.reach(before + 3).await;
    writer.stop().await;
    let exists = node.weir(&["backup", path]).await.unwrap_err();
    assert!(exists.contains("--force"), "{exists}");

    let builder = node.kill().await;
    fs::remove_dir_all(builder.data()).unwrap();
    let restored: Value = serde_json::from_str(&restore(&builder, &file).await.unwrap()).unwrap();
    for count in ["records", "blobs", "blob_bytes", "bytes"] {
        assert_eq!(restored[count], saved[count], "{count}");
        assert!(restored[count].as_u64().unwrap() > 0, "{restored}");
    }
    let node = builder.start().await;
    assert_eq!(node.function("f").await.unwrap().versions.len(), 2);
    node.roll_back("f", Some(1)).await.ok();
    assert_eq!(node.get("/fn/f/x").await.ok().text(), "hello, x\n");
    assert_eq!(node.post("/v2/models/m/infer", ROW).await.ok().json::<Value>()["outputs"], sum);
    assert_eq!(node.result(later.id).await.ok().text(), large);
    assert_eq!(node.get("/v1/triggers/t").await.ok().json::<Value>(), trigger);
    assert_eq!(node.get("/fn/f@old/x").await.ok().header("weir-version"), Some("1"));
    let version_of = async |path: &str| -> Value {
        let answer: Value = node.post(&format!("/v2/models/{path}/infer"), ROW).await.ok().json();
        answer["model_version"].clone()
    };
    assert_eq!(version_of("m/versions/stable").await, "2");
    assert_eq!(version_of("w/versions/live").await, "1");
    node.post("/v1/models/m/aliases/stable/rollback", "").await.ok();
    assert_eq!(version_of("m/versions/stable").await, "1", "the version before is restored too");
    for number in 0..before {
        let name = format!("w{number}");
        assert_eq!(node.get(&format!("/fn/{name}/x")).await.ok().text(), "hello, x\n");
        assert_eq!(node.get(&format!("/v1/objects/{name}/data")).await.ok().text(), name);
    }
    // Writes during the backup are there completely or not at all.
    for function in node.functions().await {
        node.get(&format!("/fn/{}", function.active.name)).await.ok();
    }
    // The node continues as any other.
    node.deploy("new", function("hello")).await;
    let node = node.stop().await.start().await;
    assert_eq!(node.get("/fn/new/x").await.ok().text(), "hello, x\n");
    let used = restore(&node.stop().await, &file).await.unwrap_err();
    assert!(used.contains("is not empty") && used.contains("--data"), "{used}");
}

/// A node started with an empty registry, because the folder had no blobs yet.
#[tokio::test]
async fn interrupted_restore_is_reported_by_the_next_start_and_restore() {
    let node = TestNode::start().await;
    node.deploy("f", function("hello")).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("weir.tar");
    node.weir(&["backup", file.to_str().unwrap()]).await.unwrap();
    let builder = TestNode::builder();
    fs::create_dir_all(builder.data()).unwrap();
    // The state of a restore that was killed before the first blob.
    fs::write(builder.data().join("registry.redb.unfinished"), "").unwrap();
    for arguments in [&[][..], &["--init"]] {
        let started = arguments.iter().fold(builder.clone(), NodeBuilder::argument);
        let Err(log) = started.try_start().await else { panic!("the node started with {arguments:?}") };
        assert!(log.contains("was interrupted") && log.contains("run `weir restore` again"), "{log}");
    }
    let refused = restore(&builder, &file).await.unwrap_err();
    assert!(refused.contains("was interrupted"), "{refused}");
    fs::remove_dir_all(builder.data()).unwrap();
    restore(&builder, &file).await.unwrap();
    assert_eq!(builder.start().await.functions().await.len(), 1);
}

/// An interrupted backup left its unfinished file.
#[tokio::test]
async fn interrupted_backup_leaves_no_file() {
    // A node that does not answer.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let files = || fs::read_dir(folder.path()).unwrap().count();
    let mut command = Command::new(TestNode::builder().binary());
    let url = format!("http://{}", silent.local_addr().unwrap());
    command.arg("backup").arg(folder.path().join("weir.tar")).args(["--url", &url]).kill_on_drop(true);
    let mut backup = command.spawn().unwrap();
    eventually("the unfinished file", async || (files() == 1).then_some(())).await;
    signal(backup.id().unwrap(), "INT");
    assert_eq!(backup.wait().await.unwrap().code(), Some(130));
    assert_eq!(files(), 0);
}

/// A component of 8 MiB.
fn large_component(name: &str) -> Bytes {
    with_custom_section(&function("hello"), &name.repeat((8 << 20) / name.len()))
}

/// The client reads the archive slowly. A model whose files are not written yet is deleted meanwhile,
/// and is in the archive nevertheless.
#[tokio::test]
async fn deletions_do_not_reach_a_running_backup() {
    let node = TestNode::start().await;
    // More than fits between the node and a client that does not read.
    for name in ["a", "b", "c", "d"] {
        node.deploy(name, large_component(name)).await;
    }
    node.push_model("m", 1, model("good/matmul.onnx")).await;
    let mut answer = node.request(Method::POST, "/v1/backup").send().await.unwrap();
    assert_eq!(answer.status(), 200);
    node.delete("/v1/models/m").await.ok();
    assert_eq!(node.post("/v1/backup", "").await.refusal().code, ErrorCode::Conflict);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("weir.tar");
    let mut bytes = Vec::new();
    while let Some(piece) = answer.chunk().await.unwrap() {
        bytes.extend_from_slice(&piece);
    }
    fs::write(&file, bytes).unwrap();
    let other = TestNode::builder();
    restore(&other, &file).await.unwrap();
    let other = other.start().await;
    other.post("/v2/models/m/infer", ROW).await.ok();
    // After the backup, the next deletion also removes the files that the backup had kept.
    node.post("/v1/backup", "").await.ok();
    node.push_model("two", 1, model("good/add.onnx")).await;
    node.delete("/v1/models/two").await.ok();
    assert_eq!(fs::read_dir(node.data().join("models")).unwrap().count(), 0);
}

/// An unusable backup leaves an empty folder, which can be used for another attempt.
#[tokio::test]
async fn unusable_backups_are_refused_with_a_reason() {
    let node = TestNode::start().await;
    node.deploy("f", function("hello")).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("weir.tar");
    node.weir(&["backup", file.to_str().unwrap()]).await.unwrap();
    let good = fs::read(&file).unwrap();
    let builder = TestNode::builder();
    let component = fs::read_dir(node.data().join("components")).unwrap().next().unwrap().unwrap().path();
    let component = fs::read(component).unwrap();
    let at = good.windows(1_000).position(|window| window == &component[..1_000]).unwrap();
    let mut damaged = good.clone();
    damaged[at + 500] ^= 1;
    let mut other_record = good.clone();
    let at = good.windows(9).position(|window| window == b"\"active\\\"" || window == b"functions").unwrap();
    other_record[at] ^= 1;
    let with_format = String::from_utf8_lossy(&good[512..1024]).replace("\"format\": 1", "\"format\": 9");
    let mut newer = good.clone();
    newer[512..1024].copy_from_slice(with_format.as_bytes());
    for (what, bytes, expected) in [
        ("damaged", damaged, "is damaged"),
        ("a changed record", other_record, "is damaged"),
        ("cut in a file", good[..at + 5_000].to_vec(), "incomplete"),
        ("without its end", good[..good.len() - 4 * 512].to_vec(), "incomplete"),
        ("of a newer version", newer, "format 9"),
        ("another file", component.clone(), "no backup of Weir"),
        ("empty", Vec::new(), "no backup of Weir"),
    ] {
        fs::write(&file, bytes).unwrap();
        let refused = restore(&builder, &file).await.unwrap_err();
        assert!(refused.contains(expected), "{what}: {refused}");
    }
    fs::write(&file, good).unwrap();
    restore(&builder, &file).await.unwrap();
    assert_eq!(builder.start().await.get("/fn/f/x").await.ok().text(), "hello, x\n");
    // The node finds the damage, and says so instead of the rest of the archive.
    let stored = fs::read_dir(node.data().join("components")).unwrap().next().unwrap().unwrap().path();
    let mut damaged = component;
    damaged[500] ^= 1;
    fs::write(stored, damaged).unwrap();
    let failed = node.weir(&["backup", file.to_str().unwrap(), "--force"]).await.unwrap_err();
    assert!(failed.contains("differs from what was stored"), "{failed}");
}

/// A backup has the data of all tenants.
#[tokio::test]
async fn backups_need_a_token_for_all_tenants() {
    let lines = [format!("{ACME} acme"), format!("{OTHER} other"), format!("{BACKUP} *backup")];
    let node = TestNode::builder().tokens(&lines.each_ref().map(String::as_str)).start().await;
    node.with_token(ACME).deploy("f", function("hello")).await;
    let refused = node.with_token(ACME).post("/v1/backup", "").await;
    assert_eq!((refused.status, refused.code()), (403, ErrorCode::Forbidden));
    assert!(refused.text().contains("*backup"), "{refused:?}");
    let backup = node.with_token(BACKUP);
    backup.post("/v1/backup", "").await.ok();
    for path in ["/v1/functions", "/fn/f", "/v1/status", "/v1/objects", "/metrics"] {
        let refused = backup.get(path).await;
        assert_eq!((refused.status, refused.code()), (403, ErrorCode::Forbidden), "{path}");
    }

    let node = TestNode::builder().tokens(&[ACME, OTHER]).start().await;
    let admin = node.with_token(ACME);
    admin.post("/v1/backup", "").await.ok();
    for (scope, status) in [("admin", 200), ("deploy", 403), ("read", 403)] {
        let body = json!({"scopes": [scope]});
        let path = format!("/v1/keys/{scope}");
        let created = admin.send(admin.request(Method::PUT, &path).json(&body)).await.json::<Value>();
        let client = admin.with_token(created["token"].as_str().unwrap());
        assert_eq!(client.post("/v1/backup", "").await.status, status, "{scope}");
    }
}
