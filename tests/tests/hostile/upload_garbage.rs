//! Invalid components and models, and large uploads whose checks take long.

use super::{attack, node};
use weir_tests::{function, model, with_custom_section};

#[tokio::test(flavor = "multi_thread")]
async fn uploaded_garbage_affects_no_other_tenant() {
    attack(node(), async |attacker| {
        let component = function("hello");
        let onnx = model("good/add.onnx");
        let cut = |bytes: &[u8], at: usize| bytes[..bytes.len() * at / 8].to_vec();
        for at in 1..8 {
            for (path, bytes) in [
                (format!("/v1/functions/f{at}"), cut(&component, at)),
                (format!("/v1/models/m{at}"), cut(&onnx, at)),
                (format!("/v1/workflows/w{at}"), cut(&component, at)),
            ] {
                let answer = attacker.put(&path, bytes).await;
                assert!((400..500).contains(&answer.status), "{path}: {answer:?}");
            }
        }
        // Each is a component that the node has not compiled yet.
        let compiling =
            (0..6).map(|number| {
                let component = with_custom_section(&component, &format!("number {number}"));
                let attacker = &attacker;
                let name = format!("g{number}");
                async move {
                    attacker.try_deploy(&name, "", component).await.map(drop).map_err(|error| error.status)
                }
            });
        for deployed in futures::future::join_all(compiling).await {
            assert!(matches!(deployed, Ok(()) | Err(429)), "{deployed:?}");
        }
    })
    .await;
}
