//! Defects of a model that are visible in the file alone. Runs before ONNX Runtime, which trusts
//! its input too much. Pure functions of plain data.

use crate::onnx::{Attribute, Function, Graph, Model, Node, SparseTensor, Tensor, ValueInfo};
use crate::value::element_type_numbered;
use bytes::Bytes;
use prost::Message;
use std::collections::{HashMap, HashSet};
use weir_inference::UploadRefusal;
use weir_types::ElementType;

/// The longest file that protocol buffers can hold.
const FILE_BYTES_MAX: usize = i32::MAX as usize;

/// The most elements per byte of the file. The densest type has 2 bits per element, 4 elements per
/// byte; this limit is twice that.
const ELEMENTS_PER_BYTE_MAX: u64 = 8;

/// Decodes `file` as a model and looks for forbidden content.
///
/// A tensor that alone takes more than `memory_bytes_max` bytes is refused.
pub(crate) fn scan(file: Bytes, memory_bytes_max: u64) -> Result<Model, UploadRefusal> {
    let malformed = |why: String| UploadRefusal::Malformed { why };
    let len = file.len();
    if len > FILE_BYTES_MAX {
        return Err(malformed(format!("it has {len} bytes, and ONNX files have at most {FILE_BYTES_MAX}")));
    }
    let model = Model::decode(file).map_err(|error| malformed(plainly(&error)))?;
    let graph = model.graph.as_ref().ok_or_else(|| malformed("it holds no graph".to_owned()))?;
    if graph.outputs.is_empty() {
        return Err(malformed("its graph has no outputs".to_owned()));
    }
    let scanner =
        Scanner { elements_max: (len as u64).saturating_mul(ELEMENTS_PER_BYTE_MAX), memory_bytes_max };
    scanner.graph(graph)?;
    for training in &model.training {
        training
            .initialisation
            .iter()
            .chain(&training.algorithm)
            .try_for_each(|graph| scanner.graph(graph))?;
    }
    for function in &model.functions {
        scanner.nodes(&function.nodes)?;
        function.attributes.iter().try_for_each(|attribute| scanner.attribute(attribute))?;
    }
    check_calls(&model.functions)?;
    Ok(model)
}

/// The decoder's message, without the path of an error that is hundreds of levels deep.
fn plainly(error: &prost::DecodeError) -> String {
    let why = error.to_string();
    if why.contains("recursion limit") { "its graphs are nested too deeply".to_owned() } else { why }
}

struct Scanner {
    elements_max: u64,
    memory_bytes_max: u64,
}

impl Scanner {
    fn graph(&self, graph: &Graph) -> Result<(), UploadRefusal> {
        let sparse = graph.sparse_initialisers.iter();
        sparse
            .clone()
            .try_for_each(|tensor| check_dimensions(&tensor_name(tensor), &tensor.dimensions, u64::MAX))?;
        let tensors = graph.initialisers.iter().chain(sparse.flat_map(SparseTensor::parts));
        tensors.into_iter().try_for_each(|tensor| self.tensor(tensor))?;
        graph.inputs.iter().chain(&graph.outputs).try_for_each(check_port)?;
        self.shapes_made(graph)?;
        self.nodes(&graph.nodes)
    }

    fn nodes(&self, nodes: &[Node]) -> Result<(), UploadRefusal> {
        nodes.iter().flat_map(|node| &node.attributes).try_for_each(|attribute| self.attribute(attribute))?;
        check_order(nodes)
    }

    /// A few bytes can declare a huge constant tensor, so its shape must be plausible.
    fn shapes_made(&self, graph: &Graph) -> Result<(), UploadRefusal> {
        let initialisers = graph.initialisers.iter().map(|tensor| (tensor.name.as_str(), tensor));
        let constants = graph.nodes.iter().filter(|node| node.operator == "Constant").filter_map(|node| {
            Some((
                node.outputs.first()?.as_str(),
                node.attributes.iter().find_map(|attribute| attribute.tensor.as_ref())?,
            ))
        });
        let known: HashMap<&str, &Tensor> = initialisers.chain(constants).collect();
        for node in &graph.nodes {
            let shape = match node.operator.as_str() {
                "ConstantOfShape" => node.inputs.first(),
                "Expand" => node.inputs.get(1),
                _ => None,
            };
            let Some(shape) = shape.and_then(|name| known.get(name.as_str())?.integers()) else { continue };
            let value = node.attributes.iter().find_map(|attribute| attribute.tensor.as_ref());
            let size_bytes = value
                .and_then(|value| element_type_numbered(value.data_type))
                .and_then(ElementType::size_bytes);
            // The default value is an fp32; an unknown type has at least one byte.
            let size_bytes = if node.operator == "ConstantOfShape" { size_bytes.unwrap_or(4) } else { 1 };
            check_dimensions(node.title(), &shape, self.memory_bytes_max / size_bytes as u64)?;
        }
        Ok(())
    }

