//! Start, promotion and end of canaries of models by requests.

use super::{active, fake, infer, push, shown, start, taking, version_of};
use serde_json::json;
use weir_tests::TestNode;
use weir_types::api::{EventKind, EventPage};
use weir_types::{ErrorCode, Version};

/// The kinds of the events about `m`, oldest first.
async fn events(node: &TestNode) -> Vec<EventKind> {
    let page: EventPage = node.get("/v1/events?name=m").await.ok().json();
    page.events.into_iter().map(|event| event.kind).collect()
}

/// The versions that run `m`, without their order.
async fn versions_of_runs(node: &TestNode, runs: usize) -> Vec<u32> {
    let mut versions = Vec::new();
    for _ in 0..runs {
        versions.push(version_of(&infer(node).await.ok()));
    }
    versions.sort_unstable();
    versions.dedup();
    versions
}

#[tokio::test]
async fn promoted_canary_gets_all_runs_and_a_rollback_returns() {
    let node = start("canary=10", taking(1.0)).await;
    let list = node.weir(&["models"]).await.unwrap();
    assert!(list.contains("1 (canary 2: 10 %)"), "{list}");
    let told = node.weir(&["models", "show", "m"]).await.unwrap();
    assert!(told.contains("canary       version 2 gets 10 % of the runs (started "), "{told}");
    assert!(node.weir(&["models", "promote", "m"]).await.unwrap().contains("m is at version 2 now"));
    assert_eq!(versions_of_runs(&node, 20).await, [2]);
    let refusal = node.post("/v1/models/m/promote", "").await.refusal();
    assert_eq!((refusal.status, refusal.code), (404, ErrorCode::CanaryNotFound));
    let expected =
        [EventKind::Deployed, EventKind::Deployed, EventKind::CanaryStarted, EventKind::CanaryPromoted];
    assert_eq!(events(&node).await, expected);
    let told = node.weir(&["models", "rollback", "m"]).await.unwrap();
    assert!(told.contains("m:3 restores the earlier version"), "{told}");
    let (first, third) =
        (node.get("/v1/models/m/versions/1").await, node.get("/v1/models/m/versions/3").await);
    let digest = |answer: weir_tests::Answer| answer.ok().json::<serde_json::Value>()["digest"].clone();
    assert_eq!(digest(first), digest(third));
}

#[tokio::test]
async fn preview_gets_only_runs_that_name_it_until_it_is_promoted() {
    let node = start("canary=50", taking(1.0)).await;
    let preview = push(&node, "preview=true", taking(2.0)).await;
    assert_eq!((preview.model.version, preview.is_preview, preview.canary), (Version(3), true, None));
    assert_eq!(versions_of_runs(&node, 40).await, [1, 2], "the canary keeps its share");
    let input = json!({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]});
    let named = node.post("/v2/models/m/versions/3/infer", input.to_string()).await.ok();
    assert_eq!(version_of(&named), 3);
    let again = push(&node, "preview=true", taking(2.0)).await;
    assert_eq!(
        (again.model.version, again.is_preview),
        (Version(3), true),
        "the same model is no new version"
    );
    let node = node.kill().await.start().await;
    assert_eq!(active(&node).await, 1);
    assert!(node.weir(&["models", "promote", "m", "3"]).await.unwrap().contains("m is at version 3 now"));
    assert_eq!(versions_of_runs(&node, 20).await, [3], "the canary has ended");
    assert!(node.weir(&["models", "promote", "m", "2"]).await.unwrap().contains("m is at version 2 now"));
    assert_eq!(versions_of_runs(&node, 20).await, [2]);
    push(&node, "", taking(4.0)).await;
    assert_eq!(active(&node).await, 4, "a push without a role is active");
    let refusal = node.post("/v1/models/m/promote", r#"{"version": 9}"#).await.refusal();
    assert_eq!((refusal.status, refusal.code), (404, ErrorCode::VersionNotFound));
    let both = node.put("/v1/models/m?preview=true&canary=10", taking(5.0)).await;
    assert_eq!(both.code(), ErrorCode::InvalidRequest);
}

#[tokio::test]
async fn rollback_ends_a_canary_and_later_rollbacks_skip_it() {
    let node = start("canary=50", taking(1.0)).await;
    let told = node.weir(&["models", "rollback", "m"]).await.unwrap();
    assert!(told.contains("m is at version 1 now"), "{told}");
    assert_eq!(versions_of_runs(&node, 20).await, [1]);
    assert_eq!(events(&node).await.last(), Some(&EventKind::CanaryRolledBack));
    assert_eq!(node.get("/v1/models/m/canary").await.code(), ErrorCode::CanaryNotFound);
    // Restarts keep the active version, although it is not the newest.
    let node = node.kill().await.start().await;
    assert_eq!(versions_of_runs(&node, 5).await, [1]);
    push(&node, "", taking(2.0)).await;
    assert_eq!(active(&node).await, 3, "a push without a share is active");
    node.post("/v1/models/m/rollback", "").await.ok();
    let now = shown(&node).await.active;
    let first: weir_types::api::ModelVersion = node.get("/v1/models/m/versions/1").await.ok().json();
    assert_eq!(
        (now.version, now.digest),
        (Version(4), first.digest),
        "the rollback restores the version before the canary"
    );
}

