//! Replication of deployments to all nodes.

use std::time::{Duration, Instant};
use weir_tests::{Etcd, TestCluster, eventually, eventually_within, function, model, with_custom_section};
use weir_types::ErrorCode;
use weir_types::api::{EventKind, EventPage};

#[tokio::test]
async fn deployments_replicate_to_all_nodes() {
    if !Etcd::is_installed() {
        return;
    }
    let cluster = TestCluster::builder().start(3).await;
    let [a, b, c] = &cluster.nodes[..] else { unreachable!("there are three") };
    a.deploy("f", function("hello")).await;
    cluster.all_know("f").await;
    for node in &cluster.nodes {
        assert_eq!(node.get("/fn/f").await.ok().text(), "hello\n");
    }
    // Without waiting, on nodes that may not know the previous version yet.
    assert_eq!(b.deploy("f", function("wstd-hello")).await.function.version.0, 2);
    assert_eq!(c.deploy("f", function("echo-http")).await.function.version.0, 3);
    for node in &cluster.nodes {
        eventually("the third version", async || {
            (node.function("f").await.ok()?.versions.len() == 3).then_some(())
        })
        .await;
    }
    assert!(a.roll_back("f", Some(1)).await.is_ok());
    for node in &cluster.nodes {
        eventually("the roll-back", async || {
            (node.function("f").await.ok()?.active.version.0 == 1).then_some(())
        })
        .await;
        assert_eq!(node.get("/fn/f").await.ok().text(), "hello\n");
    }
    assert!(c.delete("/v1/functions/f").await.is_ok());
    for node in &cluster.nodes {
        eventually("the deletion", async || node.function("f").await.err()).await;
        assert_eq!(node.get("/fn/f").await.refusal().code, ErrorCode::FunctionNotFound);
    }
}

/// Old versions disappear from every node, with the nodes' copies of their files.
#[tokio::test]
async fn old_versions_are_removed_from_all_nodes() {
    if !Etcd::is_installed() {
        return;
    }
    let cluster =
        TestCluster::builder().set("sandbox.versions_keep", 2).set("models.versions_keep", 1).start(2).await;
    let [a, b] = &cluster.nodes[..] else { unreachable!("there are two") };
    for n in 1..=4 {
        let component = with_custom_section(&function("hello"), &n.to_string());
        let deployed = [a, b][n % 2].deploy("f", component).await;
        assert_eq!(deployed.function.version.0 as usize, n);
        // The other node fetches the component.
        assert_eq!([b, a][n % 2].get("/fn/f/ann").await.ok().text(), "hello, ann\n");
    }
    a.push_model("m", 1, model("good/matmul.onnx")).await;
    cluster.all_have_heard_of("m").await;
    b.push_model("m", 2, model("good/add.onnx")).await;
    for node in [a, b] {
        eventually("the removal of old versions", async || {
            let versions = node.function("f").await.ok()?.versions;
            let models: weir_types::api::Model = node.get("/v1/models/m").await.ok().json();
            let components = std::fs::read_dir(node.data().join("components")).ok()?.count();
            (versions.len() == 2 && models.versions.len() == 1 && components <= 2).then_some(())
        })
        .await;
        assert_eq!(node.get("/fn/f/ann").await.ok().text(), "hello, ann\n");
    }
}

