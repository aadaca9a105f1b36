//! Kernels of each case of `graph/tests/data/operators.json` against the reference: the operations
//! that operators are lowered to and fused to.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed setup fails the test")]

use base64::Engine as _;
use std::collections::HashMap;
use weir_graph::reference::{self, ReferenceTensor};
use weir_graph::{Graph, GraphPort, OnnxModel, TensorType, ValueId, ValueSource, WeightData};
use weir_kernels::{KernelTarget, Precision};
use weir_kernels_tests::{KernelCase, Tolerance, Values, check};
use weir_types::{ElementType, Shape};

#[derive(serde::Deserialize)]
struct OperatorCase {
    name: String,
    model: String,
}

#[test]
fn kernels_of_every_operator_match_the_reference() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../graph/tests/data/operators.json");
    let cases: Vec<OperatorCase> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let mut wrong = Vec::new();
    for case in &cases {
        let file = base64::engine::general_purpose::STANDARD.decode(&case.model).unwrap();
        let model = OnnxModel::read(file.into()).unwrap();
        for node in nodes(&model) {
            if let Err(error) = check(&node) {
                wrong.push(format!("{}, {}: {error:#}", case.name, node.op.name()));
            }
        }
    }
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// The operations of a model after fusion, with the operands of a run.
fn nodes(model: &OnnxModel) -> Vec<KernelCase> {
    let ports = &model.signature().inputs;
    let dims: Vec<Vec<u32>> =
        ports.iter().map(|port| port.shape.iter().map(|dim| dim.unwrap()).collect()).collect();
    let shapes: Vec<Shape> = dims.iter().map(|dims| Shape::new(dims).unwrap()).collect();
    let mut graph = model.specialise(&shapes).unwrap().fuse().unwrap();
    let inputs: Vec<ReferenceTensor> = (17..)
        .zip(ports)
        .zip(&dims)
        .map(|((seed, port), dims)| {
            let dims: Vec<usize> = dims.iter().map(|dim| *dim as usize).collect();
            random(seed, &TensorType::new(port.datatype, dims).unwrap())
        })
        .collect();
    let values = values(model, &mut graph, &inputs);
    let tensor = |id: &ValueId| graph.value(*id).tensor.clone();
    let case = |node: &weir_graph::GraphNode| KernelCase {
        op: node.op.clone(),
        inputs: node.inputs.iter().map(|id| id.map(|id| values[&id].clone())).collect(),
        outputs: node.outputs.iter().map(|id| id.as_ref().map(tensor)).collect(),
        precision: Precision::Fp32,
        target: KernelTarget::H200,
        tolerance: Tolerance { absolute: 2e-5, relative: 2e-5 },
    };
    graph.nodes.iter().map(case).collect()
}

fn random(seed: u64, tensor: &TensorType) -> ReferenceTensor {
    match tensor.element_type() {
        ElementType::Fp32 => Values::new(seed).floats(tensor, -2.0, 2.0),
        ElementType::Bool => Values::new(seed).integers(tensor, 0, 2),
        _ => Values::new(seed).integers(tensor, 0, 3),
    }
}

/// All values of a run, by id: makes every value an output.
fn values(
    model: &OnnxModel,
    graph: &mut Graph,
    inputs: &[ReferenceTensor],
) -> HashMap<ValueId, ReferenceTensor> {
    let weight = |index: u32| {
        let weight = model.weights().get(index as usize)?;
        let WeightData::Bytes(bytes) = &weight.data else { return None };
        ReferenceTensor::from_bytes(weight.tensor.clone(), bytes)
    };
    let is_read = |id: &ValueId| {
        let is_operand = graph.nodes.iter().any(|node| node.inputs.contains(&Some(*id)));
        is_operand || matches!(graph.value(*id).source, ValueSource::Node { .. })
    };
    let ids: Vec<ValueId> = graph.ids().filter(is_read).collect();
    graph.outputs = ids.iter().map(|id| GraphPort { name: String::new(), value: *id }).collect();
    let made = reference::run(graph, inputs, &weight).unwrap();
    ids.into_iter().zip(made).collect()
}
