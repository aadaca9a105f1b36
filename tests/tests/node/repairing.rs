//! Lost and damaged files: reported for their function or model only, and repaired by deploying or
//! pushing again.

use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use weir_tests::{TestNode, digits, eventually, function, model};
use weir_types::{ContentHash, ErrorCode};

fn truncate(path: &Path) {
    fs::File::options().write(true).open(path).unwrap().set_len(1_000).unwrap();
}

/// Artefact files of a stopped node.
fn artefacts(data: &Path) -> Vec<PathBuf> {
    let folders = fs::read_dir(data.join("artefacts")).unwrap();
    folders
        .flat_map(|folder| fs::read_dir(folder.unwrap().path()).unwrap())
        .map(|file| file.unwrap().path())
        .collect()
}

async fn compiled(node: &TestNode) -> f64 {
    node.metric("weir_cold_starts_total", "cause=\"compile\"").await
}

#[tokio::test]
async fn damaged_component_is_repaired_by_redeploying() {
    let node = TestNode::start().await;
    node.deploy("f", function("hello")).await;
    let builder = node.stop().await;
    artefacts(builder.data()).iter().for_each(|path| fs::remove_file(path).unwrap());
    let blob =
        builder.data().join("components").join(ContentHash::from_content(&function("hello")).to_string());
    truncate(&blob);
    let node = builder.start().await;
    for _ in 0..3 {
        // Not the caller's error.
        let refusal = node.get("/fn/f").await.refusal();
        assert_eq!((refusal.status, refusal.code), (500, ErrorCode::ComponentDamaged));
        assert!(refusal.text.contains("deploy it again"), "{}", refusal.text);
    }
    assert_eq!(compiled(&node).await, 1.0, "every call compiles it again");
    let again = node.deploy("f", function("hello")).await;
    assert!(!again.created);
    assert_eq!(node.get("/fn/f").await.ok().text(), "hello\n");
    assert_eq!(fs::read(&blob).unwrap(), function("hello"));
}

/// A compilation that outlasts its caller's deadline continues for later calls.
#[tokio::test]
async fn compilation_continues_after_the_callers_deadline() {
    let node = TestNode::start().await;
    node.deploy_with("f", "limits.deadline_ms=30", function("embed-text")).await;
    let builder = node.stop().await;
    artefacts(builder.data()).iter().for_each(|path| fs::remove_file(path).unwrap());
    let node = builder.start().await;
    let first = node.get("/fn/f").await.refusal();
    assert_eq!((first.status, first.code), (504, ErrorCode::DeadlineExceeded));
    eventually("an answer of the function itself", async || {
        let answer = node.get("/fn/f").await;
        (answer.header("weir-error") != Some("deadline-exceeded")).then_some(())
    })
    .await;
    assert_eq!(compiled(&node).await, 1.0);
}

#[tokio::test]
async fn damaged_model_is_reported_and_repaired_by_pushing_again() {
    let node = TestNode::start().await;
    node.deploy_with("infer", "models=a,b", function("infer")).await;
    node.push_model("a", 1, model("good/matmul.onnx")).await;
    let before: std::collections::BTreeSet<_> = files(&node);
    node.push_model("b", 1, model("good/add.onnx")).await;
    let pushed: Vec<_> = files(&node).difference(&before).cloned().collect();
    assert!(pushed.len() >= 2, "{pushed:?}");
    let builder = node.stop().await;
    pushed.iter().for_each(|path| fs::remove_file(path).unwrap());

    let node = builder.start().await;
    assert_eq!(node.models().await.iter().map(|model| model.active.name.as_str()).collect::<Vec<_>>(), ["a"]);
    let damaged = node.status().await.damaged;
    assert!(damaged.len() == 1 && damaged[0].starts_with("model b:1"), "{damaged:?}");
    // Other nodes may have an intact copy, so the model is unavailable instead of unknown.
    let refused = node.post("/v2/models/b/infer", "{}").await.refusal();
    assert_eq!((refused.status, refused.code), (503, ErrorCode::Unavailable), "{refused:?}");
    assert!(refused.text.contains("model b:1 cannot be read on this node"), "{refused:?}");
    let row = [1.0_f32; 4].iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
    node.post("/fn/infer/a?shape=1,4", row.clone()).await.ok();

    node.push_model("b", 1, model("good/add.onnx")).await;
    assert_eq!((node.status().await.damaged.len(), node.models().await.len()), (0, 2));
    // Damage that the start does not detect: the same push repairs every file, and a load reads all
    // files that it needs.
    let kept: Vec<_> = files(&node).difference(&before).cloned().collect();
    assert!(kept.len() >= 2, "{kept:?}");
    for path in &kept {
        truncate_to_nothing(path);
    }
    node.push_model("b", 1, model("good/add.onnx")).await;
    assert!(kept.iter().all(|path| fs::metadata(path).unwrap().len() > 0));
    node.post("/v2/repository/models/b/load", "").await.ok();
    let node = node.stop().await.start().await;
    assert_eq!((node.status().await.damaged.len(), node.models().await.len()), (0, 2));
    node.post("/v2/repository/models/b/load", "").await.ok();
}

