//! The subset of `onnx.proto` that Weir reads. Field numbers are those of the standard; decoding
//! skips all other fields.

use bytes::Bytes;
use prost::Message;

/// [`Tensor::data_location`] of a tensor whose bytes are in another file.
pub(crate) const EXTERNAL: i32 = 1;

/// [`Tensor::data_type`] of 64-bit integers.
const INT64: i32 = 7;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Model {
    #[prost(message, optional, tag = "7")]
    pub(crate) graph: Option<Graph>,
    #[prost(message, repeated, tag = "20")]
    pub(crate) training: Vec<Training>,
    #[prost(message, repeated, tag = "25")]
    pub(crate) functions: Vec<Function>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Graph {
    #[prost(message, repeated, tag = "1")]
    pub(crate) nodes: Vec<Node>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) initialisers: Vec<Tensor>,
    #[prost(message, repeated, tag = "11")]
    pub(crate) inputs: Vec<ValueInfo>,
    #[prost(message, repeated, tag = "12")]
    pub(crate) outputs: Vec<ValueInfo>,
    #[prost(message, repeated, tag = "15")]
    pub(crate) sparse_initialisers: Vec<SparseTensor>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Node {
    #[prost(string, repeated, tag = "1")]
    pub(crate) inputs: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub(crate) outputs: Vec<String>,
    #[prost(string, tag = "3")]
    pub(crate) name: String,
    #[prost(string, tag = "4")]
    pub(crate) operator: String,
    #[prost(message, repeated, tag = "5")]
    pub(crate) attributes: Vec<Attribute>,
    #[prost(string, tag = "7")]
    pub(crate) domain: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Attribute {
    #[prost(message, optional, tag = "5")]
    pub(crate) tensor: Option<Tensor>,
    #[prost(message, optional, tag = "6")]
    pub(crate) graph: Option<Graph>,
    #[prost(message, repeated, tag = "10")]
    pub(crate) tensors: Vec<Tensor>,
    #[prost(message, repeated, tag = "11")]
    pub(crate) graphs: Vec<Graph>,
    #[prost(message, optional, tag = "22")]
    pub(crate) sparse_tensor: Option<SparseTensor>,
    #[prost(message, repeated, tag = "23")]
    pub(crate) sparse_tensors: Vec<SparseTensor>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Tensor {
    #[prost(int64, repeated, tag = "1")]
    pub(crate) dimensions: Vec<i64>,
    #[prost(int32, tag = "2")]
    pub(crate) data_type: i32,
    #[prost(int64, repeated, tag = "7")]
    pub(crate) int64_data: Vec<i64>,
    #[prost(string, tag = "8")]
    pub(crate) name: String,
    /// Shares the file's memory.
    #[prost(bytes = "bytes", tag = "9")]
    pub(crate) raw_data: Bytes,
    #[prost(message, repeated, tag = "13")]
    pub(crate) external_data: Vec<Pair>,
    #[prost(int32, tag = "14")]
    pub(crate) data_location: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SparseTensor {
    #[prost(message, optional, tag = "1")]
    pub(crate) values: Option<Tensor>,
    #[prost(message, optional, tag = "2")]
    pub(crate) indices: Option<Tensor>,
    #[prost(int64, repeated, tag = "3")]
    pub(crate) dimensions: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Pair {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ValueInfo {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) value_type: Option<ValueType>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ValueType {
    #[prost(message, optional, tag = "1")]
    pub(crate) tensor: Option<TensorType>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TensorType {
    #[prost(message, optional, tag = "2")]
    pub(crate) shape: Option<TensorShape>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TensorShape {
    #[prost(message, repeated, tag = "1")]
    pub(crate) dimensions: Vec<Dimension>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Dimension {
    #[prost(int64, optional, tag = "1")]
    pub(crate) size: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Function {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, repeated, tag = "7")]
    pub(crate) nodes: Vec<Node>,
    #[prost(string, tag = "10")]
    pub(crate) domain: String,
    #[prost(message, repeated, tag = "11")]
    pub(crate) attributes: Vec<Attribute>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Training {
    #[prost(message, optional, tag = "1")]
    pub(crate) initialisation: Option<Graph>,
    #[prost(message, optional, tag = "2")]
    pub(crate) algorithm: Option<Graph>,
}

/// A whole model, for writing it with a changed graph. Messages that are passed through stay bytes,
/// which have the same encoding.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct WholeModel {
    #[prost(int64, optional, tag = "1")]
    ir_version: Option<i64>,
    #[prost(bytes = "bytes", optional, tag = "2")]
    producer_name: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "3")]
    producer_version: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "4")]
    domain: Option<Bytes>,
    #[prost(int64, optional, tag = "5")]
    model_version: Option<i64>,
    #[prost(message, optional, tag = "7")]
    pub(crate) graph: Option<WholeGraph>,
    #[prost(bytes = "bytes", repeated, tag = "8")]
    opset_imports: Vec<Bytes>,
    #[prost(bytes = "bytes", repeated, tag = "14")]
    metadata: Vec<Bytes>,
    #[prost(bytes = "bytes", repeated, tag = "25")]
    functions: Vec<Bytes>,
}

/// A whole graph, for the same purpose.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct WholeGraph {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    nodes: Vec<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "2")]
    name: Option<Bytes>,
    #[prost(bytes = "bytes", repeated, tag = "5")]
    initialisers: Vec<Bytes>,
    #[prost(bytes = "bytes", repeated, tag = "11")]
    pub(crate) inputs: Vec<Bytes>,
    #[prost(bytes = "bytes", repeated, tag = "12")]
    outputs: Vec<Bytes>,
    #[prost(bytes = "bytes", repeated, tag = "13")]
    value_infos: Vec<Bytes>,
    #[prost(bytes = "bytes", repeated, tag = "14")]
    quantisations: Vec<Bytes>,
    #[prost(bytes = "bytes", repeated, tag = "15")]
    sparse_initialisers: Vec<Bytes>,
}

impl Attribute {
    /// Every tensor in the attribute, except those in its graphs.
    pub(crate) fn all_tensors(&self) -> impl Iterator<Item = &Tensor> {
        let sparse = self.sparse_tensor.iter().chain(&self.sparse_tensors).flat_map(SparseTensor::parts);
        self.tensor.iter().chain(&self.tensors).chain(sparse)
    }

    /// Every graph in the attribute.
    pub(crate) fn all_graphs(&self) -> impl Iterator<Item = &Graph> {
        self.graph.iter().chain(&self.graphs)
    }
}

impl SparseTensor {
    /// The dense tensors that it consists of.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &Tensor> {
        self.values.iter().chain(&self.indices)
    }
}

impl Node {
    /// Every graph in the node's attributes.
    pub(crate) fn graphs(&self) -> impl Iterator<Item = &Graph> {
        self.attributes.iter().flat_map(Attribute::all_graphs)
    }

    /// Name for messages.
    pub(crate) fn title(&self) -> &str {
        if self.name.is_empty() { &self.operator } else { &self.name }
    }
}

impl Tensor {
    /// Its elements, if they are 64-bit integers, as in shapes.
    pub(crate) fn integers(&self) -> Option<Vec<i64>> {
        if self.data_type != INT64 {
            return None;
        }
        if self.raw_data.is_empty() {
            return Some(self.int64_data.clone());
        }
        let (numbers, rest) = self.raw_data.as_chunks::<8>();
        rest.is_empty().then(|| numbers.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect())
    }

    /// Whether the tensor's bytes are in another file.
    pub(crate) fn is_external(&self) -> bool {
        self.data_location == EXTERNAL || !self.external_data.is_empty()
    }

    /// The entry `key` of `external_data`, as a number.
    pub(crate) fn external_number(&self, key: &str) -> Option<u64> {
        self.external_data.iter().find(|pair| pair.key == key)?.value.parse().ok()
    }
}
