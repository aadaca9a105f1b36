//! The compile cache: functions of a component that were compiled before are not compiled again.

use std::fs;
use std::path::{Path, PathBuf};
use weir_tests::{TestNode, function, with_custom_section};

/// Functions that were in the compile cache, and that were not.
async fn counts(node: &TestNode) -> [f64; 2] {
    let hits = node.metric("weir_compile_cache_hits_total", "").await;
    [hits, node.metric("weir_compile_cache_misses_total", "").await]
}

/// The cache in `folder`.
fn cache(folder: &Path) -> Option<PathBuf> {
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    files.into_iter().find(|path| path.extension().is_some_and(|extension| extension == "functions"))
}

#[tokio::test]
async fn changed_component_takes_its_functions_from_the_cache_of_another_node() {
    let folder = tempfile::tempdir().unwrap();
    let builder = || TestNode::builder().set("sandbox.compile_cache.folder", folder.path().display());
    let first = builder().start().await;
    first.deploy("hello", function("hello")).await;
    let [_, compiled] = counts(&first).await;
    assert!(compiled > 100.0, "{compiled}");

    let second = builder().start().await;
    second.deploy("hello", with_custom_section(&function("hello"), "changed")).await;
    let [reused, compiled_again] = counts(&second).await;
    // Wasmtime caches nearly all functions.
    assert!(reused >= compiled && compiled_again < compiled / 5.0, "{reused} {compiled_again} of {compiled}");
    assert_eq!(second.get("/fn/hello").await.ok().text(), "hello\n");
}

#[tokio::test]
async fn damaged_cache_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let node = TestNode::builder().set("sandbox.compile_cache.folder", folder.path().display()).start().await;
    node.deploy("hello", function("hello")).await;
    let path = cache(folder.path()).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let code = bytes.len() / 2..;
    bytes[code].iter_mut().for_each(|byte| *byte ^= 0x24);
    fs::write(&path, bytes).unwrap();

    node.deploy("hello", with_custom_section(&function("hello"), "changed")).await;
    assert_eq!(node.get("/fn/hello").await.ok().text(), "hello\n");
    let [reused, compiled] = counts(&node).await;
    assert!(compiled > reused, "{reused} {compiled}");
    assert!(node.log().contains("the compile cache differs from what was stored"), "{}", node.log());
    assert!(cache(folder.path()).is_some());
}

#[tokio::test]
async fn node_with_tokens_has_no_cache_and_refuses_one() {
    let folder = tempfile::tempdir().unwrap();
    let builder = || {
        let folder = folder.path().join("cache");
        TestNode::builder()
            .set("sandbox.compile_cache.folder", folder.display())
            .tokens(&["token-of-acme-0123 acme"])
    };
    let node = builder().start().await;
    let acme = node.with_token("token-of-acme-0123");
    acme.deploy("hello", function("hello")).await;
    assert!(!folder.path().join("cache").exists());
    let log = builder().set("sandbox.compile_cache.enabled", true).try_start().await.err().unwrap();
    assert!(log.contains("tenants would share machine code; remove the setting"), "{log}");
}
