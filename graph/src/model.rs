//! A checked model as its file defines it: [`OnnxModel`].

mod folding;
mod functions;
mod order;
mod skeleton;
mod weights;

pub(crate) use weights::{attribute_tensor, element_type};

pub use skeleton::{Separated, WeightFile};
pub use weights::{INLINE_BYTES_MAX, INLINE_INTEGER_BYTES_MAX, ModelWeight, WeightData};

use crate::{GraphError, onnx};
use bytes::Bytes;
use prost::Message;
use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;
use weir_types::{ElementType, Port, Signature};

/// Supported versions of ONNX's operator set.
pub const OPSETS: RangeInclusive<i64> = 7..=26;

/// Largest file that protocol buffers can encode.
pub const FILE_BYTES_MAX: usize = i32::MAX as usize;
/// Largest number of nodes in a model, including those of inlined functions.
pub const NODES_MAX: usize = 16_384;
/// Largest number of inputs, outputs and attributes of one node.
pub const PLACES_MAX: usize = 4_096;
/// Largest number of weights.
pub const WEIGHTS_MAX: usize = 65_536;
/// Largest number of inputs, and of outputs, of a model.
pub const PORTS_MAX: usize = 1_024;
/// Longest name.
pub const NAME_BYTES_MAX: usize = 4_096;

/// A model, read and checked, for any shapes of its inputs.
#[derive(Debug, Clone)]
pub struct OnnxModel {
    /// Nodes in execution order. `weights` holds the initialisers and constants.
    pub(crate) graph: onnx::Graph,
    /// Version of ONNX's operator set that the model uses.
    pub(crate) opset: i64,
    /// Inputs of a run, with shapes where the file states them.
    pub(crate) inputs: Vec<ModelInput>,
    signature: Signature,
    weights: Vec<ModelWeight>,
}

/// One input, with symbolic dimensions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ModelInput {
    pub(crate) name: String,
    pub(crate) element_type: ElementType,
    pub(crate) dims: Vec<DeclaredDim>,
}

/// Size of a dimension as the file declares it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DeclaredDim {
    Fixed(usize),
    /// All dimensions with this name have the same size.
    Symbol(String),
    Any,
}

impl OnnxModel {
    /// Read an ONNX file. Weights share the file's memory.
    ///
    /// Rejects unreadable files, models over a limit, and features that no device supports: weights
    /// in other files, sparse weights, and training. [`OnnxModel::unsupported`] lists unsupported
    /// operators.
    pub fn read(file: Bytes) -> Result<Self, GraphError> {
        Self::from_file(file, false)
    }

    /// Read a skeleton that [`OnnxModel::without_weights`] wrote: large weights are known by hash
    /// only.
    pub fn read_skeleton(skeleton: Bytes) -> Result<Self, GraphError> {
        Self::from_file(skeleton, true)
    }

    fn from_file(file: Bytes, is_skeleton: bool) -> Result<Self, GraphError> {
        GraphError::limit("bytes", file.len(), FILE_BYTES_MAX)?;
        let mut model =
            onnx::Model::decode(file).map_err(|error| GraphError::malformed(error.to_string()))?;
        if !model.training.is_empty() {
            return Err(GraphError::Refused("a part for training".to_owned()));
        }
        let mut graph = model.graph.take().ok_or_else(|| GraphError::malformed("it holds no graph"))?;
        let opset = opset(&model)?;
        if !graph.sparse_initialisers.is_empty() {
            return Err(GraphError::Refused("sparse weights".to_owned()));
        }
        check_sizes(&graph)?;
        graph.nodes = functions::inlined(graph.nodes, &model.functions, opset)?;
        let weights = weights::take(&mut graph, is_skeleton)?;
        let inputs = inputs(&graph, &weights)?;
        graph.nodes = order::ordered(graph.nodes, names_given(&inputs, &weights)?, &graph.outputs)?;
        let signature =
            Signature { inputs: inputs.iter().map(ModelInput::port).collect(), outputs: outputs(&graph)? };
        Ok(Self { graph, opset, inputs, signature, weights })
    }

