//! Example programs that compare compiled chains with the interpreter.

use super::Chain;
use crate::{KernelTarget, Operands, Precision, plan};
use std::sync::Arc;
use weir_graph::{
    Activation, Binary, Elementwise, ElementwiseProgram, Graph, GraphNode, GraphPort, GraphValue,
    Instruction, NumberType, Op, Scalar, TensorType, TypeError, Unary, ValueId, ValueSource, row_major,
};
use weir_types::ElementType::{self, Bf16, Bool, Fp16, Fp32, Fp64, Int8, Int32, Int64, Uint8};

const TYPES: [ElementType; 9] = [Fp32, Fp16, Bf16, Fp64, Int64, Int32, Uint8, Int8, Bool];
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

/// An operation with the types of its operands, each of which has as many elements as the output.
/// Together, [`Example::all`] cover every instruction of both lanes, every activation, every type
/// that is loaded or stored, and every loop. They serve tests of compilers, and
/// `weir doctor --gpu`.
#[derive(Debug, Clone, PartialEq)]
pub struct Example {
    /// The operation.
    pub op: Elementwise,
    /// Types of the operands.
    pub inputs: Vec<ElementType>,
    /// Type of the output.
    pub output: ElementType,
}

impl Example {
    /// All examples, of a few hundred elements each.
    #[must_use]
    pub fn all() -> Vec<Self> {
        use Instruction::{Binary as B, Constant, Load, Unary as U, Where};
        let mut examples = Vec::new();
        for packed in [true, false] {
            // Each instruction's result is added to the previous one, so that every result counts
            // and a compiler could contract some of them.
            for unaries in float_unaries().chunks(9) {
                let mut code = vec![Load(0)];
                for unary in unaries {
                    code.extend([Load(0), U(*unary), B(Binary::Add)]);
                }
                examples.push(Self::new(NumberType::Float, code, &[Fp32], Fp32, packed));
            }
            for binaries in BINARIES.chunks(7) {
                examples.push(Self::new(NumberType::Float, folded(binaries), &[Fp32, Fp32], Fp32, packed));
            }
            for (place, from) in TYPES.into_iter().enumerate() {
                let to = TYPES.get((place + 4) % TYPES.len()).copied().unwrap_or(Fp32);
                let code =
                    vec![Load(0), Load(1), B(Binary::Mul), Constant(Scalar::Float(0.3)), B(Binary::Add)];
                examples.push(Self::new(NumberType::Float, code, &[from, Fp32], to, packed));
            }
        }
        let choice = vec![Load(0), Load(1), B(Binary::Less), Load(2), Constant(Scalar::Float(-0.0)), Where];
        examples.push(Self::new(NumberType::Float, choice, &[Fp32, Fp16, Bf16], Fp32, true));
        let mut deep: Vec<_> = (0..8).map(Load).collect();
        deep.extend([B(Binary::Mul), B(Binary::Sub), B(Binary::Mul), B(Binary::Add), B(Binary::Mul)]);
        deep.extend([B(Binary::Add), B(Binary::Div)]);
        examples.push(Self::new(NumberType::Float, deep, &[Fp32; 8], Fp32, true));

        let mut code = vec![Load(0)];
        let casts = [Int64, Int32, Uint8, Int8, Bool].map(Unary::Cast);
        for unary in [Unary::Neg, Unary::Abs, Unary::Sign, Unary::Not].into_iter().chain(casts) {
            code.extend([Load(0), U(unary), B(Binary::Sub)]);
        }
        examples.push(Self::new(NumberType::Integer, code, &[Int64], Int64, false));
        for binaries in BINARIES.chunks(7) {
            examples.push(Self::new(NumberType::Integer, folded(binaries), &[Int64, Int64], Int64, false));
        }
        for (place, from) in TYPES.into_iter().enumerate() {
            let to = TYPES.get((place + 5) % TYPES.len()).copied().unwrap_or(Int64);
            let code = vec![Load(0), Constant(Scalar::Integer(1)), Load(1), Where];
            examples.push(Self::new(NumberType::Integer, code, &[from, Int32], to, false));
        }
        examples
    }

