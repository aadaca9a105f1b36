//! Tests for `/v1/models`: pushing, describing and deleting models.

use serde_json::json;
use std::process::Command;
use weir_tests::{TestNode, function, model, models};
use weir_types::api::{Model, ModelPushed};
use weir_types::{ContentHash, ElementType, ErrorCode, Version};

#[tokio::test]
async fn pushed_model_is_described() {
    let node = TestNode::start().await;
    let onnx = model("good/matmul.onnx");
    let pushed = node.push_model("m", 1, onnx.clone()).await;
    assert_eq!(
        (pushed.name.as_str(), pushed.version, pushed.digest),
        ("m", Version(1), ContentHash::from_content(&onnx))
    );
    assert_eq!(pushed.model_bytes, onnx.len() as u64);
    assert!((4 * 3 * 4..4096).contains(&pushed.weight_bytes), "{}", pushed.weight_bytes);
    let port = |port: &weir_types::Port| (port.name.clone(), port.datatype, port.shape.clone());
    let signature = &pushed.signature;
    assert_eq!(
        signature.inputs.iter().map(port).collect::<Vec<_>>(),
        [("x".into(), ElementType::Fp32, vec![None, Some(4)])]
    );
    assert_eq!(
        signature.outputs.iter().map(port).collect::<Vec<_>>(),
        [("y".into(), ElementType::Fp32, vec![None, Some(3)])]
    );
    let listed = node.models().await;
    assert_eq!((listed.len(), &listed[0].active), (1, &pushed));
    let shown: weir_types::api::ModelVersion = node.get("/v1/models/m/versions/1").await.ok().json();
    assert_eq!(shown, pushed);
}

#[tokio::test]
async fn weights_in_other_files_are_pushed_with_the_model() {
    let node = TestNode::start().await;
    let folder = tempfile::tempdir().unwrap();
    let weights: Vec<u8> = (1..=6_u8).flat_map(|number| f32::from(number).to_le_bytes()).collect();
    std::fs::write(folder.path().join("weights.bin"), weights).unwrap();
    let path = folder.path().to_str().unwrap();
    let x = json!({"name": "x", "datatype": "FP32", "shape": [2, 3], "data": [1, 1, 1, 1, 1, 1]});
    let request = json!({"inputs": [x]}).to_string();
    // The weights belong to an initialiser, and to a node's attribute.
    for fixture in ["external_data", "external_attribute"] {
        std::fs::write(folder.path().join("model.onnx"), model(&format!("bad/{fixture}.onnx"))).unwrap();
        let name = fixture.replace('_', "-");
        let pushed = node.weir(&["models", "push", &name, path]).await.unwrap();
        assert!(pushed.starts_with(&format!("pushed {name}:1")), "{pushed}");
        let answer = node.post(&format!("/v2/models/{name}/infer"), request.clone()).await.ok();
        let answer: serde_json::Value = answer.json();
        assert_eq!(answer["outputs"][0]["data"], json!([2.0, 3.0, 4.0, 5.0, 6.0, 7.0]));
    }
    let archives = tempfile::tempdir().unwrap();
    let archive = archives.path().join("model.tar.gz");
    let packed = Command::new("tar").arg("-czf").arg(&archive).args(["-C", path, "."]).status();
    assert!(packed.unwrap().success());
    let pushed = node.weir(&["models", "push", "archive", archive.to_str().unwrap()]).await.unwrap();
    assert!(pushed.starts_with("pushed archive:1"), "{pushed}");
    let digest =
        async |name: &str| node.get(&format!("/v1/models/{name}")).await.ok().json::<Model>().active.digest;
    assert_eq!(digest("archive").await, digest("external-attribute").await);

    std::fs::remove_file(folder.path().join("weights.bin")).unwrap();
    let refused = node.weir(&["models", "push", "m", path]).await.unwrap_err();
    assert!(refused.contains("weights.bin, which has weight \"value\""), "{refused}");
}

