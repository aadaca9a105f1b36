//! Elementwise programs: every instruction, every element type, and every layout of operands.

use super::{KernelCase, case, floats, run, tensor};
use weir_graph::reference::ReferenceTensor;
use weir_graph::{
    Activation, Binary, Elementwise, ElementwiseProgram, Instruction, NumberType, Op, Scalar, Unary,
};
use weir_kernels_tests::{Tolerance, Values};
use weir_types::ElementType::{self, Bf16, Bool, Fp16, Fp32, Fp64, Int8, Int32, Int64, Uint8};

const UNARIES: [Unary; 28] = [
    Unary::Neg,
    Unary::Abs,
    Unary::Sign,
    Unary::Not,
    Unary::Cast(Fp16),
    Unary::Cast(Bf16),
    Unary::Cast(Int32),
    Unary::Cast(Bool),
    Unary::Sqrt,
    Unary::Rsqrt,
    Unary::Reciprocal,
    Unary::Exp,
    Unary::Log,
    Unary::Erf,
    Unary::Sin,
    Unary::Cos,
    Unary::Floor,
    Unary::Ceil,
    Unary::Round,
    Unary::IsNan,
    Unary::Activate(Activation::Relu),
    Unary::Activate(Activation::LeakyRelu(0.1)),
    Unary::Activate(Activation::Sigmoid),
    Unary::Activate(Activation::HardSigmoid { alpha: 0.3, beta: 0.4 }),
    Unary::Activate(Activation::HardSwish),
    Unary::Activate(Activation::Gelu),
    Unary::Activate(Activation::Softplus),
    Unary::Activate(Activation::Clip { min: -0.5, max: 2.0 }),
];
const BINARIES: [Binary; 17] = [
    Binary::Add,
    Binary::Sub,
    Binary::Mul,
    Binary::Div,
    Binary::Pow,
    Binary::Min,
    Binary::Max,
    Binary::Mod,
    Binary::Fmod,
    Binary::Equal,
    Binary::Less,
    Binary::LessEqual,
    Binary::Greater,
    Binary::GreaterEqual,
    Binary::And,
    Binary::Or,
    Binary::Xor,
];
const ROUNDED: Tolerance = Tolerance { absolute: 2e-6, relative: 4e-6 };

/// A program on operands of `dims` elements each, contiguous like the output.
fn flat(
    lane: NumberType,
    instructions: Vec<Instruction>,
    inputs: Vec<ReferenceTensor>,
    output: ElementType,
) -> KernelCase {
    let count = inputs[0].tensor().elements();
    let op = Elementwise {
        program: ElementwiseProgram { lane, instructions },
        dims: vec![count],
        strides: inputs.iter().map(|input| vec![usize::from(input.tensor().elements() > 1)]).collect(),
    };
    case(Op::Elementwise(op), inputs.into_iter().map(Some).collect(), tensor(output, &[count]), ROUNDED)
}

fn strided(instructions: Vec<Instruction>, dims: &[usize], operands: &[(usize, &[usize])]) -> KernelCase {
    let op = Elementwise {
        program: ElementwiseProgram { lane: NumberType::Float, instructions },
        dims: dims.to_vec(),
        strides: operands.iter().map(|(_, strides)| strides.to_vec()).collect(),
    };
    let inputs = operands.iter().map(|(elements, _)| Some(floats(Fp32, &[*elements]))).collect();
    case(Op::Elementwise(op), inputs, tensor(Fp32, dims), ROUNDED)
}

