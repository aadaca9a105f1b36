//! Inlining of model-local functions.

use super::{NODES_MAX, is_own};
use crate::{GraphError, onnx};
use std::collections::HashMap;

/// Largest depth of nested function calls.
const DEPTH_MAX: usize = 32;

/// Inline all calls of `functions` in `nodes`.
pub(super) fn inlined(
    nodes: Vec<onnx::Node>,
    functions: &[onnx::Function],
    opset: i64,
) -> Result<Vec<onnx::Node>, GraphError> {
    if functions.is_empty() {
        return Ok(nodes);
    }
    let by_name =
        functions.iter().map(|function| ((function.domain.as_str(), function.name.as_str()), function));
    let mut inliner = Inliner { functions: by_name.collect(), opset, calls: 0, nodes: Vec::new() };
    for node in nodes {
        inliner.add(node, 0)?;
    }
    Ok(inliner.nodes)
}

struct Inliner<'a> {
    functions: HashMap<(&'a str, &'a str), &'a onnx::Function>,
    opset: i64,
    /// Number of calls so far; makes the names inside each call unique.
    calls: usize,
    nodes: Vec<onnx::Node>,
}

impl Inliner<'_> {
    fn add(&mut self, node: onnx::Node, depth: usize) -> Result<(), GraphError> {
        let Some(function) = self.functions.get(&(node.domain.as_str(), node.operator.as_str())).copied()
        else {
            self.nodes.push(node);
            return GraphError::limit("nodes", self.nodes.len(), NODES_MAX);
        };
        GraphError::limit("functions that call each other", depth + 1, DEPTH_MAX)?;
        // An empty function adds no nodes, so calls have a separate limit.
        self.calls += 1;
        GraphError::limit("calls of functions", self.calls, NODES_MAX)?;
        let own = function.opset_imports.iter().find(|set| is_own(&set.domain));
        if own.is_some_and(|set| set.version != self.opset) {
            let what = format!("a function, {:?}, for another opset than its own", function.name);
            return Err(GraphError::Refused(what));
        }
        let names = names(function, &node);
        for inner in &function.nodes {
            super::check_node(inner)?;
            self.add(renamed(inner, &node, function, &names, self.calls), depth + 1)?;
        }
        Ok(())
    }
}

/// Map a function's inputs and outputs to their names at the call.
fn names<'a>(function: &'a onnx::Function, call: &'a onnx::Node) -> HashMap<&'a str, &'a str> {
    let inputs =
        function.inputs.iter().zip(call.inputs.iter().map(String::as_str).chain(std::iter::repeat("")));
    let outputs = function.outputs.iter().zip(call.outputs.iter().map(String::as_str));
    let named = outputs.filter(|(_, outer)| !outer.is_empty());
    inputs.chain(named).map(|(inner, outer)| (inner.as_str(), outer)).collect()
}

fn renamed(
    inner: &onnx::Node,
    call: &onnx::Node,
    function: &onnx::Function,
    names: &HashMap<&str, &str>,
    number: usize,
) -> onnx::Node {
    let rename = |name: &String| match names.get(name.as_str()) {
        Some(outer) => (*outer).to_owned(),
        None if name.is_empty() => String::new(),
        None => format!("{}/{number}/{name}", function.name),
    };
    let attribute = |attribute: &onnx::Attribute| {
        if attribute.refers_to.is_empty() {
            return Some(attribute.clone());
        }
        let given = call.attribute(&attribute.refers_to);
        let default = || function.defaults.iter().find(|default| default.name == attribute.refers_to);
        Some(onnx::Attribute { name: attribute.name.clone(), ..given.or_else(default)?.clone() })
    };
    onnx::Node {
        inputs: inner.inputs.iter().map(rename).collect(),
        outputs: inner.outputs.iter().map(rename).collect(),
        name: inner.title().to_owned(),
        operator: inner.operator.clone(),
        attributes: inner.attributes.iter().filter_map(attribute).collect(),
        domain: inner.domain.clone(),
    }
}
