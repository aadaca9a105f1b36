//! Kernel graphs on a node with a GPU. The fake driver runs the examples' kernels on the CPU.

mod compiling;
mod faults;
mod looking_after;
mod running;

use serde_json::{Value, json};
use std::path::PathBuf;
use weir_tests::{Answer, NodeBuilder, TestClient, TestNode, children};

/// Builder of a node with kernel graphs enabled and small memory limits.
pub(crate) fn with_kernel_graphs() -> NodeBuilder {
    let library = weir_fake_cuda::library().display().to_string();
    TestNode::builder()
        .env("WEIR_CUDA_LIBRARY", library)
        .env("WEIR_FAKE_CUDA", "devices=1,seed=3")
        .argument("--devices")
        .argument("auto")
        .set("kernel_graphs.enabled", true)
        .set("kernel_graphs.memory_bytes_max", 64 << 20)
        .set("kernel_graphs.context_bytes", 64 << 20)
}

fn example(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/kernel-graphs")).join(name)
}

/// An example as an upload, with its CUDA C and the PTX.
pub(crate) fn packed(name: &str) -> Value {
    let folder = example(name);
    let graph: Value =
        serde_json::from_slice(&std::fs::read(folder.join("graph.json")).expect("a graph")).expect("JSON");
    let files = folder.read_dir().expect("a folder").map(|entry| entry.expect("a file").path());
    let ptx = files.filter(|path| path.extension().is_some_and(|ending| ending == "ptx"));
    let sources: serde_json::Map<String, Value> = ptx
        .map(|path| {
            let name = path.file_name().expect("it has a name").to_string_lossy().into_owned();
            (name, std::fs::read_to_string(&path).expect("PTX").into())
        })
        .collect();
    json!({ "graph": graph, "sources": sources })
}

/// Graph whose second launch, with more threads than elements, runs a test kernel of the fake
/// driver. It writes `y`; the other launches write `z`.
fn test_kernel(kernel: &str, arguments: &Value) -> Value {
    json!({
        "graph": {
            "inputs": [{"name": "x", "datatype": "FP32", "shape": ["n"]}],
            "outputs": [
                {"name": "y", "datatype": "FP32", "shape": ["n"]},
                {"name": "z", "datatype": "FP32", "shape": ["n"], "zero": true},
            ],
            "temporaries": [{"name": "t", "datatype": "FP32", "shape": ["n"], "zero": true}],
            "launches": [
                {"name": "first", "kernel": "weir_test_scale_add", "grid": [1], "block": [32],
                 "arguments": [{"out": "t"}, {"in": "x"}, {"f32": 0}, {"u32": "n"}]},
                {"name": "second", "kernel": kernel, "grid": [65_536], "block": [32], "arguments": arguments},
                {"name": "third", "kernel": "weir_test_scale_add", "grid": [1], "block": [32],
                 "arguments": [{"out": "z"}, {"in": "t"}, {"f32": 0}, {"u32": "n"}]},
            ],
        },
        "sources": { "test.ptx": weir_fake_cuda::TEST_KERNELS },
    })
}

async fn push(node: &TestClient, name: &str, upload: &Value) -> Answer {
    node.put(&format!("/v1/kernel-graphs/{name}?allow_signature_change=true"), upload.to_string()).await
}

fn tensor(name: &str, shape: &[usize], data: &[f32]) -> Value {
    json!({"name": name, "datatype": "FP32", "shape": shape, "data": data})
}

async fn infer(node: &TestClient, name: &str, inputs: &[Value]) -> Answer {
    node.post(&format!("/v2/models/{name}/infer"), json!({ "inputs": inputs }).to_string()).await
}

/// Values of an output of a response.
fn output(answer: &Answer, name: &str) -> Vec<f64> {
    let answer: Value = answer.json();
    let outputs = answer["outputs"].as_array().expect("outputs");
    let output = outputs.iter().find(|output| output["name"] == name).expect("the output");
    output["data"].as_array().expect("values").iter().filter_map(Value::as_f64).collect()
}

/// Worker PIDs of a node.
fn workers(node: &TestNode) -> Vec<u32> {
    let is_worker = |pid: &u32| {
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&command).contains("__run-kernel-graphs")
    };
    children(node.pid()).into_iter().filter(is_worker).collect()
}