#[tokio::test]
async fn joining_and_restarted_nodes_fetch_missing_blobs() {
    if !Etcd::is_installed() {
        return;
    }
    let mut cluster = TestCluster::builder().start(1).await;
    cluster.nodes[0].deploy_with("infer", "models=m", function("infer")).await;
    cluster.nodes[0].push_model("m", 1, model("good/matmul.onnx")).await;
    let joined = cluster.node().start().await;
    assert_eq!(joined.models().await.len(), 1);
    cluster.nodes.push(joined);
    cluster.settle().await;
    // The only remaining node fetches models and components on demand.
    let first = cluster.nodes.remove(0);
    let builder = first.stop().await;
    cluster.settle().await;
    let body: Vec<u8> = [1_f32, 2.0, 3.0, 4.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    let path = "/fn/infer/m?shape=1,4";
    let answer = cluster.nodes[0].post(path, body.clone()).await;
    assert!(answer.is_ok(), "{answer:?}");
    // Simulate a new disk.
    std::fs::remove_dir_all(builder.data()).unwrap();
    let again = builder.start().await;
    cluster.nodes.push(again);
    cluster.settle().await;
    let gone = cluster.nodes.remove(0);
    gone.kill().await;
    let same = eventually("the node that is left answers", async || {
        let same = cluster.nodes[0].post(path, body.clone()).await;
        same.is_ok().then_some(same)
    })
    .await;
    assert_eq!(same.body, answer.body);
}

#[tokio::test]
async fn workflows_replicate_to_all_nodes() {
    if !Etcd::is_installed() {
        return;
    }
    const ROW: &str =
        r#"{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [0, 0, 0, 1]}]}"#;
    let cluster = TestCluster::builder().start(3).await;
    let [a, b, c] = &cluster.nodes[..] else { unreachable!("there are three") };
    a.push_model("low", 1, model("good/matmul.onnx")).await;
    a.push_model("high", 1, model("good/matmul_v2.onnx")).await;
    for name in ["low", "high"] {
        cluster.all_have_heard_of(name).await;
    }
    let document = r#"
        inputs = { x = "FP32[n, 4]" }
        [steps.low]
        run = "low"
        inputs = { x = "x" }
        [steps.high]
        run = "high"
        inputs = { x = "x" }
        [steps.mean]
        combine = "mean"
        of = ["low", "high"]
        [outputs]
        y = "mean"
    "#;
    b.put("/v1/workflows/mean", document).await.ok();
    for node in &cluster.nodes {
        eventually("the news of the workflow", async || {
            node.get("/v2/models/mean/ready").await.is_ok().then_some(())
        })
        .await;
        let answer: serde_json::Value = node.post("/v2/models/mean/infer", ROW).await.ok().json();
        assert_eq!(answer["outputs"][0]["data"], serde_json::json!([14.0, 15.0, 16.0]));
    }
    // The whole workflow runs as a unit on the node with the models.
    let low = cluster.holder("low:1").await;
    let high = cluster.holder("high:1").await;
    assert!(low.is_some() && low == high, "{low:?} {high:?}");
    assert_eq!(cluster.metric("weir_invocations_forwarded_total", "").await, 2.0);
    assert_eq!(c.delete("/v1/models/low").await.code(), ErrorCode::Conflict);
    assert!(c.delete("/v1/workflows/mean").await.is_ok());
    for node in &cluster.nodes {
        eventually("the deletion", async || {
            (node.post("/v2/models/mean/infer", ROW).await.status == 404).then_some(())
        })
        .await;
    }
}

/// Any node runs a function, model or workflow right after its deployment at another node, even if
/// its watch has not reported the deployment yet.
#[tokio::test]
async fn deployments_can_be_called_at_other_nodes_at_once() {
    if !Etcd::is_installed() {
        return;
    }
    const ROW: &str =
        r#"{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [0, 0, 0, 1]}]}"#;
    let cluster = TestCluster::builder().start(2).await;
    let [a, b] = &cluster.nodes[..] else { unreachable!("there are two") };
    for round in 0..10 {
        let [from, to] = [[a, b], [b, a]][round % 2];
        from.push_model(&format!("m{round}"), 1, model("good/matmul.onnx")).await;
        to.post(&format!("/v2/models/m{round}/infer"), ROW).await.ok();
        from.push_model(&format!("m{round}"), 2, model("good/matmul_v2.onnx")).await;
        to.post(&format!("/v2/models/m{round}/versions/2/infer"), ROW).await.ok();
        let document = format!(
            "inputs = {{ x = \"FP32[n, 4]\" }}\n[steps.only]\nrun = \"m{round}:2\"\ninputs = {{ x = \"x\" }}\n[outputs]\ny = \"only\"\n"
        );
        from.put(&format!("/v1/workflows/w{round}"), document).await.ok();
        to.post(&format!("/v2/models/w{round}/infer"), ROW).await.ok();
        from.deploy(&format!("f{round}"), function("hello")).await;
        assert_eq!(to.get(&format!("/fn/f{round}/ann")).await.ok().text(), "hello, ann\n");
    }
    assert_eq!(b.post("/v2/models/missing/infer", ROW).await.code(), ErrorCode::ModelNotFound);
    assert_eq!(b.post("/v2/models/m0/versions/3/infer", ROW).await.code(), ErrorCode::VersionNotFound);
    assert_eq!(b.get("/fn/missing").await.refusal().code, ErrorCode::FunctionNotFound);
}

/// A deleted name does not come back by a lookup.
#[tokio::test]
async fn deletions_hold_although_names_are_looked_up() {
    if !Etcd::is_installed() {
        return;
    }
    let cluster = TestCluster::builder().start(2).await;
    let [a, b] = &cluster.nodes[..] else { unreachable!("there are two") };
    for round in 0..10 {
        let name = format!("f{round}");
        let path = format!("/fn/{name}");
        a.deploy(&name, function("hello")).await;
        b.get(&path).await.ok();
        a.delete(&format!("/v1/functions/{name}")).await.ok();
        eventually("the deletion", async || (b.get(&path).await.status == 404).then_some(())).await;
        for _ in 0..3 {
            assert_eq!(b.get(&path).await.refusal().code, ErrorCode::FunctionNotFound);
        }
    }
}

/// A blob store that accepts requests and does not answer delays only calls that need the store,
/// and only for a short time.
#[tokio::test]
async fn calls_wait_a_short_time_for_a_hanging_blob_store() {
    if !Etcd::is_installed() {
        return;
    }
    const ROW: &str =
        r#"{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [0, 0, 0, 1]}]}"#;
    const INFER: &str = "/v2/models/m/infer";
    let mut cluster = TestCluster::builder().start(2).await;
    cluster.nodes[0].push_model("m", 1, model("good/matmul.onnx")).await;
    cluster.all_have_heard_of("m").await;
    // Every read.
    cluster.s3.hold(vec![String::new()]);
    let began = Instant::now();
    cluster.nodes[0].post(INFER, ROW).await.ok();
    assert!(began.elapsed() < Duration::from_secs(4), "the node has the files: {:?}", began.elapsed());
    cluster.nodes.remove(0).stop().await;
    cluster.settle().await;
    let began = Instant::now();
    let refused = cluster.nodes[0].post(INFER, ROW).await;
    assert_eq!((refused.status, refused.code()), (503, ErrorCode::Unavailable), "{refused:?}");
    assert!(refused.text().contains("has not answered"), "{refused:?}");
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    cluster.s3.hold(Vec::new());
    cluster.nodes[0].post(INFER, ROW).await.ok();
}

/// If the blob store returns corrupt data, nodes reject it, and nodes with a local copy continue.
#[tokio::test]
async fn tampered_blobs_are_rejected() {
    if !Etcd::is_installed() {
        return;
    }
    let mut cluster = TestCluster::builder().start(1).await;
    cluster.nodes[0].deploy("f", function("hello")).await;
    let folder = cluster.s3.folder().join("components");
    for blob in std::fs::read_dir(&folder).unwrap() {
        std::fs::write(blob.unwrap().path(), function("wstd-hello")).unwrap();
    }
    let joined = cluster.node().start().await;
    let refusal = joined.get("/fn/f").await.refusal();
    assert_eq!((refusal.status, refusal.code), (500, ErrorCode::ComponentDamaged), "{refusal:?}");
    assert!(refusal.text.contains("something else"), "{refusal:?}");
    cluster.nodes.push(joined);
    assert_eq!(cluster.nodes[0].get("/fn/f").await.ok().text(), "hello\n");
}

/// Names of the blobs in a folder of the store, and the number of blobs that are set aside there.
fn stored(cluster: &TestCluster, folder: &str) -> (Vec<String>, usize) {
    let folder = cluster.s3.folder().join(folder);
    let names = |folder: &std::path::Path| -> Vec<String> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    };
    let aside = folder.join("aside");
    let is_blob = |name: &String| name.len() == 64;
    let aside = names(&aside).iter().map(|digest| names(&aside.join(digest)).len()).sum();
    (names(&folder).into_iter().filter(is_blob).collect(), aside)
}

