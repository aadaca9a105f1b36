//! Messages of `onnx.proto`, limited to fields that affect the computation. Field numbers are those
//! of the standard; documentation strings and annotations are skipped.

use bytes::Bytes;
use prost::Message;

/// [`Tensor::data_location`] of a tensor whose bytes are not in the file.
pub(crate) const EXTERNAL: i32 = 1;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Model {
    #[prost(int64, optional, tag = "1")]
    pub(crate) ir_version: Option<i64>,
    #[prost(message, optional, tag = "7")]
    pub(crate) graph: Option<Graph>,
    #[prost(message, repeated, tag = "8")]
    pub(crate) opset_imports: Vec<OperatorSet>,
    /// Training information; only its presence matters.
    #[prost(bytes = "bytes", repeated, tag = "20")]
    pub(crate) training: Vec<Bytes>,
    #[prost(message, repeated, tag = "25")]
    pub(crate) functions: Vec<Function>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct OperatorSet {
    #[prost(string, tag = "1")]
    pub(crate) domain: String,
    #[prost(int64, tag = "2")]
    pub(crate) version: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Graph {
    #[prost(message, repeated, tag = "1")]
    pub(crate) nodes: Vec<Node>,
    #[prost(string, tag = "2")]
    pub(crate) name: String,
    #[prost(message, repeated, tag = "5")]
    pub(crate) initialisers: Vec<Tensor>,
    #[prost(message, repeated, tag = "11")]
    pub(crate) inputs: Vec<ValueInfo>,
    #[prost(message, repeated, tag = "12")]
    pub(crate) outputs: Vec<ValueInfo>,
    /// Sparse initialisers; only their presence matters.
    #[prost(bytes = "bytes", repeated, tag = "15")]
    pub(crate) sparse_initialisers: Vec<Bytes>,
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
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(float, optional, tag = "2")]
    pub(crate) float: Option<f32>,
    #[prost(int64, optional, tag = "3")]
    pub(crate) int: Option<i64>,
    #[prost(bytes = "bytes", optional, tag = "4")]
    pub(crate) text: Option<Bytes>,
    #[prost(message, optional, tag = "5")]
    pub(crate) tensor: Option<Tensor>,
    /// Subgraph; only its presence matters.
    #[prost(bytes = "bytes", optional, tag = "6")]
    pub(crate) graph: Option<Bytes>,
    #[prost(float, repeated, tag = "7")]
    pub(crate) floats: Vec<f32>,
    #[prost(int64, repeated, tag = "8")]
    pub(crate) ints: Vec<i64>,
    #[prost(bytes = "bytes", repeated, tag = "9")]
    pub(crate) texts: Vec<Bytes>,
    #[prost(int32, tag = "20")]
    pub(crate) kind: i32,
    /// Name of the attribute of the enclosing function that this attribute refers to.
    #[prost(string, tag = "21")]
    pub(crate) refers_to: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Tensor {
    #[prost(int64, repeated, tag = "1")]
    pub(crate) dims: Vec<i64>,
    #[prost(int32, tag = "2")]
    pub(crate) data_type: i32,
    #[prost(float, repeated, tag = "4")]
    pub(crate) float_data: Vec<f32>,
    #[prost(int32, repeated, tag = "5")]
    pub(crate) int32_data: Vec<i32>,
    #[prost(int64, repeated, tag = "7")]
    pub(crate) int64_data: Vec<i64>,
    #[prost(string, tag = "8")]
    pub(crate) name: String,
    /// Bytes, shared with the file.
    #[prost(bytes = "bytes", tag = "9")]
    pub(crate) raw_data: Bytes,
    #[prost(double, repeated, tag = "10")]
    pub(crate) double_data: Vec<f64>,
    #[prost(uint64, repeated, tag = "11")]
    pub(crate) uint64_data: Vec<u64>,
    #[prost(message, repeated, tag = "13")]
    pub(crate) external_data: Vec<Pair>,
    #[prost(int32, tag = "14")]
    pub(crate) data_location: i32,
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

/// A type; only tensors are decoded.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ValueType {
    #[prost(message, optional, tag = "1")]
    pub(crate) tensor: Option<DenseType>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DenseType {
    #[prost(int32, tag = "1")]
    pub(crate) element_type: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) shape: Option<Shape>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Shape {
    #[prost(message, repeated, tag = "1")]
    pub(crate) dims: Vec<Dim>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Dim {
    #[prost(int64, optional, tag = "1")]
    pub(crate) size: Option<i64>,
    #[prost(string, optional, tag = "2")]
    pub(crate) symbol: Option<String>,
}

/// A model-local function: nodes under a name.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Function {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, repeated, tag = "4")]
    pub(crate) inputs: Vec<String>,
    #[prost(string, repeated, tag = "5")]
    pub(crate) outputs: Vec<String>,
    #[prost(message, repeated, tag = "7")]
    pub(crate) nodes: Vec<Node>,
    #[prost(message, repeated, tag = "9")]
    pub(crate) opset_imports: Vec<OperatorSet>,
    #[prost(string, tag = "10")]
    pub(crate) domain: String,
    #[prost(message, repeated, tag = "11")]
    pub(crate) defaults: Vec<Attribute>,
}

impl Node {
    /// Display name: the node's name, its first output's name, or its operator.
    pub(crate) fn title(&self) -> &str {
        let output = || self.outputs.iter().find(|name| !name.is_empty());
        if self.name.is_empty() { output().unwrap_or(&self.operator) } else { &self.name }
    }

    /// The attribute of this name.
    pub(crate) fn attribute(&self, name: &str) -> Option<&Attribute> {
        self.attributes.iter().find(|attribute| attribute.name == name)
    }
}

impl Tensor {
    /// The value of `key` in `external_data`.
    pub(crate) fn external(&self, key: &str) -> Option<&str> {
        self.external_data.iter().find(|pair| pair.key == key).map(|pair| pair.value.as_str())
    }

    /// Whether the tensor declares that its bytes are outside the file.
    pub(crate) fn is_external(&self) -> bool {
        self.data_location == EXTERNAL || !self.external_data.is_empty()
    }
}
