//! What the tests of this crate share: models, and how to run them.

use bytes::Bytes;
use prost::Message;
use std::path::{Path, PathBuf};
use weir_graph::reference::{self, Tensor};
use weir_graph::{Graph, Model, TensorType, WeightData};
use weir_types::{ElementType, Shape};

/// The file at `path` of this repository.
pub(crate) fn file(path: &str) -> Bytes {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    let read = std::fs::read(&path);
    read.unwrap_or_else(|error| panic!("{}: {error}; make it with `cargo xtask models`", path.display()))
        .into()
}

/// A model of this repository.
pub(crate) fn model(path: &str) -> Model {
    Model::read(file(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

pub(crate) fn shape(dims: &[u32]) -> Shape {
    Shape::new(dims).unwrap()
}

/// An fp32 tensor, element by element.
pub(crate) fn floats(dims: &[u32], element: impl Fn(usize) -> f32) -> Tensor {
    let dims: Vec<usize> = dims.iter().map(|dim| *dim as usize).collect();
    let tensor = TensorType::new(ElementType::Fp32, dims).unwrap();
    let elements = (0..tensor.elements()).map(element).collect();
    Tensor::floats(tensor, elements)
}

/// Run a graph of a model.
pub(crate) fn run(model: &Model, graph: &Graph, inputs: &[Tensor]) -> Vec<Tensor> {
    let weight = |index: u32| {
        let weight = model.weights().get(index as usize)?;
        match &weight.data {
            WeightData::Bytes(bytes) => Tensor::from_bytes(weight.tensor.clone(), bytes),
            WeightData::Elsewhere(_) => None,
        }
    };
    reference::run(graph, inputs, &weight).unwrap()
}

/// The largest difference between elements, by the size of what is expected where that is over 1.
pub(crate) fn difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let pairs = found.iter().zip(expected);
    pairs
        .map(
            |(a, b)| {
                if a == b || (a.is_nan() && b.is_nan()) { 0.0 } else { (a - b).abs() / b.abs().max(1.0) }
            },
        )
        .fold(0.0, |worst, now| if now > worst || now.is_nan() { now } else { worst })
}

/// As much of ONNX's tensors as the files with expected outputs have.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TensorProto {
    #[prost(int64, repeated, tag = "1")]
    pub(crate) dims: Vec<i64>,
    #[prost(float, repeated, tag = "4")]
    pub(crate) float_data: Vec<f32>,
    #[prost(bytes = "bytes", tag = "9")]
    pub(crate) raw_data: Bytes,
}

impl TensorProto {
    pub(crate) fn floats(&self) -> Vec<f32> {
        let raw = self.raw_data.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
        if self.raw_data.is_empty() { self.float_data.clone() } else { raw.collect() }
    }
}
