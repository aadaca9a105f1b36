//! Named objects from functions in every language.

use weir_tests::{TestNode, function, has_function};

const ALL: [&str; 5] = ["objects", "objects-py", "objects-ts", "objects-c", "objects-go"];

#[tokio::test]
async fn objects_are_stored_read_and_deleted_in_every_language() {
    let node = TestNode::start().await;
    let grants = "limits.memory_bytes=134217728&objects.read=shared-*&objects.write=shared-*";
    let body: Vec<u8> = (0..100_000_u32).map(|at| (at % 251) as u8).collect();
    for name in ALL.into_iter().filter(|name| has_function(name)) {
        node.deploy_with(name, grants, function(name)).await;
        let path = format!("/fn/{name}/shared-{name}");
        assert_eq!(node.put(&path, body.clone()).await.ok().status, 204, "{name}");
        assert!(node.get(&path).await.ok().body == body, "{name}");
        let kept: serde_json::Value = node.get(&format!("/v1/objects/shared-{name}")).await.ok().json();
        assert_eq!((&kept["datatype"], &kept["bytes"]), (&"UINT8".into(), &body.len().into()), "{name}");
        assert_eq!(node.delete(&path).await.ok().status, 204, "{name}");
        for (answer, status) in [
            (node.get(&path).await, 404),
            (node.delete(&path).await, 404),
            (node.get(&format!("/fn/{name}/secret")).await, 403),
            (node.put(&format!("/fn/{name}/secret"), "x").await, 403),
        ] {
            assert_eq!(answer.status, status, "{name}: {}", answer.text());
        }
    }
}
