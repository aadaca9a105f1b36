//! Components built with third-party SDKs run unmodified.

use weir_tests::{TestNode, function};
use weir_types::FunctionKind;

#[tokio::test]
async fn components_of_other_sdks_run_unmodified() {
    let node = TestNode::start().await;
    for (name, kind) in [
        ("wstd-hello", FunctionKind::Http02),
        ("waki-hello", FunctionKind::Http02),
        ("spin-hello", FunctionKind::Http03),
    ] {
        let deployed = node.deploy(name, function(name)).await;
        assert_eq!(deployed.function.kind, kind, "{name}");
        for _ in 0..3 {
            let answer = node.get(&format!("/fn/{name}")).await.ok();
            assert!(answer.text().to_lowercase().contains("hello"), "{name} said {:?}", answer.text());
        }
    }
    // Concurrent calls on both engines.
    let calls = (0..60).map(|i| {
        let client = node.client().clone();
        async move {
            let name = ["wstd-hello", "waki-hello", "spin-hello"][i % 3];
            client.get(&format!("/fn/{name}")).await.ok();
        }
    });
    futures::future::join_all(calls).await;
}
