//! Changed files of functions: a changed artefact is compiled again, and a changed component is
//! refused. Neither runs.

use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use weir_tests::{TestClient, TestNode, component_of_0_1_0};
use weir_types::{ContentHash, ErrorCode};

/// Deploys a tensor function that returns its input.
async fn deploy(node: &TestClient) {
    node.deploy("f", component_of_0_1_0("echo-tensor")).await;
}

async fn call(node: &TestClient) -> weir_tests::Answer {
    let input = json!({"name": "x", "datatype": "FP32", "shape": [2], "data": [1.0, 2.0]});
    node.post("/v2/models/f/infer", json!({"inputs": [input]}).to_string()).await
}

/// Artefact files of a stopped node, which are machine code.
fn artefacts(data: &Path) -> Vec<PathBuf> {
    let folders = fs::read_dir(data.join("artefacts")).unwrap();
    let files = folders.flat_map(|folder| fs::read_dir(folder.unwrap().path()).unwrap());
    let paths = files.map(|file| file.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "cwasm")).collect()
}

/// The node ran the changed code: it crashed, or answered wrongly with 200.
#[tokio::test]
async fn changed_artefact_is_compiled_again_with_one_warning() {
    let node = TestNode::start().await;
    deploy(&node).await;
    let expected = call(&node).await.ok().text().to_owned();
    let builder = node.stop().await;
    let paths = artefacts(builder.data());
    assert_eq!(paths.len(), 1);
    for path in &paths {
        let mut bytes = fs::read(path).unwrap();
        // Only machine code, which follows the first page: wasmtime checks the other sections.
        let code = 4_096..bytes.len() / 2;
        bytes[code].iter_mut().step_by(61).for_each(|byte| *byte ^= 0x24);
        fs::write(path, bytes).unwrap();
    }
    let node = builder.start().await;
    for _ in 0..3 {
        assert_eq!(call(&node).await.ok().text(), expected);
    }
    assert_eq!(node.metric("weir_cold_starts_total", "cause=\"compile\"").await, 1.0);
    let warnings = node.log().matches("differs from the one that was compiled").count();
    assert_eq!(warnings, 1, "{}", node.log());
    let node = node.stop().await.start().await;
    assert_eq!(call(&node).await.ok().text(), expected);
    assert_eq!(node.metric("weir_cold_starts_total", "cause=\"compile\"").await, 0.0);
}

/// The node compiled the changed component after an upgrade, and answered by it with 200.
#[tokio::test]
async fn changed_component_is_refused_until_it_is_deployed_again() {
    let node = TestNode::start().await;
    deploy(&node).await;
    let expected = call(&node).await.ok().text().to_owned();
    let builder = node.stop().await;
    // An upgrade leaves no artefact that the node can use.
    artefacts(builder.data()).iter().for_each(|path| fs::remove_file(path).unwrap());
    let digest = ContentHash::from_content(&component_of_0_1_0("echo-tensor"));
    let component = builder.data().join("components").join(digest.to_string());
    fs::write(&component, component_of_0_1_0("everything-tensor")).unwrap();
    let node = builder.start().await;
    for _ in 0..2 {
        let refusal = call(&node).await.refusal();
        assert_eq!((refusal.status, refusal.code), (500, ErrorCode::ComponentDamaged), "{}", refusal.text);
        assert!(refusal.text.contains("deploy it again"), "{}", refusal.text);
    }
    let log = node.log();
    assert!(log.contains("differs from what was deployed") && log.contains(&digest.to_string()), "{log}");
    deploy(&node).await;
    assert_eq!(call(&node).await.ok().text(), expected);
}
