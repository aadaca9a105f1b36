//! Subset of `onnx.proto` for replacing weights. Other fields stay as raw bytes.

use bytes::Bytes;
use prost::Message;

/// Element type fp32.
pub(super) const FLOAT: i32 = 1;

#[derive(Clone, PartialEq, Message)]
pub(super) struct Model {
    #[prost(int64, tag = "1")]
    pub(super) ir_version: i64,
    #[prost(message, optional, tag = "7")]
    pub(super) graph: Option<Graph>,
    #[prost(bytes = "bytes", repeated, tag = "8")]
    opset_imports: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Graph {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub(super) nodes: Vec<Bytes>,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(bytes = "bytes", repeated, tag = "5")]
    pub(super) initialisers: Vec<Bytes>,
    #[prost(bytes = "bytes", repeated, tag = "11")]
    pub(super) inputs: Vec<Bytes>,
    #[prost(bytes = "bytes", repeated, tag = "12")]
    outputs: Vec<Bytes>,
}

/// Fields of a node that this module needs.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Node {
    #[prost(string, repeated, tag = "1")]
    pub(super) inputs: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub(super) outputs: Vec<String>,
    #[prost(string, tag = "4")]
    pub(super) operator: String,
}

/// Fields of an input that this module needs.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Named {
    #[prost(string, tag = "1")]
    pub(super) name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Tensor {
    #[prost(int64, repeated, tag = "1")]
    pub(super) dims: Vec<i64>,
    #[prost(int32, tag = "2")]
    pub(super) data_type: i32,
    #[prost(int64, repeated, tag = "7")]
    int64_data: Vec<i64>,
    #[prost(string, tag = "8")]
    pub(super) name: String,
    #[prost(bytes = "bytes", tag = "9")]
    raw_data: Bytes,
}

impl Tensor {
    pub(super) fn floats(name: &str, dims: &[i64], data: Vec<u8>) -> Self {
        Self {
            dims: dims.to_vec(),
            data_type: FLOAT,
            name: name.to_owned(),
            raw_data: data.into(),
            int64_data: Vec::new(),
        }
    }

    /// The integers of a shape.
    pub(super) fn integers(&self) -> Vec<i64> {
        let raw = self.raw_data.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes));
        if self.raw_data.is_empty() { self.int64_data.clone() } else { raw.collect() }
    }
}
