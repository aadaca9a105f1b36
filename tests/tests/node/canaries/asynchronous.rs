//! Versions of asynchronous invocations.

use super::{start, version_of};
use weir_tests::{TestNode, function};
use weir_types::Version;
use weir_types::api::{Invocation, InvocationStatus};

/// A queued invocation keeps its version. A retry by a client runs the active version.
#[tokio::test]
async fn version_is_fixed_when_the_request_is_accepted() {
    let node = TestNode::builder().set("async.running_max", 0).set("async.attempts_max", 1).start().await;
    node.deploy("f", function("misbehave")).await;
    let later = node.post_later("/fn/f/trap", "").await;
    assert_eq!(later.version, Some(Version(1)));
    node.deploy("f", function("hello")).await;
    let node = node.stop().await.set("async.running_max", 1).start().await;
    let ended = node.ended(later.id).await;
    assert_eq!((ended.status, ended.version), (InvocationStatus::Dead, Some(Version(1))), "{ended:?}");
    let path = format!("/v1/invocations/{}/retry", later.id);
    let retried: Invocation = node.post(&path, "").await.ok().json();
    assert_eq!(retried.version, Some(Version(2)));
    assert_eq!(node.ended(later.id).await.status, InvocationStatus::Done);
    assert_eq!(node.result(later.id).await.text(), "hello, trap\n");
}

/// Also inferences, whose path may name a version itself.
#[tokio::test]
async fn inferences_run_the_version_that_was_active_when_they_were_accepted() {
    let node = TestNode::builder().set("async.running_max", 0).start().await;
    node.push_model("m", 1, weir_tests::model("good/matmul.onnx")).await;
    let input = r#"{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}"#;
    let later = node.post_later("/v2/models/m/infer", input).await;
    assert_eq!(later.version, Some(Version(1)));
    node.push_model("m", 2, weir_tests::model("good/matmul_v2.onnx")).await;
    let node = node.stop().await.set("async.running_max", 1).start().await;
    assert_eq!(node.ended(later.id).await.status, InvocationStatus::Done);
    let result: serde_json::Value = node.result(later.id).await.ok().json();
    assert_eq!(result["model_version"], "1");
}

#[tokio::test]
async fn canary_gets_its_share_of_asynchronous_invocations() {
    let node = start("canary=20").await;
    let mut of_canary = 0;
    for _ in 0..100 {
        let later = node.post_later("/fn/f/behave", "").await;
        let version = later.version.unwrap();
        of_canary += u32::from(version == Version(2));
        node.ended(later.id).await;
        assert_eq!(version_of(&node.result(later.id).await), version.0);
    }
    assert_eq!(of_canary, 20);
}
