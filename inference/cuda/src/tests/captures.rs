//! Tests of drivers that fail to capture runs as graphs, or to repeat the graphs.

use super::*;
use crate::bound::Bound;
use crate::prepared_run::in_slot;
use crate::program::Program;
use crate::weights::Weights;
use weir_graph::{
    Binary, Elementwise, ElementwiseProgram, Graph, GraphNode, GraphPort, GraphValue, Instruction,
    NumberType, Op, Scalar, TensorType, ValueId, ValueSource,
};

/// Driver calls that can fail during the capture and launch of a graph.
const FAILURES: [&str; 7] = [
    "fail_begin_capture",
    "fail_captured_launch",
    "fail_capture_info",
    "fail_capture_dependencies",
    "fail_end_capture",
    "fail_instantiate",
    "fail_graph_launch",
];

/// Runs the digits model `count` times in this session, and returns the output of each run.
fn runs(setup: &Setup, session: &mut dyn Session, count: usize) -> Vec<Vec<f32>> {
    let input = setup.floats(&[2, 1, 8, 8], |at| (at * 7 % 17) as f32 / 17.0);
    (0..count).map(|_| values(&run(session, &input).unwrap()[0])).collect()
}

#[test]
fn failed_capture_falls_back_to_eager_launches() {
    for failure in FAILURES {
        for seed in 0..3 {
            let setup = Setup::new(seed);
            let model = setup.load("digits", read(DIGITS));
            let mut session = model.session(1).unwrap();
            // The first run is never captured.
            let eager = runs(&setup, &mut *session, 1);
            // If memory runs out while a graph is instantiated, idle memory is freed and the call
            // is retried once.
            setup.fake.set(failure, if failure == "fail_instantiate" { 2 } else { 1 });
            let later = runs(&setup, &mut *session, 5);
            assert!(later.iter().all(|run| *run == eager[0]), "{failure}, seed {seed}");
            assert_eq!(setup.fake.count("graph_launches"), 0, "{failure}: no further attempt is made");
            // Another session of the model makes no attempt either; another model is captured.
            let mut second = model.session(1).unwrap();
            assert!(runs(&setup, &mut *second, 3).iter().all(|run| *run == eager[0]));
            assert_eq!(setup.fake.count("graph_launches"), 0, "{failure}: attempts are counted by program");
            let other = setup.load("other", read(DIGITS));
            let mut other = other.session(1).unwrap();
            assert!(runs(&setup, &mut *other, 3).iter().all(|run| *run == eager[0]));
            assert_eq!(setup.fake.count("graph_launches"), 2, "{failure}: another model is captured");
        }
    }
}

#[test]
fn failed_graph_launch_falls_back_to_eager_launches() {
    let setup = Setup::new(1);
    let model = setup.load("digits", read(DIGITS));
    let mut session = model.session(1).unwrap();
    let before = runs(&setup, &mut *session, 4);
    assert_eq!(setup.fake.count("graph_launches"), 3);
    setup.fake.set("fail_graph_launch", 1);
    assert!(runs(&setup, &mut *session, 4).iter().all(|run| *run == before[0]));
    assert_eq!(setup.fake.count("graph_launches"), 3, "the graph is not used any more");
}

/// Makes a graph of branches that add numbers to one input, in `steps` steps each. The values of
/// later branches use the memory of earlier branches.
fn branches(count: usize, steps: usize) -> Graph {
    const LEN: usize = 512;
    let tensor = TensorType::new(ElementType::Fp32, vec![LEN]).unwrap();
    let mut graph = Graph::default();
    let add = |graph: &mut Graph, source: ValueSource| {
        let value = ValueId(u32::try_from(graph.values.len()).unwrap());
        graph.values.push(GraphValue { name: format!("v{}", value.0), tensor: tensor.clone(), source });
        value
    };
    let port = |value: ValueId| GraphPort { name: format!("v{}", value.0), value };
    let input = add(&mut graph, ValueSource::Input);
    graph.inputs.push(port(input));
    for branch in 0..count {
        let mut value = input;
        for _ in 0..steps {
            let node = u32::try_from(graph.nodes.len()).unwrap();
            let output = add(&mut graph, ValueSource::Node { node, output: 0 });
            let by = Instruction::Constant(Scalar::Float((branch + 1) as f32));
            let instructions = vec![Instruction::Load(0), by, Instruction::Binary(Binary::Add)];
            let program = ElementwiseProgram { lane: NumberType::Float, instructions };
            graph.nodes.push(GraphNode {
                name: format!("step {node}"),
                // Every element reads the first one, so the step cannot work in place.
                op: Op::Elementwise(Elementwise { program, dims: vec![LEN], strides: vec![vec![0]] }),
                inputs: vec![Some(value)],
                outputs: vec![Some(output)],
            });
            value = output;
        }
        graph.outputs.push(port(value));
    }
    graph
}

#[test]
fn branches_that_share_memory_do_not_overwrite_each_other() {
    for seed in 1..9 {
        let setup = Setup::new(seed);
        let graph = branches(6, 4);
        let tier = setup.gpu.products.tier();
        let program = Program::from_graph(&graph, Precision::Fp32, &setup.gpu.target, tier).unwrap();
        assert!(program.arena_bytes < 24 * 2048, "values share memory");
        let weights = Weights::none();
        let bound = Bound::new(&setup.gpu, program, &weights, OWNER).unwrap();
        let tensor = graph.value(graph.inputs[0].value).tensor.clone();
        let input = reference::ReferenceTensor::floats(tensor.clone(), vec![0.5; tensor.elements()]);
        let ways = in_slot(&setup.gpu, OWNER, &bound, &weights, &[input], |ready| {
            let ([launched, first], mut captured) = ready.outputs_both_ways()?;
            ready.give_inputs()?;
            captured.launch()?;
            Ok([launched, first, ready.outputs()?])
        });
        for outputs in ways.unwrap() {
            for (branch, output) in outputs.iter().enumerate() {
                let expected = 0.5 + 4.0 * (branch + 1) as f32;
                let found = output.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
                assert!(found.into_iter().all(|found| found == expected), "branch {branch}, seed {seed}");
            }
        }
    }
}
