//! Memory use over many functions and over time.

use weir_tests::{TestNode, function, model, rss_bytes, with_custom_section};

const KIB: u64 = 1 << 10;

/// Many names of one component cost little memory. Different components cost their code, which is
/// mapped from its file on a call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousand_functions_take_little_memory_each() {
    const FUNCTIONS: u64 = 1_000;
    let _alone = crate::alone().await;
    let node = TestNode::start().await;
    let component = function("hello");
    node.deploy("first", component.clone()).await;
    node.get("/fn/first").await.ok();
    let before = rss_bytes(node.pid());
    for i in 0..FUNCTIONS {
        node.deploy(&format!("f{i}"), component.clone()).await;
    }
    for i in 0..FUNCTIONS {
        node.get(&format!("/fn/f{i}/x")).await.ok();
    }
    let each = rss_bytes(node.pid()).saturating_sub(before) / FUNCTIONS;
    println!("{} KiB per function", each / KIB);
    assert!(each <= 150 * KIB, "a function takes {} KiB", each / KIB);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn different_components_take_little_memory_each() {
    const FUNCTIONS: u64 = 30;
    let _alone = crate::alone().await;
    let node = TestNode::start().await;
    node.deploy("first", function("hello")).await;
    node.get("/fn/first").await.ok();
    for i in 0..FUNCTIONS {
        node.deploy(&format!("f{i}"), with_custom_section(&function("hello"), &format!("n{i}"))).await;
    }
    let before = rss_bytes(node.pid());
    for i in 0..FUNCTIONS {
        node.get(&format!("/fn/f{i}/x")).await.ok();
    }
    let each = rss_bytes(node.pid()).saturating_sub(before) / FUNCTIONS;
    println!("{} KiB per component that was called", each / KIB);
    assert!(each <= 2_000 * KIB, "a component takes {} KiB", each / KIB);
}

/// Two models that do not fit together are loaded in turn: each load evicts the other model.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_loads_and_unloads_leak_no_memory() {
    const CYCLES: usize = 200;
    let _alone = crate::alone().await;
    let probe = TestNode::start().await;
    let path = "good/matmul.onnx";
    probe.push_model("m", 1, model(path)).await;
    probe.deploy_with("infer", "models=m", function("infer")).await;
    probe.post("/fn/infer/m?shape=1,4", vec![0; 16]).await.ok();
    let bytes = probe.status().await.devices[0].used_bytes;
    drop(probe);

    let node = TestNode::builder().set("models.memory_bytes_max", bytes * 3 / 2).start().await;
    for name in ["a", "b"] {
        node.push_model(name, 1, model(path)).await;
        node.deploy_with(name, &format!("models={name}"), function("infer")).await;
    }
    let cycle = async || {
        for name in ["a", "b"] {
            node.post(&format!("/fn/{name}/{name}?shape=1,4"), vec![0; 16]).await.ok();
        }
    };
    // Warm-up for one-time allocations.
    for _ in 0..10 {
        cycle().await;
    }
    let before = rss_bytes(node.pid());
    for _ in 0..CYCLES / 2 {
        cycle().await;
    }
    let after = rss_bytes(node.pid());
    let loads = node.metric("weir_cold_starts_total", "cause=\"model\"").await;
    assert!(loads >= CYCLES as f64, "there were only {loads} loads");
    println!("{loads} loads: {} KiB before, {} KiB after", before / KIB, after / KIB);
    assert!(after <= before + before / 20, "{} KiB became {} KiB", before / KIB, after / KIB);
}