#[tokio::test]
async fn model_versions_are_immutable_and_the_newest_is_default() {
    let node = TestNode::start().await;
    node.push_model("m", 1, model("good/matmul.onnx")).await;
    node.push_model("m", 1, model("good/matmul.onnx")).await;
    let other = node.try_push_model("m", 1, model("good/matmul_v2.onnx")).await.unwrap_err();
    assert_eq!((other.status, other.code), (409, ErrorCode::VersionConflict));
    node.push_model("m", 5, model("good/matmul_v2.onnx")).await;
    let next: weir_types::api::ModelVersion =
        node.put("/v1/models/m?allow_signature_change=true", model("good/add.onnx")).await.ok().json();
    assert_eq!(next.version, Version(6));
    let shown: Model = node.get("/v1/models/m").await.ok().json();
    assert_eq!(
        (shown.active.version, shown.versions),
        (Version(6), vec![Version(1), Version(5), Version(6)])
    );
    assert_eq!(node.delete("/v1/models/m/versions/5").await.status, 204);
    assert_eq!(node.get("/v1/models/m/versions/5").await.code(), ErrorCode::VersionNotFound);
    assert_eq!(node.delete("/v1/models/m").await.status, 204);
    assert_eq!(node.get("/v1/models/m").await.code(), ErrorCode::ModelNotFound);
    assert_eq!(node.delete("/v1/models/m").await.code(), ErrorCode::ModelNotFound);
}

#[tokio::test]
async fn pushes_remove_the_oldest_versions_with_their_files() {
    let node = TestNode::builder().set("models.versions_keep", 2).start().await;
    let files = || std::fs::read_dir(node.data().join("models")).unwrap().count();
    let push = async |path: &str, name: &str| -> ModelPushed {
        node.put(&format!("{path}?allow_signature_change=true"), model(name)).await.ok().json()
    };
    for name in ["good/matmul.onnx", "good/add.onnx"] {
        assert_eq!(push("/v1/models/m", name).await.removed_versions, []);
    }
    let files_of_two = files();
    let pushed = push("/v1/models/m", "good/matmul.onnx").await;
    assert_eq!((pushed.model.version, pushed.removed_versions), (Version(3), vec![Version(1)]));
    assert_eq!(files(), files_of_two, "version 3 has the files of version 1");
    assert_eq!(push("/v1/models/m", "good/matmul.onnx").await.removed_versions, [Version(2)]);
    assert!(files() < files_of_two, "the files of add.onnx are unused");
    // A version pushed under a given number stays, even if the number is the smallest.
    let pushed = push("/v1/models/m/versions/1", "good/add.onnx").await;
    assert_eq!(pushed.removed_versions, [Version(3)]);
    let shown: Model = node.get("/v1/models/m").await.ok().json();
    assert_eq!(shown.versions, [Version(1), Version(4)]);
}

