//! Many fine-tuned variants of one model on one node.

// The tests of the `inference` crate write such models, too.
#[path = "../../../inference/onnx/tests/support/onnx.rs"]
#[allow(dead_code, reason = "each test program uses a part of it")]
mod onnx;

use onnx::chain;
use reqwest::Method;
use weir_tests::{TestNode, pss_bytes, rss_bytes};

const MIB: u64 = 1 << 20;
const VARIANTS: usize = 20;
/// Matrices of 1 MiB each. Only the last one differs between variants: 95 % are shared.
const LAYERS: usize = 20;
const SIZE: usize = 512;

/// Model that multiplies its input by `factor`.
fn variant(factor: f32) -> Vec<u8> {
    // All layers are different, and the layers before the last multiply to the number of layers.
    let backbone = (1..LAYERS).map(|i| (i as f32 + 1.0) / i as f32);
    chain(SIZE, &backbone.chain([factor / LAYERS as f32]).collect::<Vec<_>>())
}

/// Runs a model on ones.
async fn infer(node: &TestNode, name: &str) -> f32 {
    let ones: Vec<u8> = [1.0_f32; SIZE].iter().flat_map(|one| one.to_le_bytes()).collect();
    let request = node.request(Method::POST, &format!("/v2/models/{name}/infer"));
    // The body is the raw data of the only input.
    let answer = request.header("inference-header-content-length", 0).body(ones).send().await.unwrap();
    assert!(answer.status().is_success(), "{name}: {}", answer.text().await.unwrap());
    let answer = answer.bytes().await.unwrap();
    f32::from_le_bytes(answer[answer.len() - 4..].try_into().unwrap())
}

/// Twenty variants stay resident, where four separate copies would fit: the scheduler evicts more
/// than necessary, but the node keeps every model that it has room for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_variants_share_their_backbone_and_stay_resident() {
    let _alone = crate::alone().await;
    let node =
        TestNode::builder().set("models.memory_bytes_max", 180 * MIB).set("models.slots", 1).start().await;
    for number in 0..VARIANTS {
        node.push_model(&format!("v{number}"), 1, variant(number as f32 + 2.0)).await;
    }
    let memory = || (rss_bytes(node.pid()), pss_bytes(node.pid()));
    let before = memory();
    let mut one = (0, 0, 0);
    for number in 0..VARIANTS {
        let made = infer(&node, &format!("v{number}")).await;
        assert!((made - (number as f32 + 2.0)).abs() < 1e-3, "v{number} returned {made}");
        if number == 0 {
            let used_bytes = node.status().await.devices[0].used_bytes;
            one = (used_bytes, memory().0.saturating_sub(before.0), memory().1.saturating_sub(before.1));
        }
    }
    let device = node.status().await.devices.remove(0);
    assert_eq!(device.resident.len(), VARIANTS, "{:?}", device.resident);
    let now = memory();
    for (what, one, all) in [
        ("as accounted", one.0, device.used_bytes),
        ("resident (Rss)", one.1, now.0.saturating_sub(before.0)),
        ("resident (Pss)", one.2, now.1.saturating_sub(before.1)),
    ] {
        println!("{what}: one variant takes {} MiB, {VARIANTS} take {} MiB", one / MIB, all / MIB);
        assert!(one >= LAYERS as u64 * MIB, "{what}: one variant takes {one} bytes");
        assert!(
            all * 5 <= one * VARIANTS as u64,
            "{what}: {VARIANTS} variants take {all} bytes, one takes {one}"
        );
    }
    // Each is loaded once, however often they are asked for in turn.
    for number in 0..VARIANTS {
        infer(&node, &format!("v{number}")).await;
    }
    assert_eq!(node.metric("weir_cold_starts_total", "cause=\"model\"").await, VARIANTS as f64);
}
