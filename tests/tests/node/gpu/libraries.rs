//! CUDA libraries other than the driver: a node uses those that it finds, logs them once, and runs
//! without unusable libraries.

use super::{ask, with_gpu};
use serde_json::{Value, json};
use std::path::Path;
use weir_tests::{NodeBuilder, TestNode, digits, eventually, large_model};

/// Log message of a node with a usable library.
const USED: &str = "cuBLASLt found";
/// Log message of a node with an unusable library.
const UNUSED: &str = "cuBLASLt cannot be used";
/// The same messages for the compiler of elementwise chains.
const COMPILING: &str = "NVRTC found";
const INTERPRETING: &str = "NVRTC cannot be used";

/// Folder of the fake driver, which also has the fake libraries.
pub(super) fn beside_the_driver() -> String {
    weir_fake_cuda::library().parent().unwrap_or(Path::new("/")).display().to_string()
}

/// Starts a node, runs a model on its GPU, and returns the log.
async fn log_of(node: NodeBuilder) -> String {
    let node = node.start().await;
    node.push_model("digits", 1, digits()).await;
    assert_eq!(ask(&node, 8).await.1, "cuda:0");
    node.log()
}

#[tokio::test]
async fn gpu_libraries_are_used_unless_disabled() {
    let node = || with_gpu("cuda").env("WEIR_CUDA_LIBRARY_PATH", beside_the_driver());
    let log = log_of(node()).await;
    assert_eq!(log.matches(USED).count(), 1, "{log}");
    assert!(log.contains("13.4.5") && !log.contains(UNUSED), "{log}");
    assert_eq!(log.matches(COMPILING).count(), 1, "{log}");
    assert!(log.contains("13.0") && !log.contains(INTERPRETING), "{log}");

    let log = log_of(node().set("gpu.libraries", "none")).await;
    assert!(!log.contains("cuBLASLt") && !log.contains("NVRTC"), "{log}");
}

#[tokio::test]
async fn chain_compilation_runs_in_background_and_failures_are_logged_once() {
    let node = |settings: &str| {
        // The emulator takes long on a busy machine.
        let node = with_gpu("cuda").set("gateway.infer_wall_ms_max", 3_600_000);
        node.set("gpu.run_wall_ms_max", 600_000)
            .env("WEIR_CUDA_LIBRARY_PATH", beside_the_driver())
            .env("WEIR_FAKE_CUDA", settings)
    };
    let (interpreting, compiling) =
        tokio::join!(node("devices=1,seed=3,nvrtc_fails=1").start(), node("devices=1,seed=4").start());
    let twice = async |node: &TestNode| {
        node.push_model("densenet", 1, large_model("light_densenet121.onnx")).await;
        [picture(node).await, picture(node).await]
    };
    let (interpreted, compiled) = tokio::join!(twice(&interpreting), twice(&compiling));
    assert!(
        interpreted[0] == interpreted[1] && interpreted == compiled,
        "compiled and interpreted chains differ"
    );
    // Only the first failure is logged.
    let failures =
        async || Some(interpreting.log().matches("NVRTC fails").count()).filter(|count| *count > 0);
    assert_eq!(eventually("the worker says that the compiler fails", failures).await, 1);
    assert!(interpreting.log().contains("it fails as it was told to"), "{}", interpreting.log());
    assert!(!compiling.log().contains("NVRTC fails"), "{}", compiling.log());
}

/// Output of the network for an image, as bytes.
async fn picture(node: &TestNode) -> Vec<u8> {
    let data: Vec<f32> = (0..3 * 224 * 224).map(|at| (at % 251) as f32 / 251.0 - 0.5).collect();
    let input = json!({"name": "data_0", "datatype": "FP32", "shape": [1, 3, 224, 224], "data": data});
    let answer = node.post("/v2/models/densenet/infer", json!({"inputs": [input]}).to_string()).await.ok();
    assert_eq!(answer.header("weir-device"), Some("cuda:0"));
    let outputs: Value = answer.json();
    outputs["outputs"][0]["data"].to_string().into_bytes()
}

#[tokio::test]
async fn unusable_gpu_library_is_logged_once_and_skipped() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("libcublasLt.so.13");
    std::fs::write(&file, "not a library").expect("a file");
    let compiler = folder.path().join("libnvrtc.so.13");
    std::fs::write(&compiler, "not a library").expect("a file");
    let log =
        log_of(with_gpu("cuda").env("WEIR_CUDA_LIBRARY_PATH", folder.path().display().to_string())).await;
    assert_eq!(log.matches(UNUSED).count(), 1, "{log}");
    assert!(log.contains(&file.display().to_string()) && log.contains("gpu.libraries"), "{log}");
    assert_eq!(log.matches(INTERPRETING).count(), 1, "{log}");
    assert!(log.contains(&compiler.display().to_string()), "{log}");

    let node = with_gpu("cuda").env("WEIR_CUDA_LIBRARY_PATH", beside_the_driver());
    let log = log_of(node.env("WEIR_FAKE_CUDA", "devices=1,seed=3,cublaslt_create=1")).await;
    assert_eq!(log.matches(UNUSED).count(), 1, "{log}");
    assert!(log.contains("CUBLAS_STATUS_NOT_INITIALIZED"), "{log}");
}
