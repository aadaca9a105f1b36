//! Direct transfer of intermediates between the nodes of a workflow's steps.

use super::fake;
use weir_tests::{Etcd, TestCluster, eventually, write_private};
use weir_types::ErrorCode;

/// Number of rows of four bytes that makes an output large enough to stay on its node.
const ROWS: usize = 32_768;
const BYTES: f64 = ROWS as f64 * 4.0;

/// Chain of three models, each on the only node with room for it.
const CHAIN: &str = r#"
inputs = { x = "FP32[n, 1]" }
outputs = { y = "three" }
[steps.one]
run = "a"
inputs = { x = "x" }
[steps.two]
run = "b"
inputs = { x = "one.y" }
[steps.three]
run = "c"
inputs = { x = "two.y" }
"#;

fn request(rows: usize) -> String {
    let data: Vec<f32> = (0..rows).map(|row| row as f32).collect();
    let input = serde_json::json!({ "name": "x", "datatype": "FP32", "shape": [rows, 1], "data": data });
    serde_json::json!({ "inputs": [input] }).to_string()
}

/// Starts three nodes with room for one model each and a workflow of three models, each pushed to
/// another node, and loads each model. Returns the node indices by model.
async fn chain(free_percent_max: u64) -> (TestCluster, [usize; 3]) {
    let cluster = TestCluster::builder()
        .set("models.backend", "fake")
        .set("models.memory_bytes_max", 1_500)
        .set("intermediates.free_percent_max", free_percent_max)
        .start(3)
        .await;
    let model = fake(200, 0, 1_000).replace(r#"{"1":0}"#, &format!(r#"{{"{ROWS}":2}}"#));
    for (node, name) in cluster.nodes.iter().zip(["a", "b", "c"]) {
        // The node has the model's files, so loading the model there is fastest.
        node.put(&format!("/v1/models/{name}/versions/1"), model.clone()).await.ok();
        cluster.all_have_heard_of(name).await;
    }
    cluster.nodes[0].put("/v1/workflows/w", CHAIN).await.ok();
    for node in &cluster.nodes {
        let heard = async || node.get("/v1/workflows/w").await.is_ok().then_some(());
        eventually("the news of a deploy", heard).await;
    }
    cluster.settle().await;
    cluster.nodes[0].post("/v2/models/w/infer", request(2)).await.ok();
    let mut holders = [0; 3];
    for (holder, model) in holders.iter_mut().zip(["a:1", "b:1", "c:1"]) {
        *holder = cluster.holder(model).await.expect("no node has the model");
    }
    (cluster, holders)
}

async fn metrics(cluster: &TestCluster, name: &str) -> Vec<f64> {
    let metrics = cluster.nodes.iter().map(|node| node.metric(name, ""));
    futures::future::join_all(metrics).await
}

/// Increase of the metric per node.
async fn since(cluster: &TestCluster, name: &str, before: &[f64]) -> Vec<f64> {
    let now = metrics(cluster, name).await;
    now.iter().zip(before).map(|(now, before)| now - before).collect()
}

#[tokio::test]
async fn intermediates_bypass_the_called_node() {
    if !Etcd::is_installed() {
        return;
    }
    let (cluster, [a, b, c]) = chain(50).await;
    let names = [
        "weir_forwarded_sent_bytes_total",
        "weir_forwarded_received_bytes_total",
        "weir_intermediates_kept_bytes_total",
        "weir_intermediates_taken_bytes_total",
    ];
    let mut before = Vec::new();
    for name in names {
        before.push(metrics(&cluster, name).await);
    }
    let answer = cluster.nodes[c].post("/v2/models/w/infer", request(ROWS)).await.ok();
    let outputs: serde_json::Value = answer.json();
    assert_eq!(outputs["outputs"][0]["data"][ROWS - 1], serde_json::json!((ROWS - 1) as f32));
    // The input goes to the first node; the second fetches the first's output, and the last, which
    // is the called node, fetches the second's.
    let expected = [[c, c, a, b], [c, c, b, c]];
    let [sent, received, kept, taken] = {
        let mut since_then = Vec::new();
        for (name, before) in names.iter().zip(&before) {
            since_then.push(since(&cluster, name, before).await);
        }
        <[Vec<f64>; 4]>::try_from(since_then).unwrap()
    };
    assert_eq!((sent[c], sent.iter().sum::<f64>()), (BYTES, BYTES), "{sent:?}");
    assert_eq!(received, [0.0; 3], "an intermediate passed through the asked node");
    assert_eq!((kept[expected[0][2]], kept[expected[1][2]]), (BYTES, BYTES), "{kept:?}");
    assert_eq!((taken[expected[0][3]], taken[expected[1][3]]), (BYTES, BYTES), "{taken:?}");
    eventually("the release of all intermediates after the run", async || {
        (cluster.metric("weir_intermediates_bytes", "").await == 0.0).then_some(())
    })
    .await;
    assert_eq!(
        cluster.metric("weir_intermediates_expired_total", "").await,
        0.0,
        "intermediates expired instead of being released"
    );
}

#[tokio::test]
async fn intermediates_without_room_return_with_the_response() {
    if !Etcd::is_installed() {
        return;
    }
    let (cluster, [.., c]) = chain(0).await;
    let answer = cluster.nodes[c].post("/v2/models/w/infer", request(ROWS)).await.ok();
    let outputs: serde_json::Value = answer.json();
    assert_eq!(outputs["outputs"][0]["data"][1], serde_json::json!(1.0));
    assert_eq!(cluster.metric("weir_intermediates_kept_bytes_total", "").await, 0.0);
    assert_eq!(cluster.metric("weir_intermediates_refused_total", "").await, 2.0);
    assert!(cluster.metric("weir_forwarded_received_bytes_total", "").await >= 2.0 * BYTES);
}

#[tokio::test]
async fn clients_cannot_read_intermediates() {
    if !Etcd::is_installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    write_private(&secret, "0123456789abcdef0123\n");
    let cluster = TestCluster::builder()
        .set("cluster.secret_file", secret.display())
        .set("models.backend", "fake")
        .start(1)
        .await;
    let node = &cluster.nodes[0];
    let path = "/cluster/v1/intermediates/default/0";
    let answer = node.get(path).await;
    assert_eq!((answer.status, answer.code()), (401, ErrorCode::Unauthorized));
    let ask = |path: &'static str| {
        node.request(reqwest::Method::GET, path).header("weir-cluster-secret", "0123456789abcdef0123")
    };
    for (path, status) in [(path, 503), ("/cluster/v1/intermediates/default/x", 400)] {
        assert_eq!(ask(path).send().await.unwrap().status().as_u16(), status, "{path}");
    }
    // By name, clients reach only objects.
    node.put("/v1/models/m/versions/1", fake(1, 0, 1_000)).await.ok();
    let named =
        serde_json::json!({ "shared_memory_region": "intermediate/0-0", "shared_memory_byte_size": 4 });
    let input = serde_json::json!({ "name": "x", "datatype": "FP32", "shape": [1, 1], "parameters": named });
    let answer = node.post("/v2/models/m/infer", serde_json::json!({ "inputs": [input] }).to_string()).await;
    assert_eq!((answer.status, answer.code()), (400, ErrorCode::InvalidName), "{}", answer.text());
}

