//! What a launch costs beside what it does: a chain of operations on a few bytes, launch by launch and as a graph.

use super::super::bound::Bound;
use super::super::device::Gpu;
use super::super::program::{ProductTier, Program};
use super::super::weights::Weights;
use super::bench::{BothWays, OWNER, in_slot};
use super::{Check, CheckConfig, CheckFailure, Stage};
use weir_device::cuda::CudaError;
use weir_graph::reference::Tensor;
use weir_graph::{
    Elementwise, Graph, Instruction, Lane, Node, Op, Port, Source, TensorType, Unary, Value, ValueId,
};
use weir_types::ElementType::Fp32;
use weir_types::Precision;

/// Operations in the chain.
const CHAIN: u32 = 64;
const ELEMENTS: usize = 32;

pub(super) fn check(
    gpu: &Gpu,
    config: &CheckConfig,
    tell: &mut dyn FnMut(Check),
) -> Result<(), CheckFailure> {
    let (program, input) = program(gpu)?;
    let weights = Weights::none();
    let bound = Bound::new(gpu, program, &weights, OWNER)?;
    let BothWays { launched, captured } =
        in_slot(gpu, OWNER, &bound, &weights, &[input], |ready| ready.both_ways(config.repeats))?;
    let each = |what: &str, time_ns: u64| {
        Check::passed(Stage::Launches, what).took(time_ns / u64::from(CHAIN), 0, 0)
    };
    tell(each("one of 64 launches, one after the other", launched.time_ns));
    let same = launched.outputs == captured.outputs;
    let detail = if same { String::new() } else { "the graph computes something else".to_owned() };
    tell(Check { passed: same, detail, ..each("one of 64 launches in a graph", captured.time_ns) });
    Ok(())
}

/// The chain for a device, and what it is given.
pub(super) fn program(gpu: &Gpu) -> Result<(Program, Tensor), CudaError> {
    let tensor = TensorType::new(Fp32, [ELEMENTS]).map_err(|error| CudaError::Invalid(error.to_string()))?;
    let program = Program::of(&chain(&tensor), Precision::Fp32, &gpu.target, ProductTier::Own);
    let program = program.map_err(|error| CudaError::Invalid(error.to_string()))?;
    Ok((program, Tensor::floats(tensor, vec![1.0; ELEMENTS])))
}

/// `-x`, again and again.
fn chain(tensor: &TensorType) -> Graph {
    let value = |name: String, source| Value { name, tensor: tensor.clone(), source };
    let program = weir_graph::Program {
        lane: Lane::Float,
        instructions: vec![Instruction::Load(0), Instruction::Unary(Unary::Neg)],
    };
    let op = Op::Elementwise(Elementwise { program, dims: vec![ELEMENTS], strides: vec![vec![1]] });
    let node = |at: u32| Node {
        name: format!("n{at}"),
        op: op.clone(),
        inputs: vec![Some(ValueId(at))],
        outputs: vec![Some(ValueId(at + 1))],
    };
    let made = (0..CHAIN).map(|at| value(format!("v{at}"), Source::Node { node: at, output: 0 }));
    Graph {
        values: std::iter::once(value("x".to_owned(), Source::Input)).chain(made).collect(),
        nodes: (0..CHAIN).map(node).collect(),
        prologue_len: 0,
        inputs: vec![Port { name: "x".to_owned(), value: ValueId(0) }],
        outputs: vec![Port { name: "y".to_owned(), value: ValueId(CHAIN) }],
    }
}
