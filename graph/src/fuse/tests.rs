//! Tests of each fusion pattern: fused operations, and unchanged results.

use crate::TensorType;
use crate::ir::{
    Activation, Binary, Elementwise, ElementwiseProgram, Graph, GraphNode, GraphPort, GraphValue,
    Instruction, NumberType, Op, Scalar, Unary, ValueId, ValueSource,
};
use crate::lower::elementwise_over;
use crate::reference::{self, ReferenceTensor};
use weir_types::ElementType;

/// A graph of elementwise operations on one input, `x`, of 40 elements.
struct GraphBuilder(Graph);

const LEN: usize = 40;

impl GraphBuilder {
    fn new() -> Self {
        let mut maker = Self(Graph::default());
        let value = maker.value(ValueSource::Input);
        maker.0.inputs.push(GraphPort { name: "x".to_owned(), value });
        maker
    }

    fn value(&mut self, source: ValueSource) -> ValueId {
        let tensor = TensorType::new(ElementType::Fp32, [LEN]).unwrap();
        self.0.values.push(GraphValue { name: String::new(), tensor, source });
        ValueId(self.0.values.len() as u32 - 1)
    }

    fn op(&mut self, inputs: &[ValueId], instructions: &[Instruction]) -> ValueId {
        let program = ElementwiseProgram { lane: NumberType::Float, instructions: instructions.to_vec() };
        let op: Elementwise = elementwise_over(program, &[LEN], &vec![vec![1]; inputs.len()]).unwrap();
        let output = self.value(ValueSource::Node { node: self.0.nodes.len() as u32, output: 0 });
        let inputs = inputs.iter().copied().map(Some).collect();
        self.0.nodes.push(GraphNode {
            name: String::new(),
            op: Op::Elementwise(op),
            inputs,
            outputs: vec![Some(output)],
        });
        output
    }

    /// Return the fused graph with output `y`, after checking that fusion leaves the results
    /// unchanged.
    fn fused(mut self, y: ValueId) -> Graph {
        self.0.outputs.push(GraphPort { name: "y".to_owned(), value: y });
        let fused = self.0.clone().fuse().unwrap();
        let tensor = TensorType::new(ElementType::Fp32, [LEN]).unwrap();
        let x = ReferenceTensor::floats(tensor, (0..LEN).map(|at| at as f32 / 4.0 - 5.0).collect());
        let all = |graph: &Graph| {
            reference::run(graph, std::slice::from_ref(&x), &|_| None).unwrap()[0].to_floats()
        };
        for (a, b) in all(&self.0).iter().zip(all(&fused)) {
            assert!((a - b).abs() < 1e-5, "{a} {b}");
        }
        fused
    }
}

fn program(graph: &Graph) -> &[Instruction] {
    let [node] = graph.nodes.as_slice() else { panic!("{} nodes are left", graph.nodes.len()) };
    let Op::Elementwise(op) = &node.op else { panic!("{:?}", node.op) };
    &op.program.instructions
}

fn number(float: f32) -> Instruction {
    Instruction::Constant(Scalar::Float(float))
}

const X: Instruction = Instruction::Load(0);
const Y: Instruction = Instruction::Load(1);

fn with(binary: Binary) -> Instruction {
    Instruction::Binary(binary)
}

fn activate(activation: Activation) -> Instruction {
    Instruction::Unary(Unary::Activate(activation))
}

#[test]
fn gelu_is_fused_in_both_orders() {
    for halved_first in [true, false] {
        let mut maker = GraphBuilder::new();
        let x = ValueId(0);
        let scaled = maker.op(&[x], &[X, number(std::f32::consts::SQRT_2), with(Binary::Div)]);
        let erf = maker.op(&[scaled], &[X, Instruction::Unary(Unary::Erf)]);
        let one = maker.op(&[erf], &[X, number(1.0), with(Binary::Add)]);
        let y = if halved_first {
            let half = maker.op(&[x], &[X, number(0.5), with(Binary::Mul)]);
            maker.op(&[half, one], &[X, Y, with(Binary::Mul)])
        } else {
            let whole = maker.op(&[x, one], &[X, Y, with(Binary::Mul)]);
            maker.op(&[whole], &[X, number(0.5), with(Binary::Mul)])
        };
        assert_eq!(program(&maker.fused(y)), [X, activate(Activation::Gelu)]);
    }
}

#[test]
fn tanh_gelu_is_fused_as_gelu_tanh() {
    let mut maker = GraphBuilder::new();
    let x = ValueId(0);
    let cube = maker.op(&[x], &[X, number(3.0), with(Binary::Pow)]);
    let cube = maker.op(&[cube], &[X, number(0.044_715), with(Binary::Mul)]);
    let sum = maker.op(&[x, cube], &[X, Y, with(Binary::Add)]);
    let sum = maker.op(&[sum], &[X, number(0.797_884_6), with(Binary::Mul)]);
    let tanh = maker.op(&[sum], &[X, activate(Activation::Tanh), number(1.0), with(Binary::Add)]);
    let y = maker.op(&[x, tanh], &[X, Y, with(Binary::Mul), number(0.5), with(Binary::Mul)]);
    assert_eq!(program(&maker.fused(y)), [X, activate(Activation::GeluTanh)]);
}

#[test]
fn silu_and_hard_swish_are_fused() {
    let mut maker = GraphBuilder::new();
    let sigmoid = maker.op(&[ValueId(0)], &[X, activate(Activation::Sigmoid)]);
    let y = maker.op(&[ValueId(0), sigmoid], &[X, Y, with(Binary::Mul)]);
    assert_eq!(program(&maker.fused(y)), [X, activate(Activation::Silu)]);

    let mut maker = GraphBuilder::new();
    let clipped = maker.op(
        &[ValueId(0)],
        &[X, number(3.0), with(Binary::Add), activate(Activation::Clip { min: 0.0, max: 6.0 })],
    );
    let product = maker.op(&[ValueId(0), clipped], &[X, Y, with(Binary::Mul)]);
    let y = maker.op(&[product], &[X, number(6.0), with(Binary::Div)]);
    assert_eq!(program(&maker.fused(y)), [X, activate(Activation::HardSwish)]);
}

#[test]
fn similar_expression_is_not_fused_as_activation() {
    let mut maker = GraphBuilder::new();
    let sigmoid =
        maker.op(&[ValueId(0)], &[X, number(1.702), with(Binary::Mul), activate(Activation::Sigmoid)]);
    let y = maker.op(&[ValueId(0), sigmoid], &[X, Y, with(Binary::Mul)]);
    // The multiplications and the sigmoid fuse into one program, but stay as written.
    assert_eq!(program(&maker.fused(y)).len(), 6);
}

#[test]
fn shared_value_is_computed_once() {
    let mut maker = GraphBuilder::new();
    let shared = maker.op(&[ValueId(0)], &[X, Instruction::Unary(Unary::Sin)]);
    let a = maker.op(&[shared], &[X, Instruction::Unary(Unary::Exp)]);
    let b = maker.op(&[shared], &[X, Instruction::Unary(Unary::Abs)]);
    let y = maker.op(&[a, b], &[X, Y, with(Binary::Add)]);
    let fused = maker.fused(y);
    let sines = fused.nodes.iter().filter(|node| match &node.op {
        Op::Elementwise(op) => op.program.instructions.contains(&Instruction::Unary(Unary::Sin)),
        _ => false,
    });
    assert_eq!((sines.count(), fused.nodes.len()), (1, 2));
}