pub(super) fn cases() -> Vec<KernelCase> {
    use Instruction::{Constant, Load, Where};
    let mut cases = Vec::new();
    let mut values = Values::new(1);
    for unary in UNARIES {
        let positive = matches!(unary, Unary::Sqrt | Unary::Rsqrt | Unary::Log | Unary::Reciprocal);
        let x = values.floats(&tensor(Fp32, &[601]), if positive { 0.1 } else { -4.0 }, 4.0);
        cases.push(flat(NumberType::Float, vec![Load(0), Instruction::Unary(unary)], vec![x], Fp32));
        if !unary.is_float_only() && !matches!(unary, Unary::Cast(Fp16 | Bf16)) {
            let x = values.integers(&tensor(Int64, &[333]), -3, 4);
            cases.push(flat(NumberType::Integer, vec![Load(0), Instruction::Unary(unary)], vec![x], Int64));
        }
    }
    for binary in BINARIES {
        let low = if binary == Binary::Pow { 0.1 } else { -3.0 };
        let (a, b) =
            (values.floats(&tensor(Fp32, &[257]), low, 3.0), values.floats(&tensor(Fp32, &[257]), -2.0, 3.0));
        let program = vec![Load(0), Load(1), Instruction::Binary(binary)];
        cases.push(flat(NumberType::Float, program.clone(), vec![a.clone(), b], Fp32));
        // Operands with equal elements.
        cases.push(flat(NumberType::Float, program.clone(), vec![a.clone(), a], Fp32));
        let (a, b) =
            (values.integers(&tensor(Int64, &[400]), -4, 5), values.integers(&tensor(Int64, &[400]), -3, 4));
        cases.push(flat(NumberType::Integer, program, vec![a, b], Int64));
    }
    // Every type is loaded and stored, in both lanes.
    for from in [Fp32, Fp16, Bf16, Fp64, Int64, Int32, Uint8, Int8, Bool] {
        for to in [Fp32, Fp16, Bf16, Fp64, Int64, Int32, Uint8, Int8, Bool] {
            let input = match NumberType::for_element_type(from) {
                NumberType::Float => values.floats(&tensor(from, &[131]), 0.0, 90.0),
                NumberType::Integer => {
                    values.integers(&tensor(from, &[131]), 0, if from == Bool { 2 } else { 100 })
                }
            };
            let lane = if NumberType::for_element_type(to) == NumberType::Float {
                NumberType::Float
            } else {
                NumberType::for_element_type(from)
            };
            cases.push(flat(lane, vec![Load(0)], vec![input], to));
        }
    }
    // A typical chain of networks: SiLU of a sum with a broadcast number, on many blocks and on a
    // few elements.
    let silu = vec![
        Load(0),
        Load(1),
        Instruction::Binary(Binary::Mul),
        Load(2),
        Instruction::Binary(Binary::Add),
        Instruction::Unary(Unary::Activate(Activation::Silu)),
    ];
    for count in [1, 3, 4, 1_000, 5_003] {
        let inputs = vec![floats(Fp32, &[count]), floats(Fp32, &[1]), floats(Fp16, &[count])];
        cases.push(flat(NumberType::Float, silu.clone(), inputs, Fp32));
    }
    // A selection by a condition, and the deepest allowed stack.
    let choose = vec![
        Load(0),
        Load(1),
        Instruction::Binary(Binary::Less),
        Load(1),
        Constant(Scalar::Float(7.5)),
        Where,
    ];
    cases.push(flat(NumberType::Float, choose, vec![floats(Fp32, &[99]), floats(Fp32, &[1])], Fp32));
    let mut deep: Vec<_> = (0..8).map(Load).collect();
    deep.extend(vec![Instruction::Binary(Binary::Sub); 7]);
    cases.push(flat(
        NumberType::Float,
        deep,
        (0..8).map(|i| values.floats(&tensor(Fp32, &[70]), i as f32, 9.0)).collect(),
        Fp32,
    ));
    // Broadcast along the middle dimension, the outer one, both, and all six dimensions.
    let sum = vec![Load(0), Load(1), Instruction::Binary(Binary::Add)];
    cases.push(strided(sum.clone(), &[3, 5, 7], &[(105, &[35, 7, 1]), (5, &[0, 1, 0])]));
    cases.push(strided(sum.clone(), &[40, 33], &[(33, &[0, 1]), (40, &[1, 0])]));
    cases.push(strided(
        sum,
        &[2, 3, 2, 3, 2, 5],
        &[(360, &[180, 60, 30, 10, 5, 1]), (66, &[1, 2, 0, 6, 0, 12])],
    ));
    cases
}

#[test]
fn elementwise_programs() {
    run(cases());
}
