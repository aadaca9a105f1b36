//! Models in folders and buckets in Triton's layout: `weir models sync` and `weir up --model-repository`.

use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, SystemTime};
use tempfile::TempDir;
use tokio::process::Command;
use weir_tests::{S3, TestNode, eventually, eventually_within};
use weir_types::Version;
use weir_types::api::{Model, ModelVersion};

/// A model repository.
struct Repository(TempDir);

impl Repository {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, file: &str, contents: impl AsRef<[u8]>) {
        let path = self.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, contents).unwrap();
    }

    /// Runs `weir models sync --json` and returns its exit status and the models of its report.
    async fn sync(&self, node: &TestNode) -> (Option<i32>, Vec<Value>) {
        let mut command = Command::new(node.binary());
        command.args(["models", "sync", "--json"]).arg(self.path()).kill_on_drop(true);
        command.env("WEIR_URL", node.url("").as_str().trim_end_matches('/'));
        let output = command.output().await.unwrap();
        let report: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
        (output.status.code(), report["models"].as_array().unwrap().clone())
    }
}

/// A fake model with an output `scores` of three elements, which differs from those of other times.
fn fake_model(run_time_ms: f64) -> String {
    let port = |name: &str, width: u32| json!({"name": name, "datatype": "FP32", "shape": [null, width]});
    let model = json!({
        "run_time_ms": {"1": run_time_ms},
        "resident_bytes": 1_000,
        "signature": {"inputs": [port("x", 4)], "outputs": [port("scores", 3)]},
    });
    model.to_string()
}

async fn model(node: &TestNode, name: &str) -> Option<Model> {
    let answer = node.get(&format!("/v1/models/{name}")).await;
    (answer.status == 200).then(|| answer.json())
}

const BIRDS: &str = r#"
name: "birds"
platform: "onnxruntime_onnx"
max_batch_size: 8
output [ { name: "scores" data_type: TYPE_FP32 dims: [ 3 ] label_filename: "birds.txt" } ]
version_policy: { latest { num_versions: 2 } }
dynamic_batching { max_queue_delay_microseconds: 150 }
"#;

#[tokio::test]
async fn repository_is_pushed_once_with_its_versions_and_settings() {
    let node = TestNode::builder().set("models.backend", "fake").start().await;
    let repository = Repository::new();
    for (version, time_ms) in [(1, 1.0), (2, 2.0), (5, 5.0)] {
        repository.write(&format!("birds/{version}/model.onnx"), fake_model(time_ms));
    }
    repository.write("birds/config.pbtxt", BIRDS);
    repository.write("birds/birds.txt", "crow\ngull\nwren\n");
    repository.write("plain/1/model.onnx", fake_model(0.5));
    let (status, models) = repository.sync(&node).await;
    assert_eq!(status, Some(0), "{models:?}");
    let pushed = |of: &Value| (of["name"].clone(), of["pushed"].clone(), of["unchanged"].clone());
    let none = json!([]);
    assert_eq!(pushed(&models[0]), (json!("birds"), json!([2, 5]), none.clone()));
    assert_eq!(pushed(&models[1]), (json!("plain"), json!([1]), none.clone()));

    let birds = model(&node, "birds").await.unwrap();
    assert_eq!(birds.versions, [Version(2), Version(5)]);
    assert_eq!(birds.active.version, Version(5));
    let batching = &birds.active.manifest.batching;
    assert_eq!((batching.size_max, batching.queue_delay_us_max), (Some(8), 150));
    let labels = &birds.active.manifest.labels;
    assert_eq!(labels.get("scores").and_then(|labels| labels.get(1)), Some("gull"), "{labels:?}");

    let (status, models) = repository.sync(&node).await;
    assert_eq!(status, Some(0), "{models:?}");
    assert_eq!(pushed(&models[0]), (json!("birds"), none.clone(), json!([2, 5])));
    assert_eq!(pushed(&models[1]), (json!("plain"), none, json!([1])));
}

