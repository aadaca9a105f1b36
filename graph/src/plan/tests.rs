//! Tests of plans of whole graphs.

use super::*;
use crate::TensorType;
use crate::ir::{ElementwiseProgram, GraphPort, GraphValue, Instruction, NumberType, Scalar};
use proptest::prelude::*;
use weir_types::ElementType;

/// Build a chain of sums: each node adds two earlier values, which may be the same.
fn graph(sizes: &[(u8, u8, bool)]) -> Graph {
    let mut graph = Graph::default();
    let value = |graph: &mut Graph, source| {
        let tensor = TensorType::new(ElementType::Fp32, [100]).unwrap();
        graph.values.push(GraphValue { name: String::new(), tensor, source });
        ValueId(graph.values.len() as u32 - 1)
    };
    let input = value(&mut graph, ValueSource::Input);
    graph.inputs.push(GraphPort { name: "x".to_owned(), value: input });
    for (index, (a, b, constant)) in sizes.iter().enumerate() {
        let pick = |at: &u8| ValueId(u32::from(*at) % graph.values.len() as u32);
        let operands = [pick(a), pick(b)];
        let output = value(&mut graph, ValueSource::Node { node: index as u32, output: 0 });
        let (op, inputs) = if *constant {
            (Op::Fill(Scalar::Float(1.0)), vec![])
        } else {
            let instructions =
                vec![Instruction::Load(0), Instruction::Load(1), Instruction::Binary(crate::ir::Binary::Add)];
            let program = ElementwiseProgram { lane: NumberType::Float, instructions };
            let op = Elementwise { program, dims: vec![100], strides: vec![vec![1], vec![1]] };
            (Op::Elementwise(op), operands.map(Some).to_vec())
        };
        graph.nodes.push(GraphNode { name: index.to_string(), op, inputs, outputs: vec![Some(output)] });
    }
    let last = ValueId(graph.values.len() as u32 - 1);
    graph.outputs.push(GraphPort { name: "y".to_owned(), value: last });
    graph.tidy();
    graph.check().unwrap();
    graph
}

/// Run the graph in the planned memory, and check that each read finds the value that was written.
fn runs_right(graph: &Graph) {
    let plan = MemoryPlan::new(graph);
    let mut owners: Vec<(ValuePlace, ValueId)> =
        graph.inputs.iter().map(|port| (plan.place(port.value), port.value)).collect();
    let overlap = |a: ValuePlace, b: ValuePlace| match (a, b) {
        (ValuePlace::Arena { offset: a }, ValuePlace::Arena { offset: b })
        | (ValuePlace::Resident { offset: a }, ValuePlace::Resident { offset: b }) => {
            a < b + 400 && b < a + 400
        }
        _ => false,
    };
    for node in &graph.nodes {
        for id in node.inputs.iter().flatten() {
            assert!(
                owners.contains(&(plan.place(*id), *id)),
                "{id:?} was written over before node {}",
                node.name
            );
        }
        for id in node.outputs.iter().flatten() {
            let place = plan.place(*id);
            owners.retain(|(other, _)| !overlap(*other, place));
            owners.push((place, *id));
        }
    }
    for port in &graph.outputs {
        assert!(owners.contains(&(plan.place(port.value), port.value)), "an output was written over");
    }
}

proptest! {
    #[test]
    fn reads_return_written_values(sizes in prop::collection::vec(any::<(u8, u8, bool)>(), 1..40)) {
        runs_right(&graph(&sizes));
    }
}

#[test]
fn chain_reuses_one_block() {
    // Each node adds the previous value to itself.
    let chain: Vec<_> = (0..10).map(|at| (at, at, false)).collect();
    let plan = MemoryPlan::new(&graph(&chain));
    assert_eq!(plan.arena_bytes, 2 * 512);
    assert_eq!(plan.resident_bytes, 0);
}

/// Memory of an operand must not be reused if it is read at another element than the written one.
#[test]
fn memory_of_permuted_operand_is_not_reused() {
    let mut graph = graph(&[(0, 0, false), (1, 1, false), (2, 2, false)]);
    let share = |graph: &Graph| {
        let plan = MemoryPlan::new(graph);
        let node = &graph.nodes[1];
        plan.place(node.input(0).unwrap()) == plan.place(node.output(0).unwrap())
    };
    assert!(share(&graph));
    let Op::Elementwise(op) = &mut graph.nodes[1].op else { panic!("it adds") };
    op.dims = vec![10, 10];
    op.strides = vec![vec![1, 10]; 2];
    assert!(!share(&graph));
}

#[test]
fn prologue_results_are_resident() {
    // A constant, and the input added to it.
    let graph = graph(&[(0, 0, true), (0, 1, false)]);
    assert_eq!(graph.prologue_len, 1);
    let plan = MemoryPlan::new(&graph);
    assert_eq!(plan.resident_bytes, 512);
    let made = graph.nodes[0].output(0).unwrap();
    assert_eq!(plan.place(made), ValuePlace::Resident { offset: 0 });
}
