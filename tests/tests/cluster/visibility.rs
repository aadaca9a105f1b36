//! The response of a deploy names the nodes of the cluster that serve the new version, and those that
//! have not answered.

use super::fake;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use weir_tests::{Etcd, TestCluster, component_of_0_1_0, eventually, signal};

const WORKFLOW: &str = r#"
inputs = { x = "FP32[n, 1]" }
outputs = { y = "one" }
[steps.one]
run = "m"
inputs = { x = "x" }
"#;

#[tokio::test]
async fn deploys_name_the_nodes_that_serve_them() {
    if !Etcd::is_installed() {
        return;
    }
    let cluster = TestCluster::builder()
        .set("models.backend", "fake")
        .set("cluster.lease_ms", 60_000)
        .set("cluster.visible_wait_ms", 3_000)
        .start(3)
        .await;
    let mut numbers = Vec::new();
    for node in &cluster.nodes {
        numbers.push(node.status().await.cluster.unwrap().node.0);
    }
    let all = {
        let mut all = numbers.clone();
        all.sort_unstable();
        all
    };
    let [one, other, stopped] = &cluster.nodes[..] else { panic!("there are three") };
    let component = component_of_0_1_0("echo-tensor");
    let deploy = async |node: &weir_tests::TestNode, path: &str, body: Vec<u8>| -> Value {
        node.put(path, body).await.ok().json()
    };
    let deploys = [
        ("/v1/functions/f", component.to_vec()),
        ("/v1/models/m", fake(5, 1, 1_000).into_bytes()),
        ("/v1/workflows/w", WORKFLOW.into()),
    ];
    for (path, body) in &deploys {
        let answer = deploy(one, path, body.clone()).await;
        assert_eq!(answer["visible_on"], json!(all), "{path}: {answer}");
        assert_eq!(answer.get("not_visible_on"), None, "{path}");
        // No wait and no retry: the response is proof that the other nodes serve the version.
        for node in [other, stopped] {
            assert!(node.get(path).await.is_ok(), "{path} is unknown");
        }
    }
    signal(stopped.pid(), "STOP");
    for (path, body) in &deploys {
        let query = if path.contains("workflows") { "?slo_ms=20000" } else { "?slo_ms=10000" };
        let path = if path.contains("models") {
            "/v1/models/m?slots=2".to_owned()
        } else {
            format!("{path}{query}")
        };
        let began = Instant::now();
        let answer = deploy(one, &path, body.clone()).await;
        assert!(began.elapsed() < Duration::from_secs(20), "the wait is not limited");
        assert_eq!(answer["not_visible_on"], json!([numbers[2]]), "{path}: {answer}");
        let mut others = vec![numbers[0], numbers[1]];
        others.sort_unstable();
        assert_eq!(answer["visible_on"], json!(others), "{path}");
    }
    signal(stopped.pid(), "CONT");
    // A repeated deploy changes nothing, and asks again.
    eventually("an answer of the node that was stopped", async || {
        let answer = deploy(one, "/v1/functions/f?slo_ms=10000", component.to_vec()).await;
        assert_eq!(answer["created"], false, "{answer}");
        (answer["visible_on"] == json!(all)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn deploys_do_not_wait_without_a_time_limit() {
    if !Etcd::is_installed() {
        return;
    }
    let cluster = TestCluster::builder().set("cluster.visible_wait_ms", 0).start(1).await;
    let answer: Value =
        cluster.nodes[0].put("/v1/functions/f", component_of_0_1_0("echo-tensor")).await.ok().json();
    assert_eq!((answer.get("visible_on"), answer.get("not_visible_on")), (None, None));
}
