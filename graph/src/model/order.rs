//! Topological order of nodes.

use crate::{GraphError, onnx};
use std::collections::{HashMap, HashSet};

/// Maker of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Producer {
    /// The value is an input or a weight.
    Given,
    /// The node at this index makes the value.
    Node(usize),
}

/// Return the nodes that `outputs` depend on, each after the nodes that it depends on, otherwise in
/// file order. The standard requires this order, but some files violate it.
pub(super) fn ordered(
    nodes: Vec<onnx::Node>,
    mut makers: HashMap<String, Producer>,
    outputs: &[onnx::ValueInfo],
) -> Result<Vec<onnx::Node>, GraphError> {
    for (index, node) in nodes.iter().enumerate() {
        for name in node.outputs.iter().filter(|name| !name.is_empty()) {
            if makers.insert(name.clone(), Producer::Node(index)).is_some() {
                return Err(GraphError::malformed(format!("{name:?} is made twice")));
            }
        }
    }
    let mut missing = vec![0_usize; nodes.len()];
    let mut needed_by = vec![Vec::new(); nodes.len()];
    for (index, node) in nodes.iter().enumerate() {
        for name in node.inputs.iter().filter(|name| !name.is_empty()) {
            match makers.get(name) {
                Some(Producer::Given) => {}
                Some(Producer::Node(maker)) => {
                    missing[index] += 1;
                    needed_by[*maker].push(index);
                }
                None => {
                    let why = format!("node {:?} needs {name:?}, which nothing makes", node.title());
                    return Err(GraphError::Malformed(why));
                }
            }
        }
    }
    let order = order(missing, &needed_by);
    if order.len() < nodes.len() {
        return Err(GraphError::malformed("its nodes need each other in a circle"));
    }
    let is_live = live(&nodes, &order, outputs);
    let mut nodes: Vec<_> =
        nodes.into_iter().zip(is_live).map(|(node, is_live)| is_live.then_some(node)).collect();
    Ok(order.into_iter().filter_map(|index| nodes[index].take()).collect())
}

/// For each node, whether an output of the graph depends on it.
fn live(nodes: &[onnx::Node], order: &[usize], outputs: &[onnx::ValueInfo]) -> Vec<bool> {
    let mut needed: HashSet<&str> = outputs.iter().map(|output| output.name.as_str()).collect();
    let mut is_live = vec![false; nodes.len()];
    for index in order.iter().rev() {
        let node = &nodes[*index];
        if node.outputs.iter().any(|name| !name.is_empty() && needed.contains(name.as_str())) {
            is_live[*index] = true;
            needed.extend(node.inputs.iter().map(String::as_str));
        }
    }
    is_live
}

/// Topological order of indices, smallest first among the ready ones; indices on a cycle are
/// omitted.
fn order(mut missing: Vec<usize>, needed_by: &[Vec<usize>]) -> Vec<usize> {
    use std::cmp::Reverse;
    let ready = (0..missing.len()).filter(|index| missing[*index] == 0).map(Reverse);
    let mut ready: std::collections::BinaryHeap<_> = ready.collect();
    let mut order = Vec::with_capacity(missing.len());
    while let Some(Reverse(index)) = ready.pop() {
        order.push(index);
        for &other in &needed_by[index] {
            missing[other] -= 1;
            if missing[other] == 0 {
                ready.push(Reverse(other));
            }
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(inputs: &[&str], outputs: &[&str]) -> onnx::Node {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        onnx::Node { inputs: names(inputs), outputs: names(outputs), ..onnx::Node::default() }
    }

    fn outputs(names: &[&str]) -> Vec<onnx::ValueInfo> {
        names.iter().map(|name| onnx::ValueInfo { name: name.to_string(), ..Default::default() }).collect()
    }

    fn given() -> HashMap<String, Producer> {
        HashMap::from([("x".to_owned(), Producer::Given)])
    }

    #[test]
    fn nodes_are_sorted_topologically_and_stably() {
        let nodes = vec![
            node(&["b", ""], &["c"]),
            node(&["x"], &["a"]),
            node(&["a", "a"], &["b"]),
            node(&["b"], &["dead"]),
        ];
        let ordered = ordered(nodes, given(), &outputs(&["c"])).unwrap();
        assert_eq!(ordered.iter().map(|node| node.outputs[0].as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
    }

    #[test]
    fn cycles_unknown_and_duplicate_names_are_malformed() {
        let circle = vec![node(&["b"], &["a"]), node(&["a"], &["b"])];
        let stranger = vec![node(&["y"], &["a"])];
        let double = vec![node(&["x"], &["a"]), node(&["x"], &["a"])];
        let shadow = vec![node(&["x"], &["x"])];
        for nodes in [circle, stranger, double, shadow] {
            assert!(matches!(ordered(nodes, given(), &outputs(&["a"])), Err(GraphError::Malformed(_))));
        }
    }
}
