//! Data folders that were lost, replaced or emptied: the node refuses to start with an empty
//! registry for existing files, and is not ready while its folder is away.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use weir_tests::{TestNode, component_of_0_1_0, eventually, with_custom_section};
use weir_types::ContentHash;

fn component(name: &str) -> bytes::Bytes {
    with_custom_section(&component_of_0_1_0("echo-tensor"), name)
}

fn blob(data: &Path, name: &str) -> std::path::PathBuf {
    data.join("components").join(ContentHash::from_content(&component(name)).to_string())
}

/// The node began a new registry, and its first sweep removed all files.
#[tokio::test]
async fn lost_registry_is_not_replaced_silently() {
    let node = TestNode::start().await;
    node.deploy("f", component("f")).await;
    let builder = node.stop().await;
    let data = builder.data().to_owned();
    let away = data.with_extension("redb");
    fs::rename(data.join("registry.redb"), &away).unwrap();
    for is_empty in [false, true] {
        if is_empty {
            fs::write(data.join("registry.redb"), "").unwrap();
        }
        let Err(log) = builder.clone().try_start().await else { panic!("the node made a new registry") };
        assert!(log.contains("bring back a copy") && log.contains("weir up --init"), "{log}");
        assert!(blob(&data, "f").exists());
    }
    // An empty registry on purpose: the files are set aside, and found again by the old registry.
    let node = builder.clone().argument("--init").start().await;
    assert_eq!(node.functions().await.len(), 0);
    assert!(!blob(&data, "f").exists());
    node.deploy("g", component("g")).await;
    node.stop().await;
    let Err(log) = builder.clone().argument("--init").try_start().await else { panic!("--init was ignored") };
    assert!(log.contains("has a registry already"), "{log}");

    fs::rename(&away, data.join("registry.redb")).unwrap();
    let Err(log) = builder.clone().try_start().await else {
        panic!("the node used the registry of another folder")
    };
    assert!(log.contains("belongs to another registry") && log.contains("identity"), "{log}");
    fs::remove_file(data.join("identity")).unwrap();
    fs::remove_dir_all(data.join("artefacts")).unwrap();
    let node = builder.start().await;
    assert_eq!(node.functions().await.len(), 1);
    let input = r#"{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}]}"#;
    node.post("/v2/models/f/infer", input).await.ok();
}

#[tokio::test]
async fn node_is_not_ready_while_its_data_folder_is_away() {
    let node = TestNode::start().await;
    node.deploy("f", component("f")).await;
    let away = node.data().with_extension("away");
    fs::rename(node.data(), &away).unwrap();
    let refusal = eventually("a readiness check that fails", async || {
        let answer = node.get("/readyz").await;
        (answer.status == 503).then(|| answer.refusal())
    })
    .await;
    assert!(refusal.text.contains("was removed or replaced"), "{}", refusal.text);
    fs::rename(&away, node.data()).unwrap();
    eventually("readiness", async || (node.get("/readyz").await.status == 200).then_some(())).await;
}

#[tokio::test]
async fn other_users_cannot_read_the_data_folder_and_its_files() {
    let node = TestNode::builder().set("models.backend", "fake").start().await;
    node.deploy("f", component("f")).await;
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(node.data()), 0o700);
    let mut folders = vec![node.data().to_owned()];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                assert_eq!(mode(&path), 0o600, "{}", path.display());
                files += 1;
            }
        }
    }
    assert!(files >= 4, "registry, lock, identity, component and artefact");
}

#[tokio::test]
async fn token_file_that_others_can_read_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    fs::write(&tokens, "a-token-of-enough-length acme\n").unwrap();
    let builder = TestNode::builder().argument("--token-file").argument(tokens.as_os_str());
    for (mode, is_refused) in [(0o644, true), (0o604, true), (0o640, false), (0o600, false)] {
        fs::set_permissions(&tokens, fs::Permissions::from_mode(mode)).unwrap();
        match builder.clone().try_start().await {
            Ok(node) => {
                assert!(!is_refused, "a token file of mode {mode:o} is used");
                node.stop().await;
            }
            Err(log) => {
                assert!(is_refused, "a token file of mode {mode:o} is refused: {log}");
                assert!(log.contains(&format!("chmod 600 {}", tokens.display())), "{log}");
            }
        }
    }
}
