//! Placement of calls on nodes.

use crate::{INFER, fake, one_model};
use weir_tests::{Etcd, TestCluster, eventually, function};
use weir_types::api::MemberStatus;

const INPUT: [u8; 4] = 1_f32.to_le_bytes();

#[tokio::test]
async fn calls_run_on_the_node_that_has_the_model() {
    if !Etcd::is_installed() {
        return;
    }
    let cluster = one_model(3, "", 1).await;
    for round in 0..4 {
        for node in &cluster.nodes {
            let answer = node.post(INFER, &INPUT[..]).await;
            assert_eq!((answer.status, &answer.body[..]), (200, &INPUT[..]), "in round {round}");
        }
    }
    assert_eq!(
        cluster.metric("weir_cold_starts_total", "cause=\"model\"").await,
        1.0,
        "the model was loaded again"
    );
    assert_eq!(cluster.metric("weir_invocations_forwarded_total", "").await, 8.0);
    // Each call was counted once, on the node where it ran.
    assert_eq!(cluster.metric("weir_invocations_total", "function=\"infer\"").await, 12.0);
    let holder = cluster.holder("m:1").await.unwrap();
    for node in &cluster.nodes {
        eventually("the news of where the model is", async || {
            let status = node.status().await.cluster.unwrap();
            let is_there =
                |node: &&MemberStatus| node.devices.iter().any(|device| device.resident == ["m:1"]);
            let holders: Vec<_> = status.nodes.iter().filter(is_there).map(|node| &node.address).collect();
            (holders == [cluster.nodes[holder].address()]).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn models_too_large_for_one_node_spread_over_nodes() {
    if !Etcd::is_installed() {
        return;
    }
    let cluster = TestCluster::builder()
        .set("models.backend", "fake")
        .set("models.memory_bytes_max", 1_500)
        .start(3)
        .await;
    for (node, model) in cluster.nodes.iter().zip(["a", "b", "c"]) {
        // The node has the model's files, so loading the model there is fastest.
        node.push_model(model, 1, fake(200, 1, 1_000)).await;
        let query = format!("models={model}");
        node.deploy_with(model, &query, function("infer")).await;
        cluster.all_have_heard_of(model).await;
        cluster.all_know(model).await;
    }
    for _ in 0..3 {
        for model in ["a", "b", "c"] {
            let answer = cluster.nodes[0].post(&format!("/fn/{model}/{model}?shape=1,1"), &INPUT[..]).await;
            assert_eq!(answer.status, 200, "{answer:?}");
        }
    }
    let loads = cluster.metric("weir_cold_starts_total", "cause=\"model\"").await;
    assert_eq!(loads, 3.0, "each model was loaded once, on a separate node");
    let mut holders = Vec::new();
    for model in ["a:1", "b:1", "c:1"] {
        holders.push(cluster.holder(model).await.unwrap());
    }
    holders.sort_unstable();
    assert_eq!(holders, [0, 1, 2]);
}

/// Forwarding changes neither the request nor the response.
#[tokio::test]
async fn forwarding_is_transparent_to_clients() {
    if !Etcd::is_installed() {
        return;
    }
    let cluster = one_model(2, "", 1).await;
    cluster.nodes[0].post(INFER, &INPUT[..]).await.ok();
    let holder = cluster.holder("m:1").await.unwrap();
    let there = &cluster.nodes[holder];
    let other = &cluster.nodes[1 - holder];
    for (path, body) in [
        (INFER, &INPUT[..]),
        ("/fn/infer/m?shape=1,2", &INPUT[..]),
        ("/fn/infer/other?shape=1,1", &INPUT[..]),
        ("/fn/infer/m", &[][..]),
    ] {
        let here = there.post(path, body).await;
        let forwarded = other.post(path, body).await;
        assert_eq!((here.status, &here.body), (forwarded.status, &forwarded.body), "{path}");
        let names = |answer: &weir_tests::Answer| {
            let mut names: Vec<_> = answer.headers.keys().map(ToString::to_string).collect();
            names.sort();
            names
        };
        assert_eq!(names(&here), names(&forwarded), "{path}");
    }
    // Hop-by-hop headers are not forwarded.
    let request = other.request(reqwest::Method::POST, INFER).body(&INPUT[..]);
    let request = request.header("keep-alive", "300").header("te", "gzip").header("upgrade", "h2c");
    assert_eq!(request.header("proxy-connection", "x").send().await.unwrap().status(), 200);
    assert!(other.metric("weir_invocations_forwarded_total", "").await >= 5.0);
}

/// Forwarding of Open Inference Protocol requests, for models and tensor functions.
#[tokio::test]
async fn inferences_run_on_the_node_that_has_the_model() {
    if !Etcd::is_installed() {
        return;
    }
    let cluster = one_model(2, "", 1).await;
    cluster.nodes[0].deploy("echo", function("echo-tensor")).await;
    cluster.all_know("echo").await;
    let request = serde_json::json!({
        "id": "7",
        "inputs": [{ "name": "x", "datatype": "FP32", "shape": [1, 1], "data": [0.5] }],
    });
    for _ in 0..2 {
        for node in &cluster.nodes {
            let answer = node.post("/v2/models/m/infer", request.to_string()).await.ok();
            let answer: serde_json::Value = answer.json();
            assert_eq!(
                (&answer["id"], &answer["outputs"][0]["data"][0]),
                (&"7".into(), &0.5.into()),
                "{answer}"
            );
            let answer: serde_json::Value =
                node.post("/v2/models/echo/infer", request.to_string()).await.ok().json();
            assert_eq!(answer["outputs"][0]["data"][0], 0.5, "{answer}");
        }
    }
    assert_eq!(
        cluster.metric("weir_cold_starts_total", "cause=\"model\"").await,
        1.0,
        "the model was loaded again"
    );
    assert_eq!(cluster.metric("weir_invocations_forwarded_total", "").await, 2.0);
    assert_eq!(cluster.metric("nv_inference_request_success", "model=\"m\"").await, 4.0);
}

/// The recordings of the schedulers replay with equal decisions.
#[tokio::test]
async fn scheduler_recordings_can_be_replayed() {
    if !Etcd::is_installed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("record");
    let mut cluster = TestCluster::builder()
        .set("models.backend", "fake")
        .set("models.memory_bytes_max", 1_500)
        .set("scheduler.record", record.display())
        .start(3)
        .await;
    for model in ["a", "b"] {
        cluster.nodes[0].push_model(model, 1, fake(10, 3, 1_000)).await;
        cluster.nodes[0].deploy_with(model, &format!("models={model}"), function("infer")).await;
        cluster.all_have_heard_of(model).await;
        cluster.all_know(model).await;
    }
    for round in 0..5 {
        let paths = ["/fn/a/a?shape=1,1", "/fn/b/b?shape=1,1"];
        let calls = cluster.nodes.iter().flat_map(|node| paths.map(|path| node.post(path, &INPUT[..])));
        let answers = futures::future::join_all(calls).await;
        assert!(answers.iter().all(weir_tests::Answer::is_ok), "in round {round}: {answers:?}");
    }
    let binary = cluster.nodes[0].binary().to_owned();
    for node in cluster.nodes.drain(..) {
        node.stop().await;
    }
    let mut records = 0;
    for file in std::fs::read_dir(folder.path()).unwrap() {
        let mut weir = tokio::process::Command::new(&binary);
        let replayed = weir.args(["simulate", "--replay"]).arg(file.unwrap().path()).output().await.unwrap();
        assert!(replayed.status.success(), "{}", String::from_utf8_lossy(&replayed.stderr));
        records += 1;
    }
    assert!(records >= 3, "a node has no record of its scheduler");
}

/// A node that does not know the model yet does not run it; the calling node runs it.
#[tokio::test]
async fn model_is_callable_immediately_after_push() {
    if !Etcd::is_installed() {
        return;
    }
    let cluster = TestCluster::builder().set("models.backend", "fake").start(3).await;
    let input = serde_json::json!({ "name": "x", "datatype": "FP32", "shape": [1, 1], "data": [0.5] });
    let request = serde_json::json!({ "inputs": [input] }).to_string();
    for version in 1..=20 {
        let node = &cluster.nodes[version as usize % 3];
        node.push_model("m", version, fake(1, 1, 1_000)).await;
        let answer = node.post(&format!("/v2/models/m/versions/{version}/infer"), request.clone()).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
}

/// A model pushed through a node without accelerators runs on a node with accelerators.
#[tokio::test]
async fn model_runs_on_a_node_with_the_required_device() {
    if !Etcd::is_installed() {
        return;
    }
    let mut cluster = TestCluster::builder().set("models.backend", "fake").start(1).await;
    cluster.nodes.push(cluster.node().argument("--devices").argument("cpu,fake:x,fake:x").start().await);
    cluster.settle().await;
    let model: serde_json::Value = serde_json::from_str(&fake(1, 1, 1_000)).unwrap();
    cluster.nodes[0].put("/v1/models/m/versions/1?device=fake", model.to_string()).await.ok();
    cluster.nodes[0].deploy_with("infer", "models=m", function("infer")).await;
    cluster.all_have_heard_of("m").await;
    cluster.all_know("infer").await;
    let input = serde_json::json!({ "name": "x", "datatype": "FP32", "shape": [1, 1], "data": [0.5] });
    let request = serde_json::json!({ "inputs": [input] }).to_string();
    for node in &cluster.nodes {
        let answer = node.post("/v2/models/m/infer", request.clone()).await.ok();
        assert!(answer.header("weir-device").is_some_and(|device| device.starts_with("fake:")), "{answer:?}");
        node.post(INFER, &INPUT[..]).await.ok();
    }
    assert_eq!(
        cluster.metric("weir_cold_starts_total", "cause=\"model\"").await,
        1.0,
        "the model was loaded again"
    );
    assert_eq!(cluster.holder("m:1").await, Some(1));
    eventually("the news of the devices", async || {
        let status = cluster.nodes[0].status().await.cluster.unwrap();
        let devices = status.nodes.iter().flat_map(|node| &node.devices);
        let mut kinds: Vec<_> = devices.map(|device| (device.name.clone(), device.kind.clone())).collect();
        kinds.sort();
        let listed: Vec<_> = kinds.iter().map(|(name, kind)| (&**name, &**kind)).collect();
        (listed == [("cpu", "cpu"), ("cpu", "cpu"), ("fake:1", "x"), ("fake:2", "x")]).then_some(())
    })
    .await;
}

/// A lost device is lost for the whole cluster; its node continues with the other devices.
#[tokio::test]
async fn calls_avoid_a_device_lost_by_another_node() {
    if !Etcd::is_installed() {
        return;
    }
    let mut cluster = TestCluster::builder().set("models.backend", "fake").start(1).await;
    cluster.nodes.push(cluster.node().argument("--devices").argument("cpu,fake:x,fake:x").start().await);
    cluster.settle().await;
    let model = |more: serde_json::Value| {
        let mut model: serde_json::Value = serde_json::from_str(&fake(1, 1, 1_000)).unwrap();
        model.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        model.to_string()
    };
    let breaks = model(serde_json::json!({ "on": { "x": { "loses_device_ms": 3_600_000 } } }));
    for (name, model) in [("breaks", breaks), ("m", fake(1, 1, 1_000))] {
        cluster.nodes[0].put(&format!("/v1/models/{name}/versions/1?device=fake"), model).await.ok();
        cluster.all_have_heard_of(name).await;
    }
    let input = serde_json::json!({ "name": "x", "datatype": "FP32", "shape": [1, 1], "data": [0.5] });
    let request = serde_json::json!({ "inputs": [input] }).to_string();
    let broken = cluster.nodes[0].post("/v2/models/breaks/infer", request.clone()).await;
    assert_eq!(broken.status, 503, "{broken:?}");
    let lost = async || {
        let devices = cluster.nodes[1].status().await.devices;
        devices.into_iter().find(|device| device.lost.is_some()).map(|device| device.name)
    };
    let lost = eventually("the loss", lost).await;
    // Until the dispatcher knows about the loss, calls may still fail.
    eventually("a call on another device than the lost one", async || {
        let answer = cluster.nodes[0].post("/v2/models/m/infer", request.clone()).await;
        let device = answer.header("weir-device").filter(|_| answer.is_ok())?;
        assert_ne!(device, lost);
        Some(())
    })
    .await;
}

#[tokio::test]
async fn forwarded_call_is_explained_with_its_outcome_by_the_node_that_received_it() {
    if !Etcd::is_installed() {
        return;
    }
    let cluster = one_model(2, "", 30).await;
    assert_eq!(cluster.nodes[0].post(INFER, &INPUT[..]).await.status, 200);
    let holder = cluster.holder("m:1").await.unwrap();
    let other = &cluster.nodes[1 - holder];
    let answer = other.post(INFER, &INPUT[..]).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(
        cluster.metric("weir_invocations_forwarded_total", "").await,
        if holder == 0 { 1.0 } else { 2.0 }
    );
    let id = answer.header("weir-request-id").unwrap();
    // The end of the call is recorded soon after its response.
    let explained = eventually("the outcome", async || {
        let explained: serde_json::Value = other.get(&format!("/v1/placements/{id}")).await.json();
        (!explained["outcome"].is_null()).then_some(explained)
    })
    .await;
    let run_time_ns = explained["outcome"]["run_time_ns"].as_u64().unwrap();
    assert!(run_time_ns >= 30_000_000, "{explained}");
    assert!(explained["ratio"]["total"].is_number(), "{explained}");
}

/// Indices of the nodes that have a model in memory.
async fn holders(cluster: &TestCluster, model: &str) -> Vec<usize> {
    let mut holders = Vec::new();
    for (index, node) in cluster.nodes.iter().enumerate() {
        let devices = node.status().await.devices;
        if devices.iter().any(|device| device.resident.iter().any(|resident| resident == model)) {
            holders.push(index);
        }
    }
    holders
}

#[tokio::test]
async fn required_copies_are_on_several_nodes_and_replaced() {
    if !Etcd::is_installed() {
        return;
    }
    let mut cluster = TestCluster::builder().set("models.backend", "fake").start(3).await;
    let pushed = cluster.nodes[1].put("/v1/models/m/versions/1?copies_min=2", fake(50, 1, 1_000)).await;
    assert_eq!(pushed.status, 200, "{pushed:?}");
    let two = eventually("two copies", async || {
        let holders = holders(&cluster, "m:1").await;
        (holders.len() == 2).then_some(holders)
    })
    .await;
    assert_eq!(cluster.metric("weir_cold_starts_total", "cause=\"model\"").await, 0.0);
    // Also if the lost node is the dispatcher: the next dispatcher gets the list.
    cluster.nodes.remove(two[0]).kill().await;
    eventually("two copies on the nodes that remain", async || {
        (holders(&cluster, "m:1").await == [0, 1]).then_some(())
    })
    .await;
}
