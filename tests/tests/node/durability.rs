//! Deployments survive restarts and need no recompilation.

use std::fs;
use std::path::{Path, PathBuf};
use weir_tests::{TestNode, eventually, function, with_custom_section};
use weir_types::{ErrorCode, Version};

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

async fn compiled(node: &TestNode) -> f64 {
    node.metric("weir_cold_starts_total", "cause=\"compile\"").await
}

#[tokio::test]
async fn restart_needs_no_recompilation() {
    let node = TestNode::start().await;
    node.deploy_with("f", "env.N=1", function("hello")).await;
    node.deploy_with("f", "env.N=2", function("hello")).await;
    node.deploy("g", function("echo-http")).await;
    node.deploy("gone", function("hello")).await;
    node.delete("/v1/functions/gone").await.ok();
    node.roll_back("f", Some(1)).await.ok();
    let before = node.functions().await;

    let builder = node.kill().await;
    let node = builder.start().await;
    assert_eq!(node.functions().await, before);
    assert_eq!(node.get("/fn/f/x").await.ok().text(), "hello, x\n");
    assert_eq!(node.post("/fn/g", "back").await.ok().text(), "back");
    assert_eq!(node.get("/fn/gone").await.code(), ErrorCode::FunctionNotFound);
    assert_eq!(compiled(&node).await, 0.0);
    let again = node.deploy_with("f", "env.N=3", function("hello")).await;
    assert_eq!((again.compile_time_ms, again.function.version), (0, Version(3)));

    let node = node.stop().await.start().await;
    assert_eq!(node.get("/fn/f/x").await.ok().text(), "hello, x\n");
    assert_eq!(node.function("f").await.unwrap().active.version, Version(3));
    assert_eq!(compiled(&node).await, 0.0);
}

#[tokio::test]
async fn recent_components_are_preloaded_at_start() {
    let node = TestNode::start().await;
    for name in ["f", "g"] {
        node.deploy(name, with_custom_section(&function("hello"), name)).await;
    }
    let node = node.stop().await.start().await;
    eventually("both are loaded", async || {
        (node.metric("weir_components_preloaded_total", "").await == 2.0).then_some(())
    })
    .await;
    for name in ["f", "g"] {
        assert_eq!(node.get(&format!("/fn/{name}/x")).await.ok().text(), "hello, x\n");
    }
    assert_eq!(node.metric("weir_cold_starts_total", "cause=\"component\"").await, 0.0);
}

#[tokio::test]
async fn missing_or_damaged_artefacts_are_recompiled() {
    let node = TestNode::start().await;
    node.deploy("f", function("hello")).await;
    let mut node = Some(node);
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 3] = [
        ("missing", |path| fs::remove_file(path).unwrap()),
        ("truncated", |path| fs::File::options().write(true).open(path).unwrap().set_len(1_000).unwrap()),
        ("garbage", |path| fs::write(path, vec![0x5a; 100_000]).unwrap()),
    ];
    for (what, damage) in damages {
        let builder = node.take().unwrap().stop().await;
        let artefacts = files(&builder.data().join("artefacts"));
        assert!(!artefacts.is_empty());
        artefacts.iter().for_each(|path| damage(path));
        let again = builder.start().await;
        assert_eq!(again.get("/fn/f").await.ok().text(), "hello\n", "{what}");
        assert_eq!(compiled(&again).await, 1.0, "{what}");
        node = Some(again);
    }
}

#[tokio::test]
async fn second_node_on_the_same_data_folder_is_rejected() {
    let node = TestNode::start().await;
    node.deploy("f", function("hello")).await;
    let second = TestNode::builder().data_of(&node);
    let Err(log) = second.try_start().await else { panic!("two nodes run on one folder") };
    assert!(log.contains("in use") && log.contains("another node"), "{log}");
    assert_eq!(node.get("/fn/f").await.ok().text(), "hello\n", "the first node was disturbed");
}

#[tokio::test]
async fn damaged_registry_is_reported_and_kept() {
    let node = TestNode::start().await;
    node.deploy("f", function("hello")).await;
    let builder = node.stop().await;
    let registry = builder.data().join("registry.redb");
    let good = fs::read(&registry).unwrap();
    fs::write(&registry, b"not a registry").unwrap();
    let Err(log) = builder.clone().try_start().await else { panic!("the node started without its registry") };
    assert!(log.contains("damaged"), "{log}");
    fs::write(&registry, good).unwrap();
    let node = builder.start().await;
    assert_eq!(node.get("/fn/f").await.ok().text(), "hello\n");
}

#[tokio::test]
async fn failed_uploads_leave_no_files() {
    let node = TestNode::builder().set("sandbox.component_bytes_max", 1 << 20).start().await;
    node.deploy("f", function("hello")).await;
    let before = files(&node.data().join("components"));
    let bad = with_custom_section(&function("hello")[..1_000], "bad");
    assert!(node.try_deploy("bad", "", bad).await.is_err());
    assert!(node.try_deploy("huge", "", vec![0; 2 << 20]).await.is_err());
    eventually("the removal of the staged file", async || {
        (files(&node.data().join("components")) == before).then_some(())
    })
    .await;
}
