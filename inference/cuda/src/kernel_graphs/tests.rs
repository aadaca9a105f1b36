//! Tests of kernel graphs on the fake driver, within the test process.

use super::message::KernelGraphReply;
use super::runner::GraphRunner;
use serde_json::json;
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use tempfile::NamedTempFile;
use weir_fake_cuda::{Fake, TEST_KERNELS};
use weir_types::Shape;
use weir_worker::{TensorFile, TensorLocation, tensor_memory};

const MEMORY_BYTES_MAX: u64 = 8 << 20;
/// Offset of the outputs, far after the inputs.
const OUTPUTS_AT: u64 = 1 << 20;

/// Graph of y = x in three repetitions. Each repetition fills y with zeroes and adds x; y feeds the
/// next x.
fn graph(kernel: &str) -> NamedTempFile {
    let bundle = json!({
        "graph": {
            "inputs": [{"name": "x", "datatype": "FP32", "shape": ["n"]}],
            "outputs": [
                {"name": "y", "datatype": "FP32", "shape": ["n"], "zero": true},
                {"name": "c", "datatype": "FP32", "shape": [3], "zero": true},
            ],
            "constants": [{"name": "k", "datatype": "FP32", "shape": [3], "data": [0.5, -1, 2]}],
            "launches": [
                {"name": "copy", "kernel": kernel, "grid": ["ceil_div(n, 64)"], "block": [64],
                 "arguments": [{"out": "y"}, {"in": "x"}, {"f32": 1}, {"u32": "n"}],
                 "repeat": {"times": 3, "feed": {"y": "x"}}},
                {"name": "constant", "kernel": "weir_test_scale_add", "grid": [1], "block": [32],
                 "arguments": [{"out": "c"}, {"in": "k"}, {"f32": 1}, {"u32": 3}]},
            ],
        },
        "sources": {"test.ptx": TEST_KERNELS},
    });
    let file = NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bundle.to_string()).unwrap();
    file
}

fn memory() -> File {
    tensor_memory(4 * OUTPUTS_AT).unwrap()
}

fn run(runner: &mut GraphRunner, memory: &File, values: &[f32], outputs: &[usize]) -> KernelGraphReply {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    memory.write_all_at(&bytes, 0).unwrap();
    let shape = Shape::new(&[u32::try_from(values.len()).unwrap()]).unwrap();
    let input = TensorLocation { shape, file: TensorFile::Connection, offset: 0, bytes: bytes.len() as u64 };
    runner.run(1, &[input], outputs, OUTPUTS_AT, memory)
}