    /// Inputs and outputs of a run, without inputs that default to a weight.
    #[must_use]
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// Weights: initialisers, and constants among the nodes.
    /// [`Source::Weight`](crate::ValueSource::Weight) is an index into this slice.
    #[must_use]
    pub fn weights(&self) -> &[ModelWeight] {
        &self.weights
    }

    /// Indexes of the weights in the order in which a run first reads them, estimated without
    /// shapes. Small weights come first, since preparing a network needs them. The others follow in
    /// the order of the nodes. Weights that no node names come last.
    #[must_use]
    pub fn weights_by_use(&self) -> Vec<u32> {
        let indexes = || (0_u32..).zip(&self.weights);
        let by_name: HashMap<&str, u32> =
            indexes().map(|(index, weight)| (weight.name.as_str(), index)).collect();
        let read = self.graph.nodes.iter().flat_map(|node| &node.inputs);
        let read = read.filter_map(|name| by_name.get(name.as_str()).copied());
        let small = indexes().filter(|(_, weight)| weight.is_small()).map(|(index, _)| index);
        let mut seen = HashSet::new();
        let all = small.chain(read).chain(indexes().map(|(index, _)| index));
        all.filter(|index| seen.insert(*index)).collect()
    }

    /// Replace the bytes of one weight, for example with fine-tuned ones; the length must not
    /// change.
    pub fn with_weight(mut self, index: u32, bytes: Bytes) -> Result<Self, GraphError> {
        let weight = usize::try_from(index).ok().and_then(|index| self.weights.get_mut(index));
        let weight = weight.ok_or_else(|| GraphError::Refused(format!("a weight {index}: it has fewer")))?;
        if bytes.len() != weight.bytes() {
            let name = &weight.name;
            let found = bytes.len();
            let expected = weight.bytes();
            return Err(GraphError::Refused(format!("{found} bytes for weight {name:?} of {expected}")));
        }
        weight.data = WeightData::Bytes(bytes);
        Ok(self)
    }

    /// Version of ONNX's operator set that the model uses.
    #[must_use]
    pub fn opset(&self) -> i64 {
        self.opset
    }
}

impl ModelInput {
    fn port(&self) -> Port {
        let size = |dim: &DeclaredDim| match dim {
            DeclaredDim::Fixed(size) => u32::try_from(*size).ok(),
            DeclaredDim::Symbol(_) | DeclaredDim::Any => None,
        };
        Port {
            name: self.name.clone(),
            datatype: self.element_type,
            shape: self.dims.iter().map(size).collect(),
        }
    }
}

/// Version of ONNX's default operator set.
fn opset(model: &onnx::Model) -> Result<i64, GraphError> {
    let own = |set: &&onnx::OperatorSet| is_own(&set.domain);
    let version = model.opset_imports.iter().find(own).map_or(1, |set| set.version);
    if OPSETS.contains(&version) { Ok(version) } else { Err(GraphError::Opset(version)) }
}

/// Whether this is ONNX's default domain.
pub(crate) fn is_own(domain: &str) -> bool {
    matches!(domain, "" | "ai.onnx")
}

fn check_sizes(graph: &onnx::Graph) -> Result<(), GraphError> {
    GraphError::limit("nodes", graph.nodes.len(), NODES_MAX)?;
    GraphError::limit("weights", graph.initialisers.len(), WEIGHTS_MAX)?;
    GraphError::limit("inputs", graph.inputs.len(), WEIGHTS_MAX + PORTS_MAX)?;
    GraphError::limit("outputs", graph.outputs.len(), PORTS_MAX)?;
    if graph.outputs.is_empty() {
        return Err(GraphError::malformed("its graph has no outputs"));
    }
    let ports = graph.inputs.iter().chain(&graph.outputs).map(|port| &port.name);
    for name in ports.chain(graph.initialisers.iter().map(|tensor| &tensor.name)) {
        GraphError::limit("bytes in a name", name.len(), NAME_BYTES_MAX)?;
    }
    graph.nodes.iter().try_for_each(check_node)
}

