//! Tests of whole networks on the reference interpreter: against ONNX Runtime, and fused against
//! unfused.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed setup fails the test")]

mod onnxruntime;
mod running;
mod support;
mod varied;

use onnxruntime::onnxruntime;
use running::run;
use support::{file, shape};
use varied::{Random, varied};
use weir_graph::reference::{ReferenceTensor, distance, spread};
use weir_graph::{Graph, MemoryPlan, OnnxModel, TensorType};
use weir_types::{ElementType, Shape};

/// Tolerance of fp32 relative to the largest result, for sums in another order. Measured: 2e-6 and
/// less.
const TOLERANCE: f64 = 1e-5;

/// Compare one of the networks in the `onnx` package, with varied weights, with ONNX Runtime.
fn light(name: &str) {
    let file = varied(&file(&format!(".weir/models/light_{name}.onnx")));
    let model = OnnxModel::read(file.clone()).unwrap();
    assert!(model.unsupported().is_empty());
    let dims = [1, 3, 224, 224];
    let input = pixels(&dims, 1.0);
    let expected = onnxruntime(&file, std::slice::from_ref(&input));
    let plain = model.specialise(&[shape(&dims)]).unwrap();
    let fused = plain.clone().fuse().unwrap();
    let found = run(&model, &fused, std::slice::from_ref(&input)).remove(0).to_floats();
    let off = distance(&found, &expected);
    channels_last(name, &model, &input, &expected);
    let spread = spread(&expected);
    // An error in the first layer must remain visible after the last layer.
    let without_green = distance(&onnxruntime(&file, &[pixels(&dims, 0.0)]), &expected);
    println!(
        "{name}: {} nodes, {} fused, {} in the prologue, {off:.1e} off, {spread:.2} apart, {without_green:.1e} off without green",
        plain.nodes.len(),
        fused.nodes.len(),
        fused.prologue_len
    );
    assert!(off < TOLERANCE, "{name}: {off:e}");
    assert!(spread > 1e3 * TOLERANCE && without_green > 1e3 * TOLERANCE, "{name} shows nothing");
}

/// Compare the network with its channels last with ONNX Runtime.
fn channels_last(name: &str, model: &OnnxModel, input: &ReferenceTensor, expected: &[f32]) {
    let stored = model.clone().with_normalisation_folded().with_filters_channels_last().unwrap();
    let dims: Vec<u32> = input.tensor().dims().iter().map(|dim| *dim as u32).collect();
    let fused = stored.specialise(&[shape(&dims)]).unwrap().fuse().unwrap();
    let last = fused.clone().with_channels_last().unwrap();
    let found = run(&stored, &last, std::slice::from_ref(input)).remove(0).to_floats();
    let off = distance(&found, expected);
    let [convs, products, copies] = ["Conv", "MatMul", "Copy"].map(|op| count(&last, op));
    println!("{name}: {convs} convolutions, {products} products and {copies} copies with channels last");
    assert!(off < TOLERANCE, "{name} with channels last: {off:e}");
    // A skeleton keeps the layout of its weights.
    let skeleton = OnnxModel::read_skeleton(stored.without_weights().skeleton).unwrap();
    assert_eq!(skeleton.specialise(&[shape(&dims)]).unwrap().fuse().unwrap(), fused, "{name}");
    // A copy where a chain of images begins or ends, none within.
    let more = copies - count(&fused, "Copy");
    let most = match name {
        // Response normalisation and resizing keep their channels first.
        "inception_v1" => 8,
        "zfnet512" => 7,
        "densenet121" | "squeezenet" => 5,
        _ => 4,
    };
    assert!(more <= most, "{name}: {more} copies more than with channels first");
}

/// An image of noise, with its green channel scaled by `green`.
fn pixels(dims: &[u32; 4], green: f32) -> ReferenceTensor {
    let mut random = Random(2);
    let channel = (dims[2] * dims[3]) as usize;
    floats(dims, |at| random.next() * if at / channel == 1 { green } else { 1.0 })
}

