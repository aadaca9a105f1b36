//! Weights: initialisers and constants, as bytes.

use crate::reference::Tensor;
use crate::tensor_type::TensorType;
use crate::{GraphError, onnx};
use bytes::Bytes;
use std::collections::HashSet;
use weir_types::{ContentHash, ElementType};

/// Weights of at most this many bytes can be used while a graph is made, and stay in skeletons: enough for one number for each channel.
pub const INLINE_BYTES_MAX: usize = 64 << 10;
/// The same for integers, which tend to say what shapes are.
pub const INLINE_INTEGER_BYTES_MAX: usize = 1 << 20;

/// One weight.
#[derive(Debug, Clone, PartialEq)]
pub struct Weight {
    /// Its name in the file.
    pub name: String,
    /// Its elements and dimensions, as the graph knows it.
    pub tensor: TensorType,
    /// What its bytes are elements of: the same, unless it is kept in another type ([`Model::with_weights_as`](crate::Model::with_weights_as)).
    pub stored_as: ElementType,
    /// Its bytes, or which they are.
    pub data: WeightData,
}

/// The bytes of a weight: little-endian elements, row-major.
#[derive(Debug, Clone, PartialEq)]
pub enum WeightData {
    /// The bytes themselves, in the file's memory where the file has them in this form.
    Bytes(Bytes),
    /// What they hash to; they are elsewhere.
    Elsewhere(ContentHash),
}

impl Weight {
    /// What its bytes hash to; worked out anew at every call if they are here.
    #[must_use]
    pub fn hash(&self) -> ContentHash {
        match &self.data {
            WeightData::Bytes(bytes) => ContentHash::of(bytes),
            WeightData::Elsewhere(hash) => *hash,
        }
    }

    /// How many bytes it has.
    #[must_use]
    pub fn bytes(&self) -> usize {
        // A type that holds as many elements was made of it before.
        self.tensor.with_elements(self.stored_as).map_or(0, |stored| stored.bytes())
    }

    /// Its bytes, if it is so small that it may be used while a graph is made. Whether it is does not depend on whether the bytes are here.
    #[must_use]
    pub fn inline(&self) -> Option<&Bytes> {
        match &self.data {
            WeightData::Bytes(bytes) if self.is_small() => Some(bytes),
            _ => None,
        }
    }

    pub(super) fn is_small(&self) -> bool {
        use crate::ir::Lane;
        let bytes_max = match Lane::of(self.tensor.element_type()) {
            Lane::Float => INLINE_BYTES_MAX,
            Lane::Integer => INLINE_INTEGER_BYTES_MAX,
        };
        self.tensor.bytes() <= bytes_max
    }
}

/// Take the weights out of `graph`: its initialisers, and its constant nodes.
pub(super) fn take(graph: &mut onnx::Graph, is_skeleton: bool) -> Result<Vec<Weight>, GraphError> {
    let mut weights = Vec::with_capacity(graph.initialisers.len());
    let mut names = HashSet::new();
    for tensor in std::mem::take(&mut graph.initialisers) {
        // Doubles are there in real files, and then the same.
        if names.insert(tensor.name.clone()) {
            weights.push(weight(tensor, is_skeleton)?);
        }
    }
    let mut rest = Vec::with_capacity(graph.nodes.len());
    for node in std::mem::take(&mut graph.nodes) {
        if node.operator == "Constant" && super::is_own(&node.domain) {
            weights.push(weight(constant(&node)?, is_skeleton)?);
        } else {
            rest.push(node);
        }
    }
    graph.nodes = rest;
    GraphError::limit("weights", weights.len(), super::WEIGHTS_MAX)?;
    Ok(weights)
}

/// What a constant node makes.
fn constant(node: &onnx::Node) -> Result<onnx::Tensor, GraphError> {
    let name = node.outputs.first().cloned().unwrap_or_default();
    let int64 = |values: Vec<i64>, dims| onnx::Tensor {
        data_type: 7,
        int64_data: values,
        dims,
        ..Default::default()
    };
    let float = |values: Vec<f32>, dims| onnx::Tensor {
        data_type: 1,
        float_data: values,
        dims,
        ..Default::default()
    };
    let count = |len: usize| vec![i64::try_from(len).unwrap_or(i64::MAX)];
    let one_of = |attribute: &onnx::Attribute| match attribute.name.as_str() {
        "value" => attribute.tensor.clone(),
        "value_int" => attribute.int.map(|value| int64(vec![value], vec![])),
        "value_float" => attribute.float.map(|value| float(vec![value], vec![])),
        "value_ints" => Some(int64(attribute.ints.clone(), count(attribute.ints.len()))),
        "value_floats" => Some(float(attribute.floats.clone(), count(attribute.floats.len()))),
        _ => None,
    };
    let tensor = node.attributes.iter().find_map(one_of).ok_or_else(|| GraphError::Unsupported {
        node: node.title().to_owned(),
        operator: node.operator.clone(),
        what: "constants that are neither dense tensors nor numbers are".to_owned(),
    })?;
    Ok(onnx::Tensor { name, ..tensor })
}