#[tokio::test]
async fn tampered_blob_is_replaced_by_the_next_deploy() {
    if !Etcd::is_installed() {
        return;
    }
    let mut cluster = TestCluster::builder().start(1).await;
    cluster.nodes[0].deploy("f", function("hello")).await;
    let folder = cluster.s3.folder().join("components");
    let blob = folder.join(&stored(&cluster, "components").0[0]);
    let mut bytes = std::fs::read(&blob).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    // The same length, so that only the contents differ.
    std::fs::write(&blob, bytes).unwrap();
    let joined = cluster.node().start().await;
    assert_eq!(joined.get("/fn/f").await.refusal().status, 500);
    cluster.nodes[0].deploy("f", function("hello")).await;
    assert_eq!(std::fs::read(&blob).unwrap(), function("hello"));
    eventually("the right component", async || joined.get("/fn/f").await.is_ok().then_some(())).await;
    cluster.nodes.push(joined);
}

/// Unreferenced blobs are deleted, and a new deployment restores them at any stage of the deletion.
#[tokio::test]
async fn unreferenced_blobs_are_deleted_and_restored_by_the_next_deploy() {
    if !Etcd::is_installed() {
        return;
    }
    let cluster = TestCluster::builder().set("cluster.blob_grace_ms", 300).start(2).await;
    let [a, b] = &cluster.nodes[..] else { unreachable!("there are two") };
    a.deploy("kept", function("hello")).await;
    b.push_model("kept", 1, model("good/matmul.onnx")).await;
    cluster.all_have_heard_of("kept").await;
    let models = stored(&cluster, "models").0.len();
    for round in 0..3 {
        b.deploy("f", function("wstd-hello")).await;
        b.push_model("m", 1, model("good/add.onnx")).await;
        cluster.all_know("f").await;
        assert!(a.get("/fn/f").await.is_ok(), "round {round}");
        b.delete("/v1/functions/f").await.ok();
        b.delete("/v1/models/m").await.ok();
        // At a different stage of the deletion in each round.
        eventually("the end of the blobs", async || {
            let (components, aside) = stored(&cluster, "components");
            let is_far_enough = [components.len() == 1, aside == 1, aside == 0][round];
            (is_far_enough && components.len() == 1).then_some(())
        })
        .await;
    }
    // Several sweeps, each of which lists the bucket.
    eventually_within(Duration::from_secs(120), "the end of the model's files", async || {
        let (there, aside) = stored(&cluster, "models");
        (there.len() == models && aside == 0).then_some(())
    })
    .await;
    // A node with an empty disk finds all blobs it needs.
    let joined = cluster.node().start().await;
    assert_eq!(joined.get("/fn/kept").await.ok().text(), "hello\n");
    assert_eq!(joined.models().await.len(), 1);
}