#[tokio::test]
async fn changed_and_wrong_models_are_reported_and_the_others_pushed() {
    let node = TestNode::builder().set("models.backend", "fake").start().await;
    let repository = Repository::new();
    repository.write("changed/1/model.onnx", fake_model(1.0));
    repository.write("slots/1/model.onnx", fake_model(1.0));
    assert_eq!(repository.sync(&node).await.0, Some(0));

    repository.write("changed/1/model.onnx", fake_model(2.0));
    repository.write("slots/config.pbtxt", "instance_group { count: 3 }");
    repository.write("engine/1/model.onnx", "");
    repository.write("engine/config.pbtxt", "platform: \"tensorrt_plan\"");
    repository.write("text/1/model.onnx", "not a model");
    repository.write("zebra/1/model.onnx", fake_model(3.0));
    let (status, models) = repository.sync(&node).await;
    assert_eq!(status, Some(1), "{models:?}");
    let errors: Vec<_> = models.iter().map(|model| model["errors"][0].as_str().unwrap_or_default()).collect();
    for (error, expected) in errors.iter().zip([
        "the node has another file for it",
        "platform is \"tensorrt_plan\"",
        "the node has other settings for it",
        "cannot push text",
        "",
    ]) {
        assert!(error.contains(expected) && error.is_empty() == expected.is_empty(), "{errors:?}");
    }
    let version: ModelVersion = node.get("/v1/models/changed/versions/1").await.ok().json();
    assert_eq!(version.digest, weir_types::ContentHash::from_content(fake_model(1.0).as_bytes()));
    assert!(model(&node, "zebra").await.is_some());
}

#[tokio::test]
async fn changed_settings_take_effect_with_the_next_version() {
    let node = TestNode::builder().set("models.backend", "fake").start().await;
    let repository = Repository::new();
    let all = "version_policy { all { } }";
    repository.write("m/1/model.onnx", fake_model(1.0));
    repository.write("m/config.pbtxt", all);
    assert_eq!(repository.sync(&node).await.0, Some(0));
    repository.write("m/config.pbtxt", format!("{all} instance_group {{ count: 3 }}"));
    let (status, models) = repository.sync(&node).await;
    assert_eq!(status, Some(1));
    let error = models[0]["errors"][0].as_str().unwrap();
    assert!(error.contains("other settings") && error.contains("add the model as version 2/"), "{error}");
    repository.write("m/2/model.onnx", fake_model(1.0));
    let (status, models) = repository.sync(&node).await;
    assert_eq!(status, Some(0), "{models:?}");
    assert_eq!(model(&node, "m").await.unwrap().active.manifest.slots, Some(3));
}

#[tokio::test]
async fn versions_that_a_node_does_not_keep_are_not_pushed_again() {
    let builder = TestNode::builder().set("models.backend", "fake").set("models.versions_keep", 2);
    let node = builder.start().await;
    let repository = Repository::new();
    repository.write("m/config.pbtxt", "version_policy { all { } }");
    for version in 1..=4_u32 {
        repository.write(&format!("m/{version}/model.onnx"), fake_model(f64::from(version)));
    }
    let (status, models) = repository.sync(&node).await;
    assert_eq!(status, Some(0), "{models:?}");
    let kept = model(&node, "m").await.unwrap().versions;
    let (status, models) = repository.sync(&node).await;
    assert_eq!((status, &models[0]["pushed"]), (Some(0), &json!([])), "{models:?}");
    assert_eq!(model(&node, "m").await.unwrap().versions, kept);
    assert!(kept.len() < 4 && kept.contains(&Version(4)), "{kept:?}");
}