    /// An elementwise chain that is typical of neural networks: `silu(a * b + c)` on `FP32`
    /// tensors. With two or more dimensions, `a` is a vector along the last dimension and is
    /// broadcast over the others.
    #[must_use]
    pub fn silu(dims: &[usize]) -> Self {
        use Instruction::{Binary as B, Load, Unary as U};
        let code = vec![
            Load(0),
            Load(1),
            B(Binary::Mul),
            Load(2),
            B(Binary::Add),
            U(Unary::Activate(Activation::Silu)),
        ];
        let mut strides = vec![row_major(dims); 3];
        if let (Some(first), true) = (strides.first_mut(), dims.len() > 1) {
            first.fill(0);
            first.last_mut().into_iter().for_each(|stride| *stride = 1);
        }
        let op = Elementwise {
            program: ElementwiseProgram { lane: NumberType::Float, instructions: code },
            dims: dims.to_vec(),
            strides,
        };
        Self { op, inputs: vec![Fp32; 3], output: Fp32 }
    }

    fn new(
        lane: NumberType,
        instructions: Vec<Instruction>,
        inputs: &[ElementType],
        output: ElementType,
        packed: bool,
    ) -> Self {
        // Not a multiple of the elements that a thread processes at once.
        let dims: &[usize] = if packed { &[331] } else { &[7, 43] };
        let op = Elementwise {
            program: ElementwiseProgram { lane, instructions },
            dims: dims.to_vec(),
            strides: vec![row_major(dims); inputs.len()],
        };
        Self { op, inputs: inputs.to_vec(), output }
    }

    /// The chain of the example's only launch.
    #[must_use]
    pub fn chain(&self) -> Option<Arc<Chain>> {
        let graph = self.graph().ok()?;
        let tensors: Vec<_> = graph.values.iter().map(|value| Some(&value.tensor)).collect();
        let (output, inputs) = tensors.split_last()?;
        let operands = Operands { inputs, outputs: &[*output] };
        let plan =
            plan(&Op::Elementwise(self.op.clone()), operands, Precision::Fp32, &KernelTarget::H200).ok()?;
        plan.launches.into_iter().next()?.chain
    }

    /// A graph of this operation alone.
    pub fn graph(&self) -> Result<Graph, TypeError> {
        let mut graph = Graph::default();
        let mut add = |element_type, source| {
            let value = ValueId(u32::try_from(graph.values.len()).unwrap_or(u32::MAX));
            let tensor = TensorType::new(element_type, self.op.dims.clone())?;
            graph.values.push(GraphValue { name: format!("v{}", value.0), tensor, source });
            Ok(value)
        };
        let inputs =
            self.inputs.iter().map(|from| add(*from, ValueSource::Input)).collect::<Result<Vec<_>, _>>()?;
        let output = add(self.output, ValueSource::Node { node: 0, output: 0 })?;
        let port = |value: &ValueId| GraphPort { name: format!("v{}", value.0), value: *value };
        graph.inputs = inputs.iter().map(port).collect();
        graph.outputs = vec![port(&output)];
        graph.nodes = vec![GraphNode {
            name: "example".to_owned(),
            op: Op::Elementwise(self.op.clone()),
            inputs: inputs.into_iter().map(Some).collect(),
            outputs: vec![Some(output)],
        }];
        Ok(graph)
    }
}

/// All binary instructions, each on the previous result and the operands in turn.
fn folded(binaries: &[Binary]) -> Vec<Instruction> {
    let mut code = vec![Instruction::Load(0)];
    for (place, binary) in binaries.iter().enumerate() {
        // Each result is mixed with an operand again, so that a comparison does not discard the
        // previous results.
        code.extend([Instruction::Load(1), Instruction::Binary(*binary)]);
        code.extend([Instruction::Load((place % 2) as u8), Instruction::Binary(Binary::Add)]);
    }
    code
}

fn float_unaries() -> Vec<Unary> {
    let plain = [
        Unary::Neg,
        Unary::Abs,
        Unary::Sign,
        Unary::Not,
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
    ];
    let activations = [
        Activation::Relu,
        Activation::LeakyRelu(0.1),
        Activation::Clip { min: -0.5, max: f32::INFINITY },
        Activation::Sigmoid,
        Activation::Tanh,
        Activation::Silu,
        Activation::HardSigmoid { alpha: 0.3, beta: 0.4 },
        Activation::HardSwish,
        Activation::Gelu,
        Activation::GeluTanh,
        Activation::Softplus,
    ];
    let activations = activations.map(Unary::Activate);
    plain.into_iter().chain(activations).chain(TYPES.map(Unary::Cast)).collect()
}
