//! `wasi:nn` components, with granted models and with models in their own bytes.

use bytes::Bytes;
use weir_tests::{TestClient, TestNode, digits, function, large_model, made_up, model, output_in_python};
use weir_types::ErrorCode;

fn values(bytes: &Bytes) -> Vec<f32> {
    bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

/// Calls `classify-nn` and returns its error: code and text.
async fn error(client: &TestClient, path: &str, body: impl Into<reqwest::Body>) -> String {
    let answer = client.post(path, body).await;
    assert_eq!(answer.status, 418, "{path}: {}", answer.text());
    answer.text().to_owned()
}

#[tokio::test]
async fn wasi_nn_results_equal_weir_inference_and_python() {
    let node = TestNode::start().await;
    let models = "models=digits,light_squeezenet";
    let deployed = node.deploy_with("nn", &format!("{models}&strict=true"), function("classify-nn")).await;
    assert!(deployed.warnings.iter().all(|warning| !warning.contains("use any")), "{deployed:?}");
    node.deploy_with("infer", models, function("infer")).await;
    node.push_model("digits", 1, digits()).await;
    node.push_model("light_squeezenet", 1, large_model("light_squeezenet.onnx")).await;
    for (name, shape, input) in
        [("digits", "1,1,8,8", "image"), ("light_squeezenet", "1,3,224,224", "data_0")]
    {
        let count = shape.split(',').map(|size| size.parse::<u32>().unwrap()).product();
        let body = made_up(count);
        let path = format!("/fn/nn/classify?model={name}&shape={shape}&input");
        let by_nn = node.post(&format!("{path}={input}"), body.clone()).await.ok();
        let by_weir = node.post(&format!("/fn/infer/{name}?shape={shape}"), body.clone()).await.ok();
        assert_eq!(by_nn.body, by_weir.body, "{name}");
        // By position, as in earlier versions of the interface.
        assert_eq!(node.post(&format!("{path}=0"), body).await.ok().body, by_nn.body);
        let here = values(&by_nn.body);
        let in_python = output_in_python(name);
        assert_eq!(here.len(), in_python.len());
        let largest = here.iter().zip(&in_python).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(largest <= 1e-5, "{name}: {largest} apart");
    }
    assert!(node.metric("weir_cold_starts_total", "cause=\"model\"").await == 2.0);
}

#[tokio::test]
async fn all_wasi_nn_types_are_supported() {
    let node = TestNode::start().await;
    node.deploy_with("nn", "models=identity,all:1", function("classify-nn")).await;
    node.push_model("identity", 1, model("good/identity_nn.onnx")).await;
    let said = node.get("/fn/nn/types?model=identity").await.ok();
    let mut lines: Vec<_> = said.text().lines().collect();
    lines.sort_unstable();
    let expected = ["bf16 TensorType::Bf16", "fp16 TensorType::Fp16", "fp32 TensorType::Fp32"]
        .into_iter()
        .chain(["fp64 TensorType::Fp64", "int32 TensorType::I32", "int64 TensorType::I64"])
        .chain(["uint8 TensorType::U8"])
        .map(|name| format!("y_{name} [2] true"));
    assert_eq!(lines, expected.collect::<Vec<_>>());
    // A reference with a version, and a model whose output type `wasi:nn` lacks.
    node.push_model("all", 1, model("good/identity.onnx")).await;
    let refused = error(&node, "/fn/nn/classify?model=all:1&shape=2&input=x_fp32", vec![0; 8]).await;
    assert!(refused.starts_with("ErrorCode::UnsupportedOperation") && refused.contains("y_"), "{refused}");
}

#[tokio::test]
async fn wasi_nn_runs_are_concurrent() {
    let node = TestNode::start().await;
    node.deploy_with("nn", "models=digits", function("classify-nn")).await;
    node.push_model("digits", 1, digits()).await;
    let path = "/fn/nn/classify?model=digits&shape=1,1,8,8&input=image";
    let calls = (0..24).map(|_| node.post(path, made_up(64)));
    let expected = output_in_python("digits");
    for answer in futures::future::join_all(calls).await {
        let here = values(&answer.ok().body);
        assert!(here.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= 1e-5), "{here:?}");
    }
}

#[tokio::test]
async fn wasi_nn_errors_have_codes() {
    let node = TestNode::start().await;
    node.deploy_with("nn", "models=m,gone", function("classify-nn")).await;
    node.push_model("m", 1, model("good/matmul.onnx")).await;
    for (what, query, bytes, code, text) in [
        ("another's model", "model=other", 16, "Security", "not granted"),
        ("a model that is not there", "model=gone", 16, "NotFound", "no model gone"),
        ("no name at all", "model=../x", 16, "InvalidArgument", "not a model reference"),
        ("an unknown input", "model=m&shape=1,4&input=z", 16, "InvalidArgument", "no input"),
        ("a position past the last", "model=m&shape=1,4&input=1", 16, "InvalidArgument", "no input"),
        ("a wrong shape", "model=m&shape=1,5&input=x", 20, "InvalidArgument", "shape"),
        ("a wrong type", "model=m&shape=1,4&input=x&type=int32", 16, "InvalidArgument", "INT32"),
        ("too few bytes", "model=m&shape=1,4&input=x", 15, "InvalidArgument", "15"),
        (
            "a shape that is too large",
            "model=m&shape=4294967295,4294967295,9&input=x",
            16,
            "InvalidArgument",
            "",
        ),
    ] {
        let said = error(&node, &format!("/fn/nn/classify?{query}"), vec![0; bytes]).await;
        let is_it = said.starts_with(&format!("ErrorCode::{code}: ")) && said.contains(text);
        assert!(is_it, "{what}: {said}");
    }
    // The failed calls leave no state in the node, and valid calls still run.
    let sum = node.post("/fn/nn/classify?model=m&shape=1,4&input=x", vec![0; 16]).await.ok();
    assert_eq!(values(&sum.body), [0.0; 3]);
}