macro_rules! light {
    ($($name:ident)*) => {
        $(#[test] fn $name() { light(stringify!($name)); })*
    };
}

light! { bvlc_alexnet densenet121 inception_v1 inception_v2 resnet50 shufflenet squeezenet vgg19 zfnet512 }

/// Compare a network with real weights, fused and unfused, with ONNX Runtime.
fn fused_as_plain(path: &str, inputs: &[ReferenceTensor]) -> (Graph, Vec<ReferenceTensor>) {
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
    let expected = run(&model, &plain, inputs);
    let found = run(&model, &fused, inputs);
    for (expected, found) in expected.iter().zip(&found) {
        let off = distance(&found.to_floats(), &expected.to_floats());
        assert!(off < TOLERANCE, "{path}: {off:e}");
    }
    let expected = onnxruntime(&file(path), inputs);
    let off = distance(&found[0].to_floats(), &expected);
    let spread = spread(&expected);
    println!("{path}: {off:.1e} off, {spread:.2} apart");
    assert!(off < TOLERANCE && spread > 1e3 * TOLERANCE, "{path}: {off:e} off, {spread} apart");
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
}

/// Compare the fused graph in half precision, within a tolerance.
fn in_halves(path: &str, fused: &Graph, inputs: &[ReferenceTensor], expected: &[ReferenceTensor]) {
    for (storage, bits) in [(ElementType::Fp16, 11), (ElementType::Bf16, 8)] {
        let halves = fused.clone().in_storage(&model(path), storage).unwrap();
        assert_eq!(
            halves.outputs.iter().map(|port| &halves.value(port.value).tensor).collect::<Vec<_>>(),
            fused.outputs.iter().map(|port| &fused.value(port.value).tensor).collect::<Vec<_>>()
        );
        let found = run(&model(path), &halves, inputs);
        for (found, expected) in found.iter().zip(expected) {
            let off = distance(&found.to_floats(), &expected.to_floats());
            println!("{path} as {storage}: {off:.1e} off");
            assert!(off > 0.0 && off < 8.0 * 0.5_f64.powi(bits), "{path} as {storage}: {off:e}");
        }
        // Weights that are stored in this type need no conversion, and give identical results.
        let stored = model(path).with_weights_as(storage).unwrap();
        let of_stored = fused.clone().in_storage(&stored, storage).unwrap();
        let before = MemoryPlan::new(fused).arena_bytes;
        let after = MemoryPlan::new(&of_stored).arena_bytes;
        assert!(after * 3 < before * 2, "{after} bytes rather than {before}");
        assert!(run(&stored, &of_stored, inputs) == found, "{path} as {storage}");
    }
}

#[test]
fn minilm() {
    let ids = |element: &dyn Fn(usize) -> i64| {
        let tensor = TensorType::new(ElementType::Int64, [2, 12]).unwrap();
        ReferenceTensor::integers(tensor, (0..24).map(element).collect())
    };
    let model = model(".weir/models/minilm.onnx");
    let inputs: Vec<ReferenceTensor> = model
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
    // Each of six layers has three projections, attention, two residual sums, and the two products
    // of the feed-forward network.
    let counts = ["Attention", "MatMul", "LayerNorm", "Softmax", "Gather"].map(|op| count(&fused, op));
    assert_eq!(counts, [6, 6 * 6, 1 + 6 * 2, 0, 1]);
}

/// A model of this repository.
fn model(path: &str) -> OnnxModel {
    OnnxModel::read(file(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// An fp32 tensor, with elements by index.
fn floats(dims: &[u32], element: impl FnMut(usize) -> f32) -> ReferenceTensor {
    let dims: Vec<usize> = dims.iter().map(|dim| *dim as usize).collect();
    let tensor = TensorType::new(ElementType::Fp32, dims).unwrap();
    let elements = (0..tensor.elements()).map(element).collect();
    ReferenceTensor::floats(tensor, elements)
}