    fn attribute(&self, attribute: &Attribute) -> Result<(), UploadRefusal> {
        attribute.all_tensors().try_for_each(|tensor| self.tensor(tensor))?;
        attribute.all_graphs().try_for_each(|graph| self.graph(graph))
    }

    fn tensor(&self, tensor: &Tensor) -> Result<(), UploadRefusal> {
        if tensor.is_external() {
            return Err(UploadRefusal::ExternalData { tensor: tensor.name.clone() });
        }
        check_dimensions(&tensor.name, &tensor.dimensions, self.elements_max)
    }
}

fn tensor_name(sparse: &SparseTensor) -> String {
    sparse.values.as_ref().map(|values| values.name.clone()).unwrap_or_default()
}

fn check_dimensions(tensor: &str, dimensions: &[i64], elements_max: u64) -> Result<(), UploadRefusal> {
    if let Some(negative) = dimensions.iter().find(|size| **size < 0) {
        return Err(UploadRefusal::Invalid { why: format!("{tensor:?} has a dimension of {negative}") });
    }
    let elements =
        dimensions.iter().try_fold(1_u64, |product, size| product.checked_mul(size.unsigned_abs()));
    if elements.is_none_or(|elements| elements > elements_max) {
        return Err(UploadRefusal::HugeDimension {
            tensor: tensor.to_owned(),
            dimensions: dimensions.to_vec(),
        });
    }
    Ok(())
}

fn check_port(port: &ValueInfo) -> Result<(), UploadRefusal> {
    let shape =
        port.value_type.iter().flat_map(|value| &value.tensor).find_map(|tensor| tensor.shape.as_ref());
    let dimensions: Vec<i64> =
        shape.iter().flat_map(|shape| &shape.dimensions).map(|d| d.size.unwrap_or(1)).collect();
    if dimensions.iter().any(|size| u32::try_from((*size).max(0)).is_err()) {
        return Err(UploadRefusal::HugeDimension { tensor: port.name.clone(), dimensions });
    }
    check_dimensions(
        &port.name,
        &dimensions.iter().map(|size| (*size).max(1)).collect::<Vec<_>>(),
        i64::MAX.unsigned_abs(),
    )
    .map_err(|_| UploadRefusal::HugeDimension { tensor: port.name.clone(), dimensions })
}

/// Checks that the nodes can be ordered so that each follows the nodes whose outputs it needs,
/// whatever the order in the file.
fn check_order(nodes: &[Node]) -> Result<(), UploadRefusal> {
    let mut makers = HashMap::new();
    for (index, node) in nodes.iter().enumerate() {
        makers.extend(node.outputs.iter().filter(|name| !name.is_empty()).map(|name| (name.as_str(), index)));
    }
    let needs = |node: &Node| -> Vec<usize> {
        let mut names: HashSet<&str> = node.inputs.iter().map(String::as_str).collect();
        node.graphs().for_each(|graph| names.extend(free_names(graph)));
        names.into_iter().filter_map(|name| makers.get(name).copied()).collect()
    };
    let needs: Vec<Vec<usize>> = nodes.iter().map(needs).collect();
    match on_a_cycle(&needs).and_then(|index| nodes.get(index)) {
        None => Ok(()),
        Some(node) => Err(UploadRefusal::Cyclic { through: node.title().to_owned() }),
    }
}

/// Names that a nested graph takes from its surroundings.
fn free_names(graph: &Graph) -> HashSet<&str> {
    let mut used: HashSet<&str> = graph.outputs.iter().map(|output| output.name.as_str()).collect();
    for node in &graph.nodes {
        used.extend(node.inputs.iter().map(String::as_str));
        node.graphs().for_each(|graph| used.extend(free_names(graph)));
    }
    let sparse = graph.sparse_initialisers.iter().filter_map(|tensor| tensor.values.as_ref());
    let initialisers = graph.initialisers.iter().chain(sparse).map(|tensor| &tensor.name);
    let made = graph.nodes.iter().flat_map(|node| &node.outputs);
    for name in graph.inputs.iter().map(|input| &input.name).chain(initialisers).chain(made) {
        used.remove(name.as_str());
    }
    used
}