#[tokio::test]
async fn objects_are_readable_and_deletable_on_all_nodes() {
    if !Etcd::is_installed() {
        return;
    }
    let cluster = TestCluster::builder().start(3).await;
    let [a, b, c] = &cluster.nodes[..] else { unreachable!("there are three") };
    // Without waiting for replication.
    assert!(a.put("/v1/objects/kept", "of a").await.is_ok());
    assert_eq!(b.get("/v1/objects/kept/data").await.ok().text(), "of a");
    a.deploy_with("objects", "objects.read=*&objects.write=*", function("objects")).await;
    cluster.all_know("objects").await;
    assert!(c.put("/fn/objects/kept", "of c").await.is_ok());
    for node in &cluster.nodes {
        let is_new = async || (node.get("/v1/objects/kept/data").await.ok().text() == "of c").then_some(());
        eventually("the object that c has put", is_new).await;
    }
    assert!(b.delete("/v1/objects/kept").await.is_ok());
    for node in &cluster.nodes {
        let is_gone = async || (node.get("/v1/objects/kept/data").await.status == 404).then_some(());
        eventually("the deletion", is_gone).await;
    }
}

/// Every node lists the events of all nodes. Changes of the cluster, which all nodes record, are
/// listed once.
#[tokio::test]
async fn events_of_all_nodes_are_listed_on_each() {
    if !Etcd::is_installed() {
        return;
    }
    let mut cluster = TestCluster::builder().start(3).await;
    cluster.nodes[0].deploy("first", function("hello")).await;
    cluster.nodes[1].deploy("second", function("hello")).await;
    let lost = cluster.nodes.remove(2);
    let lost_id = lost.status().await.cluster.unwrap().node.0.to_string();
    lost.kill().await;
    cluster.settle().await;
    for node in &cluster.nodes {
        let names = |page: &EventPage, kind: EventKind| {
            let of_kind = page.events.iter().filter(|event| event.kind == kind);
            of_kind.map(|event| event.name.clone()).collect::<Vec<_>>()
        };
        // A node may list what another recorded before it has dropped the lost node itself.
        let page = eventually("the event of the lost node, and no unreachable node", async || {
            let page: EventPage = node.get("/v1/events?limit=1000").await.ok().json();
            let is_lost = names(&page, EventKind::NodeLeft).contains(&lost_id);
            let is_complete = is_lost && page.unreachable.is_empty();
            is_complete.then_some(page)
        })
        .await;
        // A busy machine may lose another node for a moment.
        let left = names(&page, EventKind::NodeLeft);
        assert_eq!(left.iter().filter(|name| **name == lost_id).count(), 1, "{page:?}");
        assert_eq!(names(&page, EventKind::Deployed), ["first", "second"]);
        // The lost node has recorded that it joined, and so have the others.
        let joined = names(&page, EventKind::NodeJoined);
        assert_eq!(joined.iter().filter(|name| **name == lost_id).count(), 1, "{page:?}");
        assert!(!names(&page, EventKind::Elected).is_empty(), "{page:?}");
    }
}