fn weight(mut tensor: onnx::Tensor, is_skeleton: bool) -> Result<Weight, GraphError> {
    let name = std::mem::take(&mut tensor.name);
    let element_type = element_type(tensor.data_type).ok_or_else(|| {
        GraphError::Refused(format!("a weight, {name:?}, with elements of type {}", tensor.data_type))
    })?;
    let dims: Vec<usize> =
        tensor.dims.iter().map(|dim| usize::try_from(*dim)).collect::<Result<_, _>>().map_err(|_| {
            GraphError::malformed(format!("weight {name:?} has the dimensions {:?}", tensor.dims))
        })?;
    let shape = TensorType::new(element_type, dims).map_err(|error| GraphError::value(&name, &error))?;
    if tensor.is_external() {
        let hash = super::skeleton::hash(&tensor).filter(|_| is_skeleton);
        let hash = hash.ok_or_else(|| GraphError::Refused(format!("a weight, {name:?}, in another file")))?;
        let stored_as = super::skeleton::stored_as(&tensor).unwrap_or(element_type);
        shape.with_elements(stored_as).map_err(|error| GraphError::value(&name, &error))?;
        return Ok(Weight { name, tensor: shape, stored_as, data: WeightData::Elsewhere(hash) });
    }
    let bytes = bytes(tensor, element_type);
    if bytes.len() != shape.bytes() {
        let why = format!(
            "weight {name:?} is {shape}, which takes {} bytes, but has {}",
            shape.bytes(),
            bytes.len()
        );
        return Err(GraphError::Malformed(why));
    }
    Ok(Weight { name, tensor: shape, stored_as: element_type, data: WeightData::Bytes(bytes) })
}

/// Keep a large weight of fp32 in another type.
pub(super) fn store(weight: &mut Weight, storage: ElementType) -> Result<(), GraphError> {
    let WeightData::Bytes(bytes) = &weight.data else { return Ok(()) };
    if weight.is_small() || weight.stored_as != ElementType::Fp32 {
        return Ok(());
    }
    let stored =
        Tensor::from_bytes(weight.tensor.clone(), bytes).and_then(|tensor| tensor.in_elements(storage));
    let stored = stored.ok_or_else(|| GraphError::Refused(format!("weights kept as {storage}")))?;
    weight.data = WeightData::Bytes(stored.to_bytes().into());
    weight.stored_as = storage;
    Ok(())
}

/// The tensor's elements as bytes, from whichever field has them.
fn bytes(tensor: onnx::Tensor, element_type: ElementType) -> Bytes {
    use ElementType::{Bf16, Fp16, Fp32, Fp64, Int16, Int32, Int64, Uint16, Uint32, Uint64};
    if !tensor.raw_data.is_empty() {
        return tensor.raw_data;
    }
    let data: Vec<u8> = match element_type {
        Fp32 => tensor.float_data.iter().flat_map(|value| value.to_le_bytes()).collect(),
        Fp64 => tensor.double_data.iter().flat_map(|value| value.to_le_bytes()).collect(),
        Int64 => tensor.int64_data.iter().flat_map(|value| value.to_le_bytes()).collect(),
        Uint64 => tensor.uint64_data.iter().flat_map(|value| value.to_le_bytes()).collect(),
        Uint32 => tensor.uint64_data.iter().flat_map(|value| (*value as u32).to_le_bytes()).collect(),
        Int32 => tensor.int32_data.iter().flat_map(|value| value.to_le_bytes()).collect(),
        // Halves are in there as the bits that they are.
        Int16 | Uint16 | Fp16 | Bf16 => {
            tensor.int32_data.iter().flat_map(|value| (*value as u16).to_le_bytes()).collect()
        }
        _ => tensor.int32_data.iter().map(|value| *value as u8).collect(),
    };
    data.into()
}

/// The element type of this number in the standard, if there can be such tensors here.
pub(crate) fn element_type(number: i32) -> Option<ElementType> {
    Some(match number {
        1 => ElementType::Fp32,
        2 => ElementType::Uint8,
        3 => ElementType::Int8,
        4 => ElementType::Uint16,
        5 => ElementType::Int16,
        6 => ElementType::Int32,
        7 => ElementType::Int64,
        9 => ElementType::Bool,
        10 => ElementType::Fp16,
        11 => ElementType::Fp64,
        12 => ElementType::Uint32,
        13 => ElementType::Uint64,
        16 => ElementType::Bf16,
        _ => return None,
    })
}

/// The number of an element type in the standard.
pub(super) fn number(element_type: ElementType) -> i32 {
    (1..=16).find(|number| self::element_type(*number) == Some(element_type)).unwrap_or(0)
}

/// A tensor of the file, such as an attribute is.
pub(crate) fn attribute_tensor(tensor: &onnx::Tensor) -> Result<(TensorType, Bytes), GraphError> {
    let weight = weight(tensor.clone(), false)?;
    match weight.data {
        WeightData::Bytes(bytes) => Ok((weight.tensor, bytes)),
        WeightData::Elsewhere(_) => Err(GraphError::Refused("an attribute in another file".to_owned())),
    }
}