#[tokio::test]
async fn pushes_replace_canaries() {
    let node = start("canary=50", taking(1.0)).await;
    let pushed = push(&node, "canary=99", taking(2.0)).await;
    assert_eq!(pushed.canary.map(|canary| (canary.version, canary.percent)), Some((Version(3), 99)));
    assert_eq!(active(&node).await, 1, "only the canary is replaced");
    // The same model again changes the share.
    let pushed = push(&node, "canary=10&promote_after_ms=60000", taking(2.0)).await;
    assert_eq!(pushed.canary.map(|canary| (canary.version, canary.percent)), Some((Version(3), 10)));
    push(&node, "", taking(3.0)).await;
    let now = shown(&node).await;
    assert_eq!((now.active.version, now.canary), (Version(4), None));
    assert_eq!(versions_of_runs(&node, 20).await, [4]);
    let ended = events(&node).await.iter().filter(|kind| **kind == EventKind::CanaryRolledBack).count();
    assert_eq!(ended, 2);
}

#[tokio::test]
async fn canary_survives_restarts_and_is_not_pruned() {
    let node = TestNode::builder().set("models.backend", "fake").set("models.versions_keep", 1).start().await;
    node.push_model("m", 1, taking(0.0)).await;
    push(&node, "canary=30&promote_after_ms=3600000", taking(1.0)).await;
    let before = shown(&node).await.canary;
    assert!(before.is_some());
    let node = node.kill().await.start().await;
    assert_eq!(shown(&node).await.canary, before);
    let mut of_canary = 0;
    for _ in 0..100 {
        of_canary += usize::from(version_of(&infer(&node).await.ok()) == 2);
    }
    assert_eq!(of_canary, 30);
    for version in [1, 2] {
        let refusal = node.delete(&format!("/v1/models/m/versions/{version}")).await.refusal();
        assert_eq!((refusal.status, refusal.code), (409, ErrorCode::Conflict), "{refusal:?}");
    }
    node.delete("/v1/models/m").await.ok();
    node.push_model("m", 1, taking(0.0)).await;
    assert_eq!(versions_of_runs(&node, 20).await, [1], "runs use a version of the removed model");
}

#[tokio::test]
async fn active_version_is_deleted_only_if_an_earlier_one_replaces_it() {
    let node = start("canary=50", taking(1.0)).await;
    node.post("/v1/models/m/rollback", "").await.ok();
    assert_eq!(node.delete("/v1/models/m/versions/1").await.code(), ErrorCode::Conflict);
    node.delete("/v1/models/m/versions/2").await.ok();
    // The number of the canary is used again, and by a version that is active.
    node.push_model("m", 2, taking(2.0)).await;
    assert_eq!(active(&node).await, 2);
    node.delete("/v1/models/m/versions/2").await.ok();
    assert_eq!(active(&node).await, 1);
    assert_eq!(push(&node, "", taking(3.0)).await.model.version, Version(2));
    assert_eq!(active(&node).await, 2);
}

#[tokio::test]
async fn canaries_that_clients_would_notice_or_that_are_old_are_refused() {
    let node = TestNode::builder().set("models.backend", "fake").start().await;
    let first = node.put("/v1/models/m?canary=10", taking(0.0)).await.ok();
    assert_eq!(first.json::<serde_json::Value>()["canary"], json!(null), "the first version gets all runs");
    let port = |name: &str| json!({"name": name, "datatype": "FP32", "shape": [null, 5]});
    let other = fake(&json!({"signature": {"inputs": [port("x")], "outputs": [port("y")]}}));
    let refusal = node.put("/v1/models/m?canary=10", other.clone()).await;
    assert_eq!(refusal.code(), ErrorCode::SignatureChanged);
    for query in ["canary=0", "canary=100", "canary=10&promote_after_ms=0", "promote_after_ms=5"] {
        let answer = node.put(&format!("/v1/models/m?{query}"), taking(1.0)).await;
        assert_eq!(answer.code(), ErrorCode::InvalidRequest, "{query}");
    }
    node.push_model("m", 5, taking(1.0)).await;
    let answer = node.put("/v1/models/m/versions/3?canary=10", taking(2.0)).await;
    assert_eq!(answer.code(), ErrorCode::Conflict);
    let answer = node.put("/v1/models/m/versions/5?canary=10", taking(1.0)).await;
    assert_eq!(answer.code(), ErrorCode::Conflict, "the active version is no canary");
    assert_eq!(shown(&node).await.versions, [Version(1), Version(5)]);
    node.put("/v1/models/m?canary=10&allow_signature_change=true", other).await.ok();
    assert_eq!(shown(&node).await.canary.map(|canary| canary.version), Some(Version(6)));
}
