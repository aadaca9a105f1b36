//! Models in worker processes: a hostile model ends its worker, and neither the node nor the calls
//! of others.

use serde_json::{Value, json};
use weir_tests::{Answer, TestClient, TestNode, children, eventually, model_on_integers};
use weir_types::ErrorCode;
use weir_types::api::{InvocationStatus, ModelVersion};

/// Pushes models that divide integers.
async fn node() -> TestNode {
    let node = TestNode::builder().set("models.isolation", "process").start().await;
    node.push_model("bad", 1, model_on_integers("Div")).await;
    node.push_model("good", 1, model_on_integers("Mul")).await;
    node
}

fn body(x: i32, y: i32) -> String {
    let input = |name, value| json!({"name": name, "shape": [1], "datatype": "INT32", "data": [value]});
    json!({"inputs": [input("x", x), input("y", y)]}).to_string()
}

async fn infer(client: &TestClient, model: &str, x: i32, y: i32) -> Answer {
    client.post(&format!("/v2/models/{model}/infer"), body(x, y)).await
}

/// Divides the least integer by -1 until the error has this code.
async fn overflow_until(client: &TestClient, code: ErrorCode) -> Answer {
    eventually("the error", async || {
        let answer = infer(client, "bad", i32::MIN, -1).await;
        assert_eq!(answer.status, 503, "{answer:?}");
        (answer.code() == code).then_some(answer)
    })
    .await
}

/// Workers of models on the CPU.
fn workers(node: &TestNode) -> usize {
    let is_worker = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains("__run-cpu-models")
    };
    children(node.pid()).iter().filter(|pid| is_worker(pid)).count()
}

#[tokio::test]
async fn model_that_ends_its_worker_fails_its_own_calls_only() {
    let node = node().await;
    let answer: Value = infer(&node, "bad", 7, 2).await.ok().json();
    assert_eq!(answer["outputs"][0]["data"], json!([3]));
    let refusal = infer(&node, "bad", i32::MIN, -1).await.refusal();
    assert_eq!((refusal.status, refusal.code), (503, ErrorCode::WorkerLost));
    assert!(refusal.text.contains("SIGFPE"), "{}", refusal.text);
    infer(&node, "good", 6, 7).await.ok();
    infer(&node, "bad", 7, 2).await.ok();
    node.get("/v2/health/ready").await.ok();
}

#[tokio::test]
async fn model_that_ends_its_workers_is_quarantined_until_released() {
    let node = node().await;
    let text = overflow_until(&node, ErrorCode::ModelQuarantined).await.refusal().text;
    assert!(text.contains("weir models release bad --version 1"), "{text}");
    let ready = node.get("/v2/models/bad/versions/1/ready").await;
    assert!(ready.status >= 400, "{ready:?}");
    let known: ModelVersion = node.get("/v1/models/bad/versions/1").await.ok().json();
    let why_not = known.devices[0].why_not.as_ref().expect("the reason is missing");
    assert!(why_not.contains("times in a row"), "{why_not}");
    infer(&node, "good", 6, 7).await.ok();

    node.post("/v1/models/bad/versions/1/release", "").await.ok();
    node.get("/v2/models/bad/versions/1/ready").await.ok();
    eventually("a run after the release", async || {
        (infer(&node, "bad", 7, 2).await.status == 200).then_some(())
    })
    .await;
    let again = node.post("/v1/models/bad/versions/1/release", "").await.refusal();
    assert_eq!((again.status, again.code), (409, ErrorCode::Conflict));
    // A corrected version is not quarantined with the former one.
    overflow_until(&node, ErrorCode::ModelQuarantined).await;
    node.push_model("bad", 2, model_on_integers("Mod")).await;
    infer(&node, "bad", 7, 2).await.ok();
}

#[tokio::test]
async fn asynchronous_invocation_that_ends_workers_is_dead_and_the_node_stays() {
    let node = node().await;
    let pid = node.pid();
    let later = node.post_later("/v2/models/bad/infer", body(i32::MIN, -1)).await;
    let ended = node.ended(later.id).await;
    assert_eq!(ended.status, InvocationStatus::Dead, "{ended:?}");
    assert!(ended.attempts >= 2, "{ended:?}");
    assert_eq!(node.pid(), pid);
    infer(&node, "good", 6, 7).await.ok();
}

/// By default, only a loopback node without tokens runs models in its own process.
#[tokio::test]
async fn isolation_is_the_default_with_tokens() {
    for (isolated, builder) in [
        (false, TestNode::builder()),
        (true, TestNode::builder().tokens(&["token-of-one-0123456789 one"])),
        (
            false,
            TestNode::builder()
                .tokens(&["token-of-one-0123456789 one"])
                .set("models.isolation", "in-process"),
        ),
    ] {
        let node = builder.start().await;
        let client = node.with_token("token-of-one-0123456789");
        client.push_model("good", 1, model_on_integers("Mul")).await;
        infer(&client, "good", 6, 7).await.ok();
        assert_eq!(workers(&node) > 0, isolated);
    }
}

#[tokio::test]
async fn worker_ends_with_the_last_model_of_its_tenant() {
    let node = node().await;
    infer(&node, "good", 6, 7).await.ok();
    assert_eq!(workers(&node), 1);
    node.delete("/v1/models/good").await.ok();
    node.delete("/v1/models/bad").await.ok();
    eventually("the end of the worker", async || (workers(&node) == 0).then_some(())).await;
}