/// Checks that no function calls itself, directly or through others.
fn check_calls(functions: &[Function]) -> Result<(), UploadRefusal> {
    let names = functions.iter().enumerate();
    let known: HashMap<_, _> =
        names.map(|(index, f)| ((f.domain.as_str(), f.name.as_str()), index)).collect();
    let calls: Vec<Vec<usize>> = functions
        .iter()
        .map(|function| {
            let mut called = HashSet::new();
            collect_calls(&function.nodes, &known, &mut called);
            called.into_iter().collect()
        })
        .collect();
    match on_a_cycle(&calls).and_then(|index| functions.get(index)) {
        None => Ok(()),
        Some(function) => Err(UploadRefusal::Cyclic { through: function.name.clone() }),
    }
}

fn collect_calls(nodes: &[Node], known: &HashMap<(&str, &str), usize>, called: &mut HashSet<usize>) {
    for node in nodes {
        called.extend(known.get(&(node.domain.as_str(), node.operator.as_str())));
        node.graphs().for_each(|graph| collect_calls(&graph.nodes, known, called));
    }
}

/// An index on a cycle of the dependency graph `needs`, if there is a cycle.
fn on_a_cycle(needs: &[Vec<usize>]) -> Option<usize> {
    let mut missing: Vec<usize> = needs.iter().map(Vec::len).collect();
    let mut needed_by = vec![Vec::new(); needs.len()];
    for (index, needed) in needs.iter().enumerate() {
        for &other in needed {
            needed_by[other].push(index);
        }
    }
    let mut ready: Vec<usize> = (0..needs.len()).filter(|index| missing[*index] == 0).collect();
    while let Some(index) = ready.pop() {
        for &other in &needed_by[index] {
            missing[other] -= 1;
            if missing[other] == 0 {
                ready.push(other);
            }
        }
    }
    // Each remaining index is on a cycle or depends on one; following dependencies among them ends
    // on a cycle.
    let mut at = missing.iter().position(|count| *count > 0)?;
    for _ in 0..needs.len() {
        at = needs[at].iter().copied().find(|other| missing[*other] > 0)?;
    }
    Some(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn cycle_search_returns_a_member() {
        assert_eq!(on_a_cycle(&[vec![1], vec![2], vec![]]), None);
        assert_eq!(on_a_cycle(&[vec![0]]), Some(0));
        // 0 only depends on the cycle of 1 and 2.
        let member = on_a_cycle(&[vec![1], vec![2], vec![1], vec![]]);
        assert!(member == Some(1) || member == Some(2), "{member:?}");
    }

    #[test]
    fn cycle_through_nested_graph_is_detected() {
        let node = |name: &str, inputs: &[&str], outputs: &[&str], inner: Option<Graph>| Node {
            name: name.to_owned(),
            inputs: inputs.iter().map(ToString::to_string).collect(),
            outputs: outputs.iter().map(ToString::to_string).collect(),
            attributes: inner
                .map(|graph| Attribute { graph: Some(graph), ..Attribute::default() })
                .into_iter()
                .collect(),
            ..Node::default()
        };
        let branch = || Graph { nodes: vec![node("inner", &["b"], &["c"], None)], ..Graph::default() };
        let fine = [node("second", &["x"], &["a"], Some(branch())), node("first", &["x"], &["b"], None)];
        assert_eq!(check_order(&fine), Ok(()), "the order in the file does not matter");
        let bad = [node("branch", &["x"], &["a"], Some(branch())), node("first", &["a"], &["b"], None)];
        assert!(matches!(check_order(&bad), Err(UploadRefusal::Cyclic { .. })));
        // A name defined inside the branch shadows the outer name.
        let shadow = Graph {
            nodes: vec![node("own", &["x"], &["b"], None), node("inner", &["b"], &["c"], None)],
            ..Graph::default()
        };
        assert_eq!(
            check_order(&[node("branch", &["x"], &["a"], Some(shadow)), node("first", &["a"], &["b"], None)]),
            Ok(())
        );
    }

    #[test]
    fn implausible_dimensions_are_refused() {
        assert!(check_dimensions("w", &[2, 3], 6).is_ok());
        assert!(matches!(check_dimensions("w", &[2, 4], 6), Err(UploadRefusal::HugeDimension { .. })));
        assert!(matches!(
            check_dimensions("w", &[1 << 40, 1 << 40], u64::MAX),
            Err(UploadRefusal::HugeDimension { .. })
        ));
        assert!(matches!(check_dimensions("w", &[-4], 6), Err(UploadRefusal::Invalid { .. })));
        assert!(check_dimensions("scalar", &[], 1).is_ok());
    }

    proptest! {
        #[test]
        fn scan_does_not_panic_on_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..500)) {
            let _ = scan(Bytes::from(bytes), u64::MAX);
        }
    }
}
