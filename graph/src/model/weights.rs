//! Weights: initialisers and constants, as bytes.

use crate::ir::ImageLayout;
use crate::reference::ReferenceTensor;
use crate::tensor_type::TensorType;
use crate::{GraphError, onnx};
use bytes::Bytes;
use std::collections::HashSet;
use weir_types::{ContentHash, ElementType};

/// Largest weight that lowering may read, and that stays in a skeleton: enough for one number per
/// channel.
pub const INLINE_BYTES_MAX: usize = 64 << 10;
/// Same limit for integers, which often describe shapes.
pub const INLINE_INTEGER_BYTES_MAX: usize = 1 << 20;

/// One weight.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelWeight {
    /// Name in the file.
    pub name: String,
    /// Element type and dimensions in the graph.
    pub tensor: TensorType,
    /// Element type of the stored bytes. It equals the graph's type, unless
    /// [`Model::with_weights_as`](crate::OnnxModel::with_weights_as) changed it.
    pub stored_as: ElementType,
    /// Order of the dimensions of a convolution's filters. [`OnnxModel::with_filters_channels_last`]
    /// changes it, together with `tensor`.
    ///
    /// [`OnnxModel::with_filters_channels_last`]: crate::OnnxModel::with_filters_channels_last
    pub layout: ImageLayout,
    /// The bytes, or their hash.
    pub data: WeightData,
}

/// The bytes of a weight: little-endian elements, row-major.
#[derive(Debug, Clone, PartialEq)]
pub enum WeightData {
    /// The bytes, shared with the file where the file has them in this form.
    Bytes(Bytes),
    /// Hash of bytes that are stored separately.
    Elsewhere(ContentHash),
}

impl ModelWeight {
    /// Hash of the bytes; computed on every call if the bytes are present.
    #[must_use]
    pub fn hash(&self) -> ContentHash {
        match &self.data {
            WeightData::Bytes(bytes) => ContentHash::from_content(bytes),
            WeightData::Elsewhere(hash) => *hash,
        }
    }

    /// Number of bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        // Reading the weight has already built a type with as many elements.
        self.tensor.with_elements(self.stored_as).map_or(0, |stored| stored.bytes())
    }

    /// The bytes, if the weight is small enough for lowering to read. The size limit applies to the
    /// graph's type, so a model and its skeleton treat the same weights as small.
    #[must_use]
    pub fn inline(&self) -> Option<&Bytes> {
        match &self.data {
            WeightData::Bytes(bytes) if self.is_small() => Some(bytes),
            _ => None,
        }
    }

    pub(super) fn is_small(&self) -> bool {
        use crate::ir::NumberType;
        let bytes_max = match NumberType::for_element_type(self.tensor.element_type()) {
            NumberType::Float => INLINE_BYTES_MAX,
            NumberType::Integer => INLINE_INTEGER_BYTES_MAX,
        };
        self.tensor.bytes() <= bytes_max
    }
}

/// Take the weights out of `graph`: its initialisers, and its constant nodes.
pub(super) fn take(graph: &mut onnx::Graph, is_skeleton: bool) -> Result<Vec<ModelWeight>, GraphError> {
    let mut weights = Vec::with_capacity(graph.initialisers.len());
    let mut names = HashSet::new();
    for tensor in std::mem::take(&mut graph.initialisers) {
        // Real files contain duplicates, which are then identical.
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

/// The tensor of a constant node.
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

fn weight(mut tensor: onnx::Tensor, is_skeleton: bool) -> Result<ModelWeight, GraphError> {
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
        let layout = super::skeleton::layout(&tensor);
        return Ok(ModelWeight { name, tensor: shape, stored_as, layout, data: WeightData::Elsewhere(hash) });
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
    let layout = ImageLayout::ChannelsFirst;
    Ok(ModelWeight { name, tensor: shape, stored_as: element_type, layout, data: WeightData::Bytes(bytes) })
}

/// Convert a large fp32 weight to another storage type.
pub(super) fn store(weight: &mut ModelWeight, storage: ElementType) -> Result<(), GraphError> {
    let WeightData::Bytes(bytes) = &weight.data else { return Ok(()) };
    if weight.is_small() || weight.stored_as != ElementType::Fp32 {
        return Ok(());
    }
    let stored = ReferenceTensor::from_bytes(weight.tensor.clone(), bytes)
        .and_then(|tensor| tensor.in_elements(storage));
    let stored = stored.ok_or_else(|| GraphError::Refused(format!("weights kept as {storage}")))?;
    weight.data = WeightData::Bytes(stored.to_bytes().into());
    weight.stored_as = storage;
    Ok(())
}

/// Put the channels of large filters last. Does nothing to other weights, and to weights whose bytes
/// are stored separately.
pub(super) fn put_channels_last(weight: &mut ModelWeight) -> Result<(), GraphError> {
    let WeightData::Bytes(bytes) = &weight.data else { return Ok(()) };
    let Ok(dims) = <[usize; 4]>::try_from(weight.tensor.dims()) else { return Ok(()) };
    if weight.is_small() || weight.layout != ImageLayout::ChannelsFirst {
        return Ok(());
    }
    let [filters, channels, height, width] = dims;
    let area = height * width;
    let element_bytes = bytes.len() / weight.tensor.elements().max(1);
    let mut made = Vec::with_capacity(bytes.len());
    for filter in bytes.chunks_exact((channels * area * element_bytes).max(1)).take(filters) {
        for tap in 0..area {
            for channel in 0..channels {
                made.extend_from_slice(&filter[(channel * area + tap) * element_bytes..][..element_bytes]);
            }
        }
    }
    let dims = ImageLayout::ChannelsLast.with_dims(dims);
    weight.tensor = TensorType::new(weight.tensor.element_type(), dims)
        .map_err(|error| GraphError::value(&weight.name, &error))?;
    weight.data = WeightData::Bytes(made.into());
    weight.layout = ImageLayout::ChannelsLast;
    Ok(())
}

/// The tensor's elements as bytes, from the field that holds them.
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
        // The field holds half-precision floats as their bit patterns.
        Int16 | Uint16 | Fp16 | Bf16 => {
            tensor.int32_data.iter().flat_map(|value| (*value as u16).to_le_bytes()).collect()
        }
        _ => tensor.int32_data.iter().map(|value| *value as u8).collect(),
    };
    data.into()
}

/// The element type with this number in the standard, if tensors of it are supported.
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

/// Convert a tensor of the file, such as one in an attribute.
pub(crate) fn attribute_tensor(tensor: &onnx::Tensor) -> Result<(TensorType, Bytes), GraphError> {
    let weight = weight(tensor.clone(), false)?;
    match weight.data {
        WeightData::Bytes(bytes) => Ok((weight.tensor, bytes)),
        WeightData::Elsewhere(_) => Err(GraphError::Refused("an attribute in another file".to_owned())),
    }
}
