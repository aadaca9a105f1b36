//! Compilation of CUDA C with NVRTC, which needs no GPU.

use super::{example, infer, output, packed, push, tensor, with_kernel_graphs};
use serde_json::{Value, json};
use weir_tests::NodeBuilder;
use weir_types::ErrorCode;

/// Builder of a node with NVRTC. Returns `None` if NVRTC is not installed.
fn with_compiler() -> Option<NodeBuilder> {
    let Some(folder) = weir_tests::nvrtc() else {
        assert!(
            std::env::var_os("CI").is_none(),
            "NVRTC is missing; `cargo xtask kernels --check` brings it"
        );
        eprintln!("skipped: there is no NVRTC; `cargo xtask kernels --check` brings it");
        return None;
    };
    Some(with_kernel_graphs().env("WEIR_CUDA_LIBRARY_PATH", folder.display().to_string()))
}

/// An example with its CUDA C as source.
fn in_cuda_c(name: &str, file: &str) -> Value {
    let text = std::fs::read_to_string(example(name).join(file)).expect("a source");
    json!({ "graph": packed(name)["graph"], "sources": { file: text } })
}

#[tokio::test]
async fn cuda_c_is_compiled_on_push() {
    let Some(node) = with_compiler() else { return };
    let node = node.start().await;
    for (name, file) in
        [("sgemm-chain", "sgemm.cu"), ("resize-normalise", "resize.cu"), ("jacobi", "jacobi.cu")]
    {
        push(&node, name, &in_cuda_c(name, file)).await.ok();
    }
    let inputs = [tensor("a", &[1, 1], &[2.0]), tensor("b", &[1, 1], &[3.0]), tensor("c", &[1, 1], &[4.0])];
    assert_eq!(output(&infer(&node, "sgemm-chain", &inputs).await.ok(), "d"), [24.0]);
}

#[tokio::test]
async fn compile_errors_have_the_compilers_message() {
    let Some(node) = with_compiler() else { return };
    let node = node.start().await;
    for (text, why) in [
        (
            "extern \"C\" __global__ void sgemm(float* a) { b[0] = 1; }",
            "k.cu(1): error: identifier \"b\" is undefined",
        ),
        (
            "extern \"C\" __global__ void sgemm(int* a) { printf(\"%d\", a[0]); }",
            "vprintf is not in the source",
        ),
        ("extern \"C\" __global__ void sgemm(int* a) { a[0] = 1; }", "kernel sgemm takes 1 arguments, not 6"),
        ("__device__ int f() { return 1; }", "there is no kernel in it"),
        ("#define FILE \"/etc/passwd\"\n#include FILE\n", "k.cu: line 2: \"include\" is not allowed"),
    ] {
        let upload = json!({ "graph": packed("sgemm-chain")["graph"], "sources": { "k.cu": text } });
        let refusal = push(&node, "g", &upload).await.refusal();
        assert_eq!((refusal.status, refusal.code), (422, ErrorCode::InvalidKernelGraph), "{refusal:?}");
        assert!(refusal.text.contains(why), "{why}: {refusal:?}");
    }
    assert_eq!(node.get("/v1/kernel-graphs").await.ok().json::<Value>(), json!([]));
}

#[tokio::test]
async fn missing_compiler_error_says_how_to_install_it() {
    let folder = tempfile::tempdir().unwrap();
    let node = with_kernel_graphs().env("HOME", folder.path().display().to_string()).start().await;
    let refusal = push(&node, "g", &in_cuda_c("sgemm-chain", "sgemm.cu")).await;
    // If the machine has NVRTC installed, the push succeeds.
    if !refusal.is_ok() {
        let refusal = refusal.refusal();
        assert_eq!((refusal.status, refusal.code), (501, ErrorCode::NotSupported));
        assert!(
            refusal.text.contains("nvidia-cuda-nvrtc") && refusal.text.contains("push PTX"),
            "{refusal:?}"
        );
    }
}