#[tokio::test]
async fn missing_grants_are_reported_on_deploy_and_call() {
    let node = TestNode::start().await;
    let strict = node.try_deploy("nn", "strict=true", function("classify-nn")).await.unwrap_err();
    assert_eq!(strict.code, ErrorCode::NotGranted);
    let deployed = node.deploy("nn", function("classify-nn")).await;
    assert!(deployed.denied_imports.iter().any(|name| name.starts_with("wasi:nn/graph@")), "{deployed:?}");
    assert!(deployed.warnings.iter().any(|warning| warning.contains("can use models")), "{deployed:?}");
    let by_name = error(&node, "/fn/nn/classify?model=digits", "").await;
    assert!(by_name.starts_with("ErrorCode::Security"), "{by_name}");
    let by_bytes = error(&node, &format!("/fn/nn/load?bytes={}", digits().len()), digits()).await;
    assert!(by_bytes.starts_with("ErrorCode::Security"), "{by_bytes}");
    assert!(by_bytes.contains("limits.loaded_model_bytes"), "{by_bytes}");
    let logged = node.logs("nn").await.into_iter().filter(|line| line.text.starts_with("not-granted: "));
    assert_eq!(logged.count(), 2);
}

#[tokio::test]
async fn guest_may_load_model_bytes_if_granted() {
    let node = TestNode::start().await;
    let onnx = digits();
    let bytes = onnx.len();
    node.deploy_with("nn", &format!("limits.loaded_model_bytes={bytes}"), function("classify-nn")).await;
    let body = |onnx: &[u8]| [onnx, &made_up(64)].concat();
    let path = format!("/fn/nn/load?bytes={bytes}&shape=1,1,8,8&input=image");
    for encoding in ["onnx", "autodetect"] {
        let answer = node.post(&format!("{path}&encoding={encoding}"), body(&onnx)).await.ok();
        let here = values(&answer.body);
        let in_python = output_in_python("digits");
        assert!(here.iter().zip(&in_python).all(|(a, b)| (a - b).abs() <= 1e-5), "{here:?}");
    }
    for (what, query, onnx, code) in [
        ("another encoding", "&encoding=openvino", &onnx[..], "InvalidEncoding"),
        ("another device", "&target=gpu", &onnx[..], "UnsupportedOperation"),
        ("no builder", "&times=0", &onnx[..], "InvalidArgument"),
        ("two builders", "&times=2", &onnx[..], "InvalidArgument"),
        ("bytes that are no model", "", &vec![b'x'; bytes][..], "InvalidEncoding"),
        ("half a model", "", &[&onnx[..bytes / 2], &vec![0xff; bytes - bytes / 2][..]].concat(), "Invalid"),
    ] {
        let said = error(&node, &format!("{path}{query}"), body(onnx)).await;
        assert!(said.starts_with(&format!("ErrorCode::{code}")), "{what}: {said}");
    }
    node.deploy_with("small", &format!("limits.loaded_model_bytes={}", bytes - 1), function("classify-nn"))
        .await;
    let over = error(&node, &path.replace("/fn/nn/", "/fn/small/"), body(&onnx)).await;
    assert!(over.starts_with("ErrorCode::TooLarge"), "{over}");
    // The models are removed at the end of the invocation, from memory and disk.
    weir_tests::eventually("the removal of the models of guests", async || {
        let device = &node.status().await.devices[0];
        let left = std::fs::read_dir(node.data().join("models")).unwrap().count();
        (device.used_bytes == 0 && left == 0).then_some(())
    })
    .await;
    assert!(node.models().await.is_empty());
    // Also for reused instances.
    let many = node.try_deploy("nn", "limits.loaded_model_bytes=999999999999", function("classify-nn")).await;
    assert_eq!(many.unwrap_err().code, ErrorCode::LimitOverCap);
}

#[tokio::test]
async fn reused_instance_keeps_its_graph_without_pinning_the_model() {
    let node = TestNode::start().await;
    node.deploy_with("nn", "models=digits&reuse=true", function("classify-nn")).await;
    node.push_model("digits", 1, digits()).await;
    let again = async || {
        let answer = node.post("/fn/nn/again?model=digits&input=image", made_up(64)).await.ok();
        assert_eq!(values(&answer.body).len(), 10);
        weir_tests::eventually("the end of the call", async || {
            (node.metric("weir_instances_idle", "").await == 1.0).then_some(())
        })
        .await;
        answer.body
    };
    let first = again().await;
    assert_eq!(again().await, first);
    assert_eq!(node.metric("weir_function_instances_total", "instance=\"reused\"").await, 1.0);
    node.post("/v2/repository/models/digits/unload", "").await.ok();
    weir_tests::eventually("the model to be unloaded", async || {
        node.status().await.devices[0].resident.is_empty().then_some(())
    })
    .await;
    assert_eq!(again().await, first);
    node.delete("/v1/models/digits").await.ok();
    let gone = error(&node, "/fn/nn/again?model=digits&input=image", made_up(64)).await;
    assert!(gone.starts_with("ErrorCode::NotFound"), "{gone}");
}
