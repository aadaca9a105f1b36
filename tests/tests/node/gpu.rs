//! Nodes with a GPU: a fake driver under the production stack.

mod doctor;
mod guests;
mod handing_over;
mod libraries;
mod robustness;
mod siblings;
mod spilling;
mod workers;

use serde_json::{Value, json};
use weir_tests::{
    Answer, NodeBuilder, TestClient, TestNode, digits, eventually, function, model, model_with_rows,
};
use weir_types::ErrorCode;
use weir_types::api::ModelVersion;

/// Builder of a node with a driver for one GPU.
fn with_gpu(devices: &str) -> NodeBuilder {
    let library = weir_fake_cuda::library().display().to_string();
    let node = TestNode::builder()
        .set("gpu.pinned_cache_bytes_max", 16 << 20)
        .env("WEIR_CUDA_LIBRARY", library)
        .env("WEIR_FAKE_CUDA", "devices=1,seed=3");
    node.argument("--devices").argument(devices)
}

/// Builder of a node without a driver.
fn without_gpu(devices: &str) -> NodeBuilder {
    let node = TestNode::builder().env("WEIR_CUDA_LIBRARY", "/nowhere/libcuda.so.1");
    node.argument("--devices").argument(devices)
}

/// Runs the digits model directly on `count` generated images. Returns the output, and the name of
/// the device.
async fn ask(node: &TestClient, count: usize) -> (Vec<f64>, String) {
    let image: Vec<f32> = (0..count * 64).map(|at| (at * 7 % 17) as f32 / 17.0).collect();
    let input = json!({"name": "image", "datatype": "FP32", "shape": [count, 1, 8, 8], "data": image});
    let body = json!({"inputs": [input]}).to_string();
    let answer = node.post("/v2/models/digits/infer", body).await.ok();
    let device = answer.header("weir-device").unwrap_or_default().to_owned();
    let outputs: Value = answer.json();
    let values = outputs["outputs"][0]["data"].as_array().expect("values");
    (values.iter().filter_map(Value::as_f64).collect(), device)
}

#[tokio::test]
async fn gpu_runs_models_for_clients_and_functions() {
    let (node, reference) = tokio::join!(with_gpu("cuda").start(), without_gpu("cpu").start());
    for node in [&node, &reference] {
        node.push_model("digits", 1, digits()).await;
        node.deploy_with("classify", "models=digits", function("classify-digits")).await;
    }
    // The worker reads 300 images in place, without a copy.
    for count in [1, 3, 300, 1, 1] {
        let ((here, device), (expected, processor)) = tokio::join!(ask(&node, count), ask(&reference, count));
        assert_eq!((&*device, &*processor), ("cuda:0", "cpu"));
        assert_eq!(here.len(), count * 10);
        assert!(here.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= 2e-3), "{here:?}\n{expected:?}");
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../functions/classify-digits/samples/7.png");
    let digit = |answer: Answer| answer.ok().json::<Value>()["digit"].clone();
    let answer = node.post("/fn/classify/", std::fs::read(path).expect("a picture")).await;
    assert_eq!(digit(answer), 7);

    let devices = node.status().await.devices;
    assert_eq!(devices.len(), 1);
    assert_eq!((&*devices[0].name, &*devices[0].resident), ("cuda:0", &["digits:1".to_owned()][..]));
}

#[tokio::test]
async fn model_precision_follows_the_manifest() {
    let node = with_gpu("cuda").start().await;
    let mut answers = Vec::new();
    for (version, precision) in (1..).zip(["fp32", "tf32", "fp16", "bf16"]) {
        let path = format!("/v1/models/digits/versions/{version}?precision={precision}");
        let pushed: Value = node.put(&path, digits()).await.ok().json();
        assert_eq!(pushed["manifest"]["precision"].as_str().unwrap_or("tf32"), precision);
        answers.push(ask(&node, 2).await.0);
    }
    let (exact, coarser) = answers.split_first().expect("four");
    let off = |found: &Vec<f64>| found.iter().zip(exact).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    let [tf32, fp16, bf16] = [0, 1, 2].map(|at| off(&coarser[at]));
    assert!(0.0 < fp16 && fp16 < 5e-3 && fp16 < bf16 && bf16 < 5e-2 && tf32 < 5e-3, "{tf32} {fp16} {bf16}");

    let refused = node.put("/v1/models/digits/versions/5?precision=fp8", digits()).await;
    let refused = refused.refusal();
    assert_eq!(refused.code, ErrorCode::InvalidManifest);
    assert!(refused.text.contains("fp16"), "{refused:?}");
}