fn check_node(node: &onnx::Node) -> Result<(), GraphError> {
    let places = [node.inputs.len(), node.outputs.len(), node.attributes.len()];
    GraphError::limit("places at one node", places.into_iter().max().unwrap_or(0), PLACES_MAX)?;
    for name in node.inputs.iter().chain(&node.outputs).chain([&node.name, &node.operator, &node.domain]) {
        GraphError::limit("bytes in a name", name.len(), NAME_BYTES_MAX)?;
    }
    Ok(())
}

fn inputs(graph: &onnx::Graph, weights: &[ModelWeight]) -> Result<Vec<ModelInput>, GraphError> {
    // Until version 4 of the format, initialisers were also listed as inputs.
    let defaults: HashSet<&str> = weights.iter().map(|weight| weight.name.as_str()).collect();
    let given: Vec<_> = graph.inputs.iter().filter(|port| !defaults.contains(port.name.as_str())).collect();
    GraphError::limit("inputs", given.len(), PORTS_MAX)?;
    given.into_iter().map(input).collect()
}

fn input(info: &onnx::ValueInfo) -> Result<ModelInput, GraphError> {
    let (element_type, shape) = dense(info)?;
    let Some(shape) = shape else {
        return Err(GraphError::Refused(format!(
            "an input, {:?}, without a number of dimensions",
            info.name
        )));
    };
    let dims = shape.dims.iter().map(|dim| match (dim.size, &dim.symbol) {
        (Some(size), _) if size >= 0 => u32::try_from(size)
            .map(|size| DeclaredDim::Fixed(size as usize))
            .map_err(|_| GraphError::malformed(format!("input {:?} has a dimension of {size}", info.name))),
        (None, Some(symbol)) if is_identifier(symbol) => Ok(DeclaredDim::Symbol(symbol.clone())),
        _ => Ok(DeclaredDim::Any),
    });
    let dims: Vec<DeclaredDim> = dims.collect::<Result<_, _>>()?;
    GraphError::limit("dimensions of an input", dims.len(), crate::tensor_type::RANK_MAX)?;
    Ok(ModelInput { name: info.name.clone(), element_type, dims })
}

/// Whether the format allows this name for a dimension. Some exporters write `?` or `-1` for every
/// unknown dimension; such dimensions are independent of each other.
fn is_identifier(symbol: &str) -> bool {
    !symbol.starts_with(|c: char| c.is_ascii_digit())
        && !symbol.is_empty()
        && symbol.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn outputs(graph: &onnx::Graph) -> Result<Vec<Port>, GraphError> {
    let port = |info: &onnx::ValueInfo| {
        let (datatype, shape) = dense(info)?;
        let size = |dim: &onnx::Dim| dim.size.and_then(|size| u32::try_from(size).ok());
        let shape = shape.map(|shape| shape.dims.iter().map(size).collect()).unwrap_or_default();
        Ok(Port { name: info.name.clone(), datatype, shape })
    };
    graph.outputs.iter().map(port).collect()
}

fn dense(info: &onnx::ValueInfo) -> Result<(ElementType, Option<&onnx::Shape>), GraphError> {
    let Some(dense) = info.value_type.as_ref().and_then(|value| value.tensor.as_ref()) else {
        return Err(GraphError::Refused(format!("{:?}, which is not a tensor,", info.name)));
    };
    let element_type = element_type(dense.element_type).ok_or_else(|| {
        GraphError::Refused(format!("{:?} with elements of type {}", info.name, dense.element_type))
    })?;
    Ok((element_type, dense.shape.as_ref()))
}

/// Names that exist before the first node, inputs and weights; an error for a duplicate.
fn names_given(
    inputs: &[ModelInput],
    weights: &[ModelWeight],
) -> Result<HashMap<String, order::Producer>, GraphError> {
    let mut given = HashMap::new();
    for name in inputs.iter().map(|input| &input.name).chain(weights.iter().map(|weight| &weight.name)) {
        if given.insert(name.clone(), order::Producer::Given).is_some() {
            return Err(GraphError::malformed(format!("{name:?} is given twice")));
        }
    }
    Ok(given)
}