/// Corrupt files must never produce results.
#[tokio::test]
async fn corrupt_model_files_never_produce_results() {
    let node = TestNode::start().await;
    let before = files(&node);
    node.push_model("digits", 1, digits()).await;
    let pushed: Vec<_> = files(&node).difference(&before).cloned().collect();
    let right = infer(&node).await.ok().text().to_owned();
    let mut builder = node.stop().await;
    let mut told = 0;
    for path in pushed {
        let mut bytes = fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes.get_mut(middle).into_iter().for_each(|byte| *byte ^= 0x40);
        fs::write(&path, bytes).unwrap();
        let node = builder.start().await;
        let answer = infer(&node).await;
        // Some files are read only on other devices, or never.
        if answer.status == 200 {
            assert_eq!(answer.text(), right, "{}", path.display());
        } else if node.log().contains("push the model again") {
            told += 1;
        }
        node.push_model("digits", 1, digits()).await;
        assert_eq!(infer(&node).await.ok().text(), right, "{}: the model is not repaired", path.display());
        builder = node.stop().await;
    }
    assert!(told >= 2, "the graph and its weights, at least: {told}");
}

async fn infer(node: &TestNode) -> weir_tests::Answer {
    let input = json!({"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": vec![0.5; 64]});
    node.post("/v2/models/digits/infer", json!({"inputs": [input]}).to_string()).await
}

fn files(node: &TestNode) -> std::collections::BTreeSet<PathBuf> {
    fs::read_dir(node.data().join("models")).unwrap().map(|file| file.unwrap().path()).collect()
}

fn truncate_to_nothing(path: &Path) {
    fs::write(path, "").unwrap();
}

#[tokio::test]
async fn model_profile_survives_a_restart_and_is_deleted_with_the_model() {
    let node = TestNode::start().await;
    node.deploy_with("infer", "models=m", function("infer")).await;
    node.push_model("m", 1, model("good/matmul.onnx")).await;
    node.post("/fn/infer/m?shape=1,4", vec![0; 16]).await.ok();
    let profile = async |node: &TestNode| node.models().await[0].active.profile.clone();
    let measured = profile(&node).await;
    assert!(!measured.run_time_ns.is_empty());
    let node = node.stop().await.start().await;
    assert_eq!(profile(&node).await, measured);
    node.delete("/v1/models/m").await.ok();
    node.push_model("m", 1, model("good/matmul.onnx")).await;
    let fresh = weir_types::Profile::default();
    assert_eq!(profile(&node).await, fresh, "the model has the profile of an earlier push");
    let node = node.stop().await.start().await;
    assert_eq!(profile(&node).await, fresh);
}

#[tokio::test]
async fn node_works_after_its_binary_was_replaced() {
    let node = TestNode::builder().copy_of_binary().start().await;
    fs::remove_file(node.binary()).unwrap();
    fs::write(node.binary(), "not a program").unwrap();
    node.deploy("f", function("hello")).await;
    node.push_model("m", 1, model("good/add.onnx")).await;
    assert_eq!(node.get("/fn/f").await.ok().text(), "hello\n");
}