/// Metrics have the names that Triton dashboards use.
#[tokio::test]
async fn gpu_statistics_are_exported_as_metrics() {
    let node = with_gpu("cuda").env("WEIR_FAKE_CUDA", "devices=2,seed=3").start().await;
    let [first, second] =
        [0, 1].map(|number| format!("gpu_uuid=\"GPU-00000000-0000-0000-0000-{number:012}\""));
    for (name, of_first, of_second) in [
        ("nv_gpu_utilization", 0.40, 0.41),
        ("nv_gpu_memory_total_bytes", 85_899_345_920.0, 85_899_345_920.0),
        ("nv_gpu_memory_used_bytes", 1_073_741_824.0, 2_147_483_648.0),
        ("nv_gpu_power_usage", 123.5, 123.5),
    ] {
        assert_eq!(node.metric(name, &first).await, of_first, "{name}");
        assert_eq!(node.metric(name, &second).await, of_second, "{name}");
    }
    assert_eq!(node.metric("nv_gpu_power_limit", &first).await, 700.0);
    let text = node.get("/metrics").await.ok().text().to_owned();
    assert!(
        !text.contains(&format!("nv_gpu_power_limit{{{second}}}")),
        "a metric exists for a value that the device does not report\n{text}"
    );
    // Counted from the first sample on; samples are at most one per second.
    let energy = async || {
        let energy = node.metric("nv_energy_consumption", &first).await;
        (energy > 0.0).then_some(energy)
    };
    assert_eq!(eventually("another look", energy).await % 2.5, 0.0);

    let node = without_gpu("cpu").start().await;
    assert!(!node.get("/metrics").await.ok().text().contains("nv_gpu_"));
}

#[tokio::test]
async fn model_unsupported_by_the_gpu_runs_on_the_cpu_with_a_reason() {
    let node = with_gpu("auto").start().await;
    let names: Vec<String> = node.status().await.devices.into_iter().map(|device| device.name).collect();
    assert_eq!(names, ["cpu", "cuda:0"]);
    // The model's only operator has no GPU kernel.
    let path = "/v1/models/arcs/versions/1";
    let pushed: ModelVersion = node.put(path, model("good/atan.onnx")).await.ok().json();
    let [cpu, gpu] = &pushed.devices[..] else { panic!("two devices: {pushed:?}") };
    assert_eq!((cpu.why_not.as_deref(), &*gpu.device), (None, "cuda:0"));
    let why = gpu.why_not.as_deref().unwrap_or_default();
    assert!(why.contains("not supported on the GPU: run the model on the CPU"), "{why}");
    let ones = json!({"name": "x", "datatype": "FP32", "shape": [1, 32, 32], "data": vec![1.0; 1024]});
    let answer = node.post("/v2/models/arcs/infer", json!({"inputs": [ones]}).to_string()).await.ok();
    assert_eq!(answer.header("weir-device"), Some("cpu"));
    let arc = answer.json::<Value>()["outputs"][0]["data"][1023].as_f64().expect("a number");
    assert!((arc - std::f64::consts::FRAC_PI_4).abs() < 1e-6, "{arc}");
    // If the manifest requires a GPU, the push is rejected.
    let refused = node.put("/v1/models/arcs/versions/2?device=cuda", model("good/atan.onnx")).await;
    let refused = refused.refusal();
    assert!(refused.text.contains("not supported on the GPU"), "{refused:?}");
}

#[tokio::test]
async fn model_larger_than_the_gpu_is_rejected_without_affecting_others() {
    let node = with_gpu("cuda").env("WEIR_FAKE_CUDA", "devices=1,seed=3,memory_bytes=16777216").start().await;
    node.push_model("digits", 1, digits()).await;
    let path = "/v1/models/large/versions/1";
    // 16 MiB of weights, and as much of activations.
    let pushed: ModelVersion = node.put(path, model_with_rows(4_096, 1.0)).await.ok().json();
    let why = pushed.devices[0].why_not.as_deref().unwrap_or_default();
    assert!(why.contains("bytes; the memory for models is"), "{why}");
    let row = json!({"name": "row", "datatype": "INT64", "shape": [1], "data": [7]});
    let square = |name: &str, shape: &[u32]| {
        let count: u32 = shape.iter().product();
        json!({"name": name, "datatype": "FP32", "shape": shape, "data": vec![0.5; count as usize]})
    };
    let inputs = json!({"inputs": [square("x", &[1, 32, 32]), row, square("more", &[32, 32])]});
    let refused = node.post("/v2/models/large/infer", inputs.to_string()).await.refusal();
    assert_eq!((refused.status, refused.code), (507, ErrorCode::NoCapacity), "{refused:?}");
    assert!(refused.text.contains("large:1") && refused.text.contains(why), "{refused:?}");
    assert_eq!(ask(&node, 1).await.1, "cuda:0");
}

#[tokio::test]
async fn node_without_gpu_uses_the_cpu_unless_cuda_is_required() {
    let node = without_gpu("auto").start().await;
    node.push_model("digits", 1, digits()).await;
    assert_eq!(ask(&node, 1).await.1, "cpu");

    let error = without_gpu("cuda").try_start().await.err().expect("the node started without a device");
    assert!(error.contains("cuda") && error.contains("/nowhere/libcuda.so.1"), "{error}");
}