fn values(memory: &File, part: &TensorLocation) -> Vec<f32> {
    let mut bytes = vec![0; usize::try_from(part.bytes).unwrap()];
    memory.read_exact_at(&mut bytes, part.offset).unwrap();
    bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

#[test]
fn outputs_are_correct_in_any_stream_order() {
    for seed in 0..6 {
        let fake = Fake::new(seed);
        let mut runner = GraphRunner::open(fake.path().to_owned(), 0, MEMORY_BYTES_MAX).unwrap();
        assert_eq!(runner.load(1, graph("weir_test_scale_add").path()), KernelGraphReply::Done);
        let memory = memory();
        for count in [1, 100, 3_000, 100] {
            let x: Vec<f32> = (0..count).map(|at| at as f32).collect();
            let KernelGraphReply::Ran { outputs, device_time_ns, .. } =
                run(&mut runner, &memory, &x, &[1, 0])
            else {
                panic!("it runs");
            };
            // Outputs are in the requested order.
            assert_eq!(values(&memory, &outputs[0]), [0.5, -1.0, 2.0]);
            assert_eq!(values(&memory, &outputs[1]), x);
            assert!(device_time_ns > 0);
        }
        // The last run is the second run of its shape, so it is captured for later runs.
        assert_eq!((fake.count("launches"), fake.count("graph_launches")), (4 * 4, 1));
        assert_eq!(runner.forget(1), KernelGraphReply::Done);
        assert!(matches!(run(&mut runner, &memory, &[1.0], &[0]), KernelGraphReply::Failed(_)));
    }
}

#[test]
fn repeated_sizes_run_as_one_graph_with_identical_bits() {
    for seed in 1..5 {
        let fake = Fake::new(seed);
        let mut runner = GraphRunner::open(fake.path().to_owned(), 0, MEMORY_BYTES_MAX).unwrap();
        assert_eq!(runner.load(1, graph("weir_test_scale_add").path()), KernelGraphReply::Done);
        let memory = memory();
        let mut first: HashMap<usize, Vec<Vec<f32>>> = HashMap::new();
        // The third size needs more memory than the slot had mapped when the other sizes were
        // captured.
        for (at, count) in [7, 100, 7, 100, 7, 300_000, 100, 7].into_iter().enumerate() {
            let before = fake.count("launches");
            let x: Vec<f32> = (0..count).map(|at| (at % 1_000) as f32).collect();
            let KernelGraphReply::Ran { outputs, device_time_ns, .. } =
                run(&mut runner, &memory, &x, &[0, 1])
            else {
                panic!("it runs");
            };
            assert!(device_time_ns > 0);
            let found: Vec<_> = outputs.iter().map(|part| values(&memory, part)).collect();
            let expected = first.entry(count).or_insert_with(|| found.clone());
            assert!(found == *expected && found[0] == x, "run {at} of seed {seed}");
            // The first run of a size is launched, the second is captured, and later runs are one
            // call.
            let launched = fake.count("launches") - before;
            assert_eq!(launched, if at >= 4 && count != 300_000 { 0 } else { 4 }, "run {at}");
        }
        assert_eq!(fake.count("graph_launches"), 5);
        assert_eq!(runner.forget(1), KernelGraphReply::Done);
    }
}

#[test]
fn fault_in_captured_run_loses_the_worker() {
    let fake = Fake::new(2);
    let mut runner = GraphRunner::open(fake.path().to_owned(), 0, MEMORY_BYTES_MAX).unwrap();
    assert_eq!(runner.load(1, graph("weir_test_scale_add").path()), KernelGraphReply::Done);
    let memory = memory();
    for _ in 0..3 {
        assert!(matches!(run(&mut runner, &memory, &[1.0], &[0]), KernelGraphReply::Ran { .. }));
    }
    fake.fail_launch(1);
    assert!(matches!(run(&mut runner, &memory, &[1.0], &[0]), KernelGraphReply::Lost(_)));
}

#[test]
fn oversized_run_is_refused_and_next_run_succeeds() {
    let fake = Fake::new(1);
    let mut runner = GraphRunner::open(fake.path().to_owned(), 0, MEMORY_BYTES_MAX).unwrap();
    let memory = memory();
    assert_eq!(runner.load(1, graph("weir_test_scale_add").path()), KernelGraphReply::Done);
    let many = vec![1.0; 1_000_000];
    assert!(matches!(run(&mut runner, &memory, &many, &[0]), KernelGraphReply::OutOfMemory(_)));
    fake.fail_allocations(0, 1);
    assert!(matches!(run(&mut runner, &memory, &[1.0], &[0]), KernelGraphReply::OutOfMemory(_)));
    assert!(matches!(run(&mut runner, &memory, &[1.0], &[0]), KernelGraphReply::Ran { .. }));
    assert!(matches!(runner.run(1, &[], &[0], OUTPUTS_AT, &memory), KernelGraphReply::Refused(_)));
}

#[test]
fn kernel_fault_loses_the_worker() {
    let fake = Fake::new(2);
    let mut runner = GraphRunner::open(fake.path().to_owned(), 0, MEMORY_BYTES_MAX).unwrap();
    assert_eq!(runner.load(1, graph("weir_test_scale_add").path()), KernelGraphReply::Done);
    fake.fail_launch(1);
    let answer = run(&mut runner, &memory(), &[1.0], &[0]);
    assert!(
        matches!(&answer, KernelGraphReply::Lost(why) if why.contains("weir_test_scale_add")),
        "{answer:?}"
    );
}

#[test]
fn failed_capture_falls_back_to_eager_launches_and_reports_reason() {
    for failure in [
        "fail_begin_capture",
        "fail_captured_launch",
        "fail_end_capture",
        "fail_instantiate",
        "fail_graph_launch",
    ] {
        let fake = Fake::new(3);
        let mut runner = GraphRunner::open(fake.path().to_owned(), 0, MEMORY_BYTES_MAX).unwrap();
        for number in [1, 2] {
            assert_eq!(runner.load(number, graph("weir_test_scale_add").path()), KernelGraphReply::Done);
        }
        fake.set(failure, 1);
        let memory = memory();
        let mut told = Vec::new();
        for _ in 0..4 {
            let KernelGraphReply::Ran { outputs, not_captured, .. } = run(&mut runner, &memory, &[3.0], &[0])
            else {
                panic!("it runs")
            };
            assert_eq!(values(&memory, &outputs[0]), [3.0], "{failure}");
            told.extend(not_captured);
        }
        assert!(told.len() == 1 && told[0].contains("CUDA_ERROR_"), "{failure}: {told:?}");
        assert_eq!(fake.count("graph_launches"), 0, "{failure}");
        let input = TensorLocation {
            shape: Shape::new(&[1]).unwrap(),
            file: TensorFile::Connection,
            offset: 0,
            bytes: 4,
        };
        for _ in 0..3 {
            let answer = runner.run(2, std::slice::from_ref(&input), &[0], OUTPUTS_AT, &memory);
            assert!(
                matches!(answer, KernelGraphReply::Ran { not_captured: None, .. }),
                "{failure}: {answer:?}"
            );
        }
        assert_eq!(fake.count("graph_launches"), 2, "{failure}: another graph is captured");
        for number in [1, 2] {
            runner.forget(number);
        }
    }
}
