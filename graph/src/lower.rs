//! Lowering of a model with given input shapes to device operations: [`OnnxModel::specialise`].
//!
//! Nodes are lowered in order. Each operator has a function, in one of the submodules, that turns a
//! call of the operator into device operations. Operations with known operands are folded at once
//! ([`emit`]), so no arithmetic on shapes remains in the graph.

mod arithmetic;
mod attention;
mod call;
mod conv;
mod dims;
mod emit;
mod functions;
mod grid;
mod index;
mod make;
mod matmul;
mod moves;
mod norm;
mod operators;
mod pad;
mod quantise;
mod recurrent;
mod resize;
mod rotary;
mod rows;
mod scatter;
mod slice;
mod views;

pub(crate) use dims::{collapse, signed, unsigned};
pub(crate) use emit::elementwise_over;
pub(crate) use matmul::BATCH_DIMS_MAX;
pub use operators::{Operator, operators};

use crate::ir::{Graph, GraphPort, GraphValue, ValueId, ValueSource};
use crate::model::{DeclaredDim, ModelInput};
use crate::reference::ReferenceTensor;
use crate::{GraphError, OnnxModel, TensorType, onnx};
use call::LoweringCall;
use emit::CONSTANT_BYTES_MAX;
use std::collections::{BTreeSet, HashMap, HashSet};
use weir_types::Shape;

/// Result of an operator's function: a value for each of the call's outputs; `None` for an
/// unsupported output.
type Made = Result<Vec<Option<ValueId>>, GraphError>;

impl OnnxModel {
    /// Nodes that are not supported for any shape, each as the error that [`OnnxModel::specialise`]
    /// would return: the operator is unknown, or it does not make an output that the model uses.
    #[must_use]
    pub fn unsupported(&self) -> Vec<GraphError> {
        let nodes = self.graph.nodes.iter();
        let read = nodes.clone().flat_map(|node| &node.inputs).map(String::as_str);
        let given = self.signature().outputs.iter().map(|port| port.name.as_str());
        let used: HashSet<&str> = read.chain(given).filter(|name| !name.is_empty()).collect();
        let fault = |node: &onnx::Node| {
            let Some(operator) = operators::find(node) else { return Some(operators::unknown(node)) };
            let mut outputs = node.outputs.iter().enumerate();
            let (place, _) =
                outputs.find(|(place, name)| used.contains(name.as_str()) && !operator.makes(*place))?;
            Some(not_made(node, place))
        };
        nodes.filter_map(fault).collect()
    }

    /// Names of the operators that the model uses, without duplicates.
    #[must_use]
    pub fn operators(&self) -> BTreeSet<String> {
        self.graph.nodes.iter().map(operators::full_name).collect()
    }

    /// Build the graph of this model for inputs of these shapes, in the order of its signature.
    ///
    /// Most nodes become one operation; [`Graph::fuse`] fuses the operations.
    pub fn specialise(&self, shapes: &[Shape]) -> Result<Graph, GraphError> {
        let inputs = self.bind(shapes)?;
        let mut lowering = Lowering::new(self);
        for (input, tensor) in self.inputs.iter().zip(inputs) {
            lowering.given(&input.name, tensor, ValueSource::Input);
        }
        for (index, weight) in (0_u32..).zip(self.weights()) {
            lowering.given(&weight.name, weight.tensor.clone(), ValueSource::Weight(index));
        }
        for node in &self.graph.nodes {
            lowering.node(node)?;
        }
        lowering.finish()
    }

    /// Check shapes against the inputs that the file declares.
    fn bind(&self, shapes: &[Shape]) -> Result<Vec<TensorType>, GraphError> {
        if shapes.len() != self.inputs.len() {
            let why = format!("the model takes {} inputs, not {}", self.inputs.len(), shapes.len());
            return Err(GraphError::Inputs(why));
        }
        let mut symbols: HashMap<&str, usize> = HashMap::new();
        let mut bound = Vec::with_capacity(shapes.len());
        for (input, shape) in self.inputs.iter().zip(shapes) {
            let dims: Vec<usize> = shape.dimensions().iter().map(|dim| *dim as usize).collect();
            if !input.takes(&dims, &mut symbols) {
                let port =
                    self.signature().inputs.get(bound.len()).map(ToString::to_string).unwrap_or_default();
                return Err(GraphError::Inputs(format!("input {port} cannot be of shape {shape}")));
            }
            let tensor = TensorType::new(input.element_type, dims);
            bound.push(
                tensor.map_err(|error| GraphError::Inputs(format!("input {:?} has {error}", input.name)))?,
            );
        }
        Ok(bound)
    }
}