/// The node with a step's output is lost while another step runs; a third step waits to read the
/// output.
const LOST: &str = r#"
inputs = { x = "FP32[n, 1]", slow = "FP32[m, 1]" }
outputs = { y = "given" }
[steps.first]
run = "a"
inputs = { x = "x" }
[steps.meanwhile]
run = "slow"
inputs = { x = "slow" }
[steps.last]
run = "c"
inputs = { x = "first.y" }
when = "max(meanwhile.y) >= 0"
[steps.otherwise]
run = "c"
inputs = { x = "x" }
unless = "max(meanwhile.y) >= 0"
[steps.given]
combine = "first"
of = ["last", "otherwise"]
"#;

#[tokio::test]
async fn intermediates_of_a_lost_node_are_recomputed() {
    if !Etcd::is_installed() {
        return;
    }
    let (mut cluster, [a, _, c]) = chain(50).await;
    cluster.nodes[c].put("/v1/models/slow/versions/1", fake(1, 1_500, 100)).await.ok();
    cluster.nodes[c].put("/v1/workflows/lost", LOST).await.ok();
    for node in &cluster.nodes {
        let heard = async || node.get("/v1/workflows/lost").await.is_ok().then_some(());
        eventually("the news of a deploy", heard).await;
    }
    let asked = cluster.nodes[c].client().clone();
    let running = tokio::spawn(async move {
        let slow = serde_json::json!({ "name": "slow", "datatype": "FP32", "shape": [1, 1], "data": [1.0] });
        let mut request: serde_json::Value = serde_json::from_str(&request(ROWS)).unwrap();
        request["inputs"].as_array_mut().unwrap().push(slow);
        asked.post("/v2/models/lost/infer", request.to_string()).await
    });
    let holder = eventually("the output of the first step", async || {
        let kept = metrics(&cluster, "weir_intermediates").await;
        kept.iter().position(|kept| *kept > 0.0)
    })
    .await;
    assert_eq!(holder, a);
    let lost = cluster.nodes.remove(holder);
    lost.kill().await;
    let answer = running.await.unwrap();
    let outputs: serde_json::Value = answer.ok().json();
    assert_eq!(outputs["outputs"][0]["data"][ROWS - 1], serde_json::json!((ROWS - 1) as f32));
}