#[tokio::test]
async fn push_with_another_signature_is_rejected_with_its_users() {
    let node = TestNode::start().await;
    node.push_model("m", 1, model("good/matmul.onnx")).await;
    node.deploy_with("newest", "models=m", function("infer")).await;
    node.deploy_with("pinned", "models=m:1", function("infer")).await;
    let pipe = json!({"inputs": {"x": "FP32[n, 4]"}, "outputs": {"y": "a.y"},
                      "steps": {"a": {"run": "m", "inputs": {"x": "x"}}}});
    node.put("/v1/workflows/pipe", pipe.to_string()).await.ok();

    let refused = node.put("/v1/models/m", model("good/add.onnx")).await.refusal();
    assert_eq!((refused.status, refused.code), (409, ErrorCode::SignatureChanged));
    for part in ["inputs or outputs of m:1: input ", "In use by: function newest, workflow pipe."] {
        assert!(refused.text.contains(part), "{refused:?}");
    }
    assert!(!refused.text.contains("pinned"), "{refused:?}");
    let refused = node.put("/v1/models/m/versions/9", model("good/add.onnx")).await;
    assert_eq!(refused.code(), ErrorCode::SignatureChanged);
    assert_eq!(node.models().await[0].versions, [Version(1)]);

    // The same inputs and outputs, and other weights.
    node.put("/v1/models/m/versions/5", model("good/matmul_v2.onnx")).await.ok();
    // A version that does not become the newest.
    node.put("/v1/models/m/versions/2", model("good/add.onnx")).await.ok();
    node.put("/v1/models/m?allow_signature_change=true", model("good/add.onnx")).await.ok();
    node.post("/v1/models/m/rollback", r#"{"version": 1}"#).await.ok();
    assert_eq!(node.models().await[0].versions, [1, 2, 5, 6, 7].map(Version));
}

#[tokio::test]
async fn rollback_of_a_model_pushes_an_earlier_version_again() {
    let node = TestNode::start().await;
    let old = node.push_model("m", 1, model("good/matmul.onnx")).await;
    assert_eq!(node.post("/v1/models/m/rollback", "{}").await.code(), ErrorCode::Conflict);
    node.push_model("m", 2, model("good/matmul_v2.onnx")).await;
    let back: weir_types::api::ModelVersion = node.post("/v1/models/m/rollback", "{}").await.ok().json();
    assert_eq!((back.version, back.digest, back.signature), (Version(3), old.digest, old.signature));
    let shown: Model = node.get("/v1/models/m").await.ok().json();
    assert_eq!(shown.active.version, Version(3));
    assert_eq!(
        node.weir(&["models", "rollback", "m", "--to", "2"]).await.unwrap(),
        "m:4 restores the earlier version\n"
    );
    let refused = node.post("/v1/models/m/rollback", r#"{"version": 9}"#).await;
    assert_eq!(refused.code(), ErrorCode::VersionNotFound);
    assert_eq!(node.post("/v1/models/other/rollback", "{}").await.code(), ErrorCode::ModelNotFound);
    assert_eq!(node.post("/v1/kernel-graphs/m/rollback", "{}").await.code(), ErrorCode::ModelNotFound);
}

#[tokio::test]
async fn valid_models_are_accepted_and_survive_a_restart() {
    let node = TestNode::start().await;
    for (at, path) in models("good").iter().enumerate() {
        node.push_model(&format!("m{at}"), 1, model(path)).await;
    }
    let before = node.models().await;
    assert_eq!(before.len(), models("good").len());
    let node = node.kill().await.start().await;
    assert_eq!(node.models().await, before);
}

#[tokio::test]
async fn invalid_models_are_rejected_with_their_code() {
    let node = TestNode::builder()
        .set("models.validate_memory_bytes_max", 512_u64 << 20)
        .set("models.validate_cpu_ms_max", 10_000)
        .start()
        .await;
    let bad = models("bad");
    assert!(bad.len() > 15);
    for path in bad {
        let refusal = node.try_push_model("bad", 1, model(&path)).await.expect_err(&path);
        let allowed: &[ErrorCode] = match path.trim_start_matches("bad/") {
            external if external.starts_with("external") => &[ErrorCode::ExternalData],
            "huge_dimension.onnx" | "memory_hog.onnx" => &[ErrorCode::InvalidModel, ErrorCode::ModelLimit],
            "unknown_domain.onnx" => &[ErrorCode::OperatorNotAllowed],
            _ => &[ErrorCode::InvalidModel],
        };
        assert!(allowed.contains(&refusal.code) && refusal.status == 422, "{path}: {refusal:?}");
        assert!(!refusal.text.contains("/tmp") && refusal.text.len() < 2_000, "{path}: {}", refusal.text);
    }
    assert_eq!(node.models().await, []);
    weir_tests::eventually("the end of the children", async || {
        weir_tests::children(node.pid()).is_empty().then_some(())
    })
    .await;
    node.push_model("good", 1, model("good/add.onnx")).await;
}

#[tokio::test]
async fn oversized_model_is_rejected() {
    let node = TestNode::builder().set("models.model_bytes_max", 1_000).start().await;
    let refusal = node.try_push_model("huge", 1, vec![0; 1_001]).await.unwrap_err();
    assert_eq!((refusal.status, refusal.code), (413, ErrorCode::BodyTooLarge));
    for bad in ["0", "x", "-1"] {
        let answer = node.put(&format!("/v1/models/m/versions/{bad}"), "x").await;
        assert_eq!((answer.status, answer.code()), (400, ErrorCode::InvalidRequest), "{bad}");
    }
    let answer = node.put("/v1/models/m/versions/1?slots=0", model("good/first_word.onnx")).await;
    assert_eq!((answer.status, answer.code()), (400, ErrorCode::LimitOverCap));
}