impl ModelInput {
    /// Whether the input accepts these dimensions. `symbols` maps the names of dimensions to the
    /// sizes bound so far.
    fn takes<'a>(&'a self, dims: &[usize], symbols: &mut HashMap<&'a str, usize>) -> bool {
        let takes = |(dim, size): (&'a DeclaredDim, &usize)| match dim {
            DeclaredDim::Fixed(fixed) => fixed == size,
            DeclaredDim::Symbol(symbol) => symbols.entry(symbol).or_insert(*size) == size,
            DeclaredDim::Any => true,
        };
        self.dims.len() == dims.len() && self.dims.iter().zip(dims).all(takes)
    }
}

/// Graph under construction.
pub(crate) struct Lowering<'m> {
    model: &'m OnnxModel,
    graph: Graph,
    /// Values by their names in the model.
    names: HashMap<String, ValueId>,
    /// Contents of known buffers, cached on first use.
    known: HashMap<ValueId, ReferenceTensor>,
    /// Total bytes of the constants made so far.
    constant_bytes: usize,
    /// Total elements read and written by constant folding so far.
    folded_elements: usize,
    /// Display name of the current node.
    title: String,
}

impl<'m> Lowering<'m> {
    fn new(model: &'m OnnxModel) -> Self {
        let (graph, names, known, title) = Default::default();
        Self { model, graph, names, known, constant_bytes: 0, folded_elements: 0, title }
    }

    fn given(&mut self, name: &str, tensor: TensorType, source: ValueSource) {
        let is_input = source == ValueSource::Input;
        let id = self.value(tensor, source);
        self.graph.values[id.0 as usize].name = name.to_owned();
        self.names.insert(name.to_owned(), id);
        if is_input {
            self.graph.inputs.push(GraphPort { name: name.to_owned(), value: id });
        }
    }

    /// Add a value to the graph.
    fn value(&mut self, tensor: TensorType, source: ValueSource) -> ValueId {
        let id = ValueId(u32::try_from(self.graph.values.len()).unwrap_or(u32::MAX));
        self.graph.values.push(GraphValue { name: String::new(), tensor, source });
        id
    }

    fn node(&mut self, node: &onnx::Node) -> Result<(), GraphError> {
        node.title().clone_into(&mut self.title);
        let operator = operators::find(node).ok_or_else(|| operators::unknown(node))?;
        let inputs = node.inputs.iter().map(|name| self.names.get(name).copied()).collect();
        let call = LoweringCall { node, inputs, opset: self.model.opset() };
        if let Some(name) =
            node.inputs.iter().find(|name| !name.is_empty() && !self.names.contains_key(*name))
        {
            return Err(self.missing(name));
        }
        call.check_opset(&operator)?;
        let mut made = (operator.lower)(self, &call)?.into_iter();
        GraphError::limit(
            "bytes of constants that follow from its shapes",
            self.constant_bytes,
            CONSTANT_BYTES_MAX,
        )?;
        for name in &node.outputs {
            let value = made.next().flatten();
            let Some(id) = value.filter(|_| !name.is_empty()) else { continue };
            let value = &mut self.graph.values[id.0 as usize];
            if value.name.is_empty() {
                value.name.clone_from(name);
            }
            self.names.insert(name.clone(), id);
        }
        Ok(())
    }

    /// The error for a value that no operation has made. Nodes are ordered, so it is an output that
    /// the operator of its node does not make.
    fn missing(&self, name: &str) -> GraphError {
        let place = |node: &onnx::Node| node.outputs.iter().position(|output| output == name);
        let mut nodes = self.model.graph.nodes.iter();
        match nodes.find_map(|node| Some((node, place(node)?))) {
            Some((node, place)) => not_made(node, place),
            None => GraphError::malformed(format!("no node makes the value {name:?}")),
        }
    }

