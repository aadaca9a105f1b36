//! Whole networks, run by the reference: against the outputs that come with them, and fused as not fused.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot be set up has failed"
)]

mod running;
mod support;

use bytes::Bytes;
use prost::Message;
use running::{difference, run};
use support::{file, shape};
use weir_graph::reference::Tensor;
use weir_graph::{Graph, MemoryPlan, Model, TensorType};
use weir_types::{ElementType, Shape};

/// One of the networks that the `onnx` package carries, on the input that goes with the output that it carries, too.
fn light(name: &str) {
    let model = model(&format!(".weir/models/light_{name}.onnx"));
    assert!(model.unsupported().is_empty());
    let dims = [1, 3, 224, 224];
    let count = 3.0 * 224.0 * 224.0;
    let input = floats(&dims, |at| at as f32 / count);
    let expected =
        TensorProto::decode(file(&format!(".weir/models/light_{name}_output_0.pb"))).unwrap().floats();
    let plain = model.specialise(&[shape(&dims)]).unwrap();
    let fused = plain.clone().fuse().unwrap();
    let found = run(&model, &fused, &[input]).remove(0).to_floats();
    let worst = difference(&found, &expected);
    println!(
        "{name}: {} nodes, {} fused, {} in the prologue, {worst:e} off",
        plain.nodes.len(),
        fused.nodes.len(),
        fused.prologue_len
    );
    assert!(worst < 1e-3, "{name}: {worst:e}");
}

macro_rules! light {
    ($($name:ident)*) => {
        $(#[test] fn $name() { light(stringify!($name)); })*
    };
}

light! { bvlc_alexnet densenet121 inception_v1 inception_v2 resnet50 shufflenet squeezenet vgg19 zfnet512 }

/// A network whose weights are real, on some numbers: fused as not fused.
fn fused_as_plain(path: &str, inputs: &[Tensor]) -> (Graph, Vec<Tensor>) {
    let model = model(path);
    let shapes: Vec<Shape> = inputs
        .iter()
        .map(|input| {
            let dims: Vec<u32> = input.tensor().dims().iter().map(|dim| *dim as u32).collect();
            shape(&dims)
        })
        .collect();
    let plain = model.specialise(&shapes).unwrap();
    let fused = plain.clone().fuse().unwrap();
    let (expected, found) = (run(&model, &plain, inputs), run(&model, &fused, inputs));
    for (expected, found) in expected.iter().zip(&found) {
        let worst = difference(&found.to_floats(), &expected.to_floats());
        assert!(worst < 1e-4, "{path}: {worst:e}");
    }
    (fused, found)
}

fn count(graph: &Graph, op: &str) -> usize {
    graph.nodes.iter().filter(|node| node.op.name() == op).count()
}

#[test]
fn digits() {
    let input = floats(&[1, 1, 8, 8], |at| (at * 7919 % 1000) as f32 / 1000.0);
    let path = "functions/classify-digits/model/digits.onnx";
    let (fused, found) = fused_as_plain(path, std::slice::from_ref(&input));
    in_halves(path, &fused, &[input], &found);
    // What ONNX Runtime makes of the same numbers.
    let expected = file("tests/fixtures/models/outputs/digits.fp32");
    let expected = TensorProto { raw_data: expected, ..TensorProto::default() }.floats();
    assert!(difference(&found[0].to_floats(), &expected) < 1e-4);
}

/// The same in half precision, by how far it is off.
fn in_halves(path: &str, fused: &Graph, inputs: &[Tensor], expected: &[Tensor]) {
    for (storage, bits) in [(ElementType::Fp16, 11), (ElementType::Bf16, 8)] {
        let halves = fused.clone().in_storage(&model(path), storage).unwrap();
        assert_eq!(
            halves.outputs.iter().map(|port| &halves.value(port.value).tensor).collect::<Vec<_>>(),
            fused.outputs.iter().map(|port| &fused.value(port.value).tensor).collect::<Vec<_>>()
        );
        let found = run(&model(path), &halves, inputs);
        for (found, expected) in found.iter().zip(expected) {
            let worst = difference(&found.to_floats(), &expected.to_floats());
            assert!(worst > 0.0 && worst < 16.0 * 0.5_f32.powi(bits), "{path} as {storage}: {worst:e}");
        }
        // Weights that are kept so need no conversion, and are the same numbers.
        let stored = model(path).with_weights_as(storage).unwrap();
        let of_stored = fused.clone().in_storage(&stored, storage).unwrap();
        let (before, after) = (MemoryPlan::new(fused).arena_bytes, MemoryPlan::new(&of_stored).arena_bytes);
        assert!(after * 3 < before * 2, "{after} bytes rather than {before}");
        assert!(run(&stored, &of_stored, inputs) == found, "{path} as {storage}");
    }
}

#[test]
fn minilm() {
    let ids = |element: &dyn Fn(usize) -> i64| {
        let tensor = TensorType::new(ElementType::Int64, [2, 12]).unwrap();
        Tensor::integers(tensor, (0..24).map(element).collect())
    };
    let model = model(".weir/models/minilm.onnx");
    let inputs: Vec<Tensor> = model
        .signature()
        .inputs
        .iter()
        .map(|port| match port.name.as_str() {
            "input_ids" => ids(&|at| (at as i64 * 7919) % 30_000),
            // The second sequence is shorter.
            "attention_mask" => ids(&|at| i64::from(at < 19)),
            _ => ids(&|_| 0),
        })
        .collect();
    let (fused, found) = fused_as_plain(".weir/models/minilm.onnx", &inputs);
    in_halves(".weir/models/minilm.onnx", &fused, &inputs, &found);
    // In each of six layers three projections, attention, two sums with what went in, and the feed-forward network's two products.
    let counts = ["Attention", "MatMul", "LayerNorm", "Softmax", "Gather"].map(|op| count(&fused, op));
    assert_eq!(counts, [6, 6 * 6, 1 + 6 * 2, 0, 1]);
}

/// A model of this repository.
fn model(path: &str) -> Model {
    Model::read(file(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// An fp32 tensor, element by element.
fn floats(dims: &[u32], element: impl Fn(usize) -> f32) -> Tensor {
    let dims: Vec<usize> = dims.iter().map(|dim| *dim as usize).collect();
    let tensor = TensorType::new(ElementType::Fp32, dims).unwrap();
    let elements = (0..tensor.elements()).map(element).collect();
    Tensor::floats(tensor, elements)
}

/// As much of ONNX's tensors as the files with expected outputs have.
#[derive(Clone, PartialEq, Message)]
struct TensorProto {
    #[prost(int64, repeated, tag = "1")]
    dims: Vec<i64>,
    #[prost(float, repeated, tag = "4")]
    float_data: Vec<f32>,
    #[prost(bytes = "bytes", tag = "9")]
    raw_data: Bytes,
}

impl TensorProto {
    fn floats(&self) -> Vec<f32> {
        let raw = self.raw_data.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
        if self.raw_data.is_empty() { self.float_data.clone() } else { raw.collect() }
    }
}