#[tokio::test]
async fn node_serves_its_repository_and_new_versions() {
    let repository = Repository::new();
    repository.write("m/1/model.onnx", fake_model(1.0));
    let builder = TestNode::builder().set("models.backend", "fake");
    let node = builder.argument("--model-repository").argument(repository.path()).start().await;
    let active = async |version| model(&node, "m").await.filter(|model| model.active.version == version);
    eventually("the model of the repository", async || active(Version(1)).await).await;
    repository.write("m/2/model.onnx", fake_model(2.0));
    repository.write("later/7/model.onnx", fake_model(3.0));
    eventually("the new version", async || active(Version(2)).await).await;
    let later = eventually("the new model", async || model(&node, "later").await).await;
    assert_eq!(later.active.version, Version(7));
}

/// The report of a changed version advises to remove the version from the node.
#[tokio::test]
async fn removed_version_is_pushed_again_by_a_node_that_watches() {
    let repository = Repository::new();
    repository.write("m/1/model.onnx", fake_model(1.0));
    let builder = TestNode::builder().set("models.backend", "fake");
    let node = builder.argument("--model-repository").argument(repository.path()).start().await;
    let digest = async || model(&node, "m").await.map(|model| model.active.digest);
    eventually("the model of the repository", digest).await;
    let changed = fake_model(2.0);
    repository.write("m/1/model.onnx", &changed);
    eventually("the error about the changed version", async || {
        node.log().contains("the node has another file for it").then_some(())
    })
    .await;
    node.send(node.request(reqwest::Method::DELETE, "/v1/models/m/versions/1")).await.ok();
    let pushed = weir_types::ContentHash::from_content(changed.as_bytes());
    // Any change makes the node look again at once.
    repository.write("other/1/model.onnx", fake_model(3.0));
    eventually("the changed version", async || digest().await.filter(|now| *now == pushed)).await;
}

#[tokio::test]
async fn missing_repository_is_a_usage_error() {
    let builder = TestNode::builder();
    let mut command = Command::new(builder.binary());
    command.args(["up", "--model-repository", "/nowhere/models"]).kill_on_drop(true);
    let output = command.output().await.unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("--model-repository /nowhere/models: not a folder"), "{text}");
}

/// Longest time until a node has pushed a change of a bucket: it lists the bucket every ten seconds, and
/// waits until nothing has changed for as long.
const BUCKET_PATIENCE: Duration = Duration::from_secs(90);

/// Writes an object, as of some time ago.
fn put(s3: &S3, path: &str, contents: impl AsRef<[u8]>) {
    let path = s3.folder().join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, contents).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(60)).unwrap();
}

/// Runs `weir models sync --json` with a repository at `address`.
async fn sync(node: &TestNode, address: &str, s3: &S3) -> (Option<i32>, Value, String) {
    let mut command = Command::new(node.binary());
    command.args(["models", "sync", "--json", address]).envs(s3.environment()).kill_on_drop(true);
    command.env("WEIR_URL", node.url("").as_str().trim_end_matches('/'));
    let output = command.output().await.unwrap();
    let report = serde_json::from_slice(&output.stdout).unwrap_or_default();
    (output.status.code(), report, String::from_utf8_lossy(&output.stderr).into_owned())
}