    fn finish(mut self) -> Result<Graph, GraphError> {
        for port in &self.model.signature().outputs {
            let id = *self.names.get(&port.name).ok_or_else(|| self.missing(&port.name))?;
            let made = self.graph.value(id).tensor.element_type();
            if made != port.datatype {
                let why = format!("its output {:?} is declared {}, but is {made}", port.name, port.datatype);
                return Err(GraphError::Malformed(why));
            }
            self.graph.outputs.push(GraphPort { name: port.name.clone(), value: id });
        }
        self.graph.tidy();
        self.graph.check()?;
        Ok(self.graph)
    }
}

/// The error for an output that the operator of `node` does not make, and that the model uses.
fn not_made(node: &onnx::Node, place: usize) -> GraphError {
    let name = node.outputs.get(place).map(String::as_str).unwrap_or_default();
    GraphError::Unsupported {
        node: node.title().to_owned(),
        operator: operators::full_name(node),
        what: format!("output {place}, {name:?}, is"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message as _;

    #[test]
    fn named_dimensions_share_one_size() {
        let takes = |names: [&str; 2], shape: [u32; 2]| {
            let dim = |name: &&str| onnx::Dim { size: None, symbol: Some((*name).to_owned()) };
            let shape_of = Some(onnx::Shape { dims: names.iter().map(dim).collect() });
            let dense = onnx::DenseType { element_type: 1, shape: shape_of };
            let port = |name: &str| onnx::ValueInfo {
                name: name.to_owned(),
                value_type: Some(onnx::ValueType { tensor: Some(dense.clone()) }),
            };
            let relu = onnx::Node {
                inputs: vec!["x".to_owned()],
                outputs: vec!["y".to_owned()],
                operator: "Relu".to_owned(),
                ..Default::default()
            };
            let inputs = vec![port("x")];
            let outputs = vec![port("y")];
            let graph = onnx::Graph { nodes: vec![relu], inputs, outputs, ..Default::default() };
            let opset = onnx::OperatorSet { domain: String::new(), version: 17 };
            let model = onnx::Model { graph: Some(graph), opset_imports: vec![opset], ..Default::default() };
            let model = OnnxModel::read(model.encode_to_vec().into()).unwrap();
            model.specialise(&[Shape::new(&shape).unwrap()]).is_ok()
        };
        for (names, is_taken) in
            [(["n", "n"], false), (["n", "m"], true), (["?", "?"], true), (["-1", "-1"], true)]
        {
            assert!(takes(names, [2, 2]) && takes(names, [2, 3]) == is_taken, "{names:?}");
        }
    }

    /// A model of one node with float inputs `i0`, `i1`... and the outputs `o0`, `o1`..., of which
    /// the last is the model's, or the input of a `Neg` whose output is the model's.
    fn model_of_output(operator: &str, inputs: usize, place: usize, is_read: bool) -> OnnxModel {
        let port = |name: String| onnx::ValueInfo {
            name,
            value_type: Some(onnx::ValueType {
                tensor: Some(onnx::DenseType {
                    element_type: 1,
                    shape: Some(onnx::Shape { dims: vec![onnx::Dim { size: Some(4), symbol: None }; 1] }),
                }),
            }),
        };
        let (domain, operator) = operator.rsplit_once(':').unwrap_or(("", operator));
        let names = |letter: &str, count: usize| (0..count).map(|at| format!("{letter}{at}")).collect();
        let last = format!("o{place}");
        let node = onnx::Node {
            inputs: names("i", inputs),
            outputs: names("o", place + 1),
            operator: operator.to_owned(),
            domain: domain.to_owned(),
            ..Default::default()
        };
        let reader = onnx::Node {
            inputs: vec![last.clone()],
            outputs: vec!["y".to_owned()],
            operator: "Neg".to_owned(),
            ..Default::default()
        };
        let graph = onnx::Graph {
            nodes: if is_read { vec![node, reader] } else { vec![node] },
            inputs: (0..inputs).map(|at| port(format!("i{at}"))).collect(),
            outputs: vec![port(if is_read { "y".to_owned() } else { last })],
            ..Default::default()
        };
        let opset = |domain: &str, version| onnx::OperatorSet { domain: domain.to_owned(), version };
        let opset_imports = vec![opset("", 17), opset("com.microsoft", 1)];
        let model = onnx::Model { graph: Some(graph), opset_imports, ..Default::default() };
        OnnxModel::read(model.encode_to_vec().into()).unwrap()
    }

    #[test]
    fn outputs_that_an_operator_does_not_make_are_unsupported_for_any_shape() {
        let not_made = [
            ("MaxPool", 1, 1),
            ("com.microsoft:SkipLayerNormalization", 3, 1),
            ("com.microsoft:SkipLayerNormalization", 3, 2),
        ];
        for (operator, inputs, place) in not_made {
            for is_read in [false, true] {
                let unsupported = model_of_output(operator, inputs, place, is_read).unsupported();
                let [error @ GraphError::Unsupported { .. }] = unsupported.as_slice() else {
                    panic!("{operator} {place} {is_read}: {unsupported:?}");
                };
                assert!(
                    error.to_string().contains(&format!("output {place}, \"o{place}\", is not")),
                    "{error}"
                );
            }
        }
        for (operator, inputs, place) in
            [("LayerNormalization", 2, 0), ("TopK", 2, 1), ("com.microsoft:SkipLayerNormalization", 3, 3)]
        {
            assert_eq!(model_of_output(operator, inputs, place, false).unsupported(), [], "{operator}");
        }
    }

    #[test]
    fn specialising_refuses_outputs_that_are_not_made() {
        for is_read in [false, true] {
            let model = model_of_output("com.microsoft:SkipLayerNormalization", 3, 1, is_read);
            let shape = Shape::new(&[4]).unwrap();
            let error = model.specialise(&vec![shape; 3]).unwrap_err();
            assert_eq!([error], model.unsupported().as_slice());
        }
    }

    #[test]
    fn dropout_whose_training_mode_is_an_input_is_unsupported() {
        let shape = Shape::new(&[4]).unwrap();
        for inputs in [1, 2] {
            let model = model_of_output("Dropout", inputs, 1, false);
            let made = model.specialise(&vec![shape.clone(); inputs]);
            assert!(matches!(made, Err(GraphError::Malformed(_))), "the mask is declared FP32: {made:?}");
        }
        let made = model_of_output("Dropout", 3, 0, false).specialise(&vec![shape; 3]);
        assert!(matches!(made, Err(GraphError::Unsupported { .. })), "{made:?}");
    }

    /// A file of few bytes can request many large constants.
    #[test]
    fn total_size_of_constants_is_limited() {
        let int64 = |name: &str, value: i64| onnx::Tensor {
            name: name.to_owned(),
            data_type: 7,
            int64_data: vec![value],
            ..Default::default()
        };
        let name = |name: &str| name.to_owned();
        let mut graph = onnx::Graph {
            initialisers: vec![int64("start", 0), int64("limit", 4_000_000), int64("step", 1)],
            ..Default::default()
        };
        for at in 0..20 {
            graph.nodes.push(onnx::Node {
                inputs: vec![name("start"), name("limit"), name("step")],
                outputs: vec![format!("r{at}")],
                operator: name("Range"),
                ..Default::default()
            });
            let dense = onnx::DenseType { element_type: 7, shape: None };
            let value_type = Some(onnx::ValueType { tensor: Some(dense) });
            graph.outputs.push(onnx::ValueInfo { name: format!("r{at}"), value_type });
        }
        let opset = onnx::OperatorSet { domain: String::new(), version: 17 };
        let model = onnx::Model { graph: Some(graph), opset_imports: vec![opset], ..Default::default() };
        let error = OnnxModel::read(model.encode_to_vec().into()).unwrap().specialise(&[]).unwrap_err();
        assert!(matches!(error, GraphError::Limit { max: CONSTANT_BYTES_MAX, .. }), "{error}");
    }
}