/// The same repository is pushed to one node from a bucket, and to another one from a folder.
#[tokio::test]
async fn bucket_is_pushed_like_a_folder() {
    let s3 = S3::start().await;
    for (version, time_ms) in [(1, 1.0), (2, 2.0), (5, 5.0)] {
        put(&s3, &format!("birds/{version}/model.onnx"), fake_model(time_ms));
    }
    put(&s3, "birds/config.pbtxt", BIRDS);
    put(&s3, "birds/birds.txt", "crow\ngull\nwren\n");
    put(&s3, "birds/.2/model.onnx", fake_model(9.0));
    put(&s3, "plain/1/model.onnx", fake_model(0.5));
    put(&s3, "text/1/model.onnx", "not a model");
    put(&s3, "engine/1/model.onnx", "");
    put(&s3, "engine/config.pbtxt", "platform: \"tensorrt_plan\"");
    put(&s3, "large/1/model.onnx", fake_model(1.0));
    put(&s3, "large/config.pbtxt", vec![b' '; (1 << 20) + 1]);
    put(&s3, "empty/readme.txt", "");
    let start = async || TestNode::builder().set("models.backend", "fake").start().await;
    let [node, other] = [start().await, start().await];
    let (status, report, text) = sync(&node, &s3.url(), &s3).await;
    assert_eq!(status, Some(1), "{text}");
    let (_, expected, _) = sync(&other, s3.folder().to_str().unwrap(), &s3).await;
    let address = s3.url();
    let expected = expected.to_string().replace(s3.folder().to_str().unwrap(), &address);
    assert_eq!(report, serde_json::from_str::<Value>(&expected).unwrap());
    let failed = report["models"].as_array().unwrap().iter().filter(|model| !model["errors"].is_null());
    assert_eq!(failed.count(), 4, "{report}");
    assert!(report.to_string().contains(&format!("{address}/large/config.pbtxt has more than")), "{report}");

    let birds = model(&node, "birds").await.unwrap();
    assert_eq!((birds.versions, birds.active.version), (vec![Version(2), Version(5)], Version(5)));
    let labels = &birds.active.manifest.labels;
    assert_eq!(labels.get("scores").and_then(|labels| labels.get(1)), Some("gull"), "{labels:?}");
    assert_eq!(
        [s3.reads("birds/1/model.onnx"), s3.reads("birds/5/model.onnx")],
        [0, 1],
        "only what is pushed"
    );

    put(&s3, "plain/1/model.onnx", fake_model(0.7));
    let (_, report, _) = sync(&node, &s3.url(), &s3).await;
    assert!(report.to_string().contains("the node has another file for it"), "{report}");
}

/// The node is restarted, too: it remembers the hashes of the versions.
#[tokio::test]
async fn node_serves_a_bucket_and_does_not_read_unchanged_objects_again() {
    let s3 = S3::start().await;
    put(&s3, "m/1/model.onnx", fake_model(1.0));
    put(&s3, "m/config.pbtxt", "version_policy { all { } }");
    let mut builder = TestNode::builder().set("models.backend", "fake");
    for (name, value) in s3.environment() {
        builder = builder.env(name, value);
    }
    let mut node = builder.argument("--model-repository").argument(s3.url()).start().await;
    for version in 1..=3 {
        let read = format!("m/{version}/model.onnx");
        if version > 1 {
            put(&s3, &read, fake_model(f64::from(version)));
        }
        eventually_within(BUCKET_PATIENCE, "the version of the bucket", async || {
            model(&node, "m").await.filter(|model| model.active.version == Version(version))
        })
        .await;
        if version == 2 {
            node = node.stop().await.start().await;
        }
    }
    let reads = [1, 2, 3].map(|version| s3.reads(&format!("m/{version}/model.onnx")));
    assert_eq!(reads, [1; 3]);
    // Settings are read once by each process.
    assert_eq!(s3.reads("m/config.pbtxt"), 2);
    let mirror = node.data().join("model-repository/files/m/3/model.onnx");
    eventually("the end of the push, which removes the contents", async || {
        std::fs::read(&mirror).unwrap().iter().all(|byte| *byte == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn unusable_bucket_is_reported_with_advice() {
    let s3 = S3::start().await;
    let mut command = Command::new(TestNode::builder().binary());
    let output =
        command.args(["up", "--model-repository", "s3://"]).kill_on_drop(true).output().await.unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("s3:// cannot be opened") && text.contains("s3://BUCKET/PREFIX"), "{text}");
    let node = TestNode::builder().set("models.backend", "fake").start().await;
    let (status, _, text) = sync(&node, "s3://other-bucket/models", &s3).await;
    assert_eq!(status, Some(3), "{text}");
    assert!(text.contains("cannot read s3://other-bucket/models") && text.contains("AWS_ENDPOINT"), "{text}");
}
