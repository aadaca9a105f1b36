//! Conversion of a stack machine's program to registers.

use super::super::epilogue::activation_code;
use super::super::type_code;
use weir_graph::{Binary, ElementwiseProgram, Instruction, NumberType, Scalar, Unary};

/// One instruction of the kernel: `Instruction` in `program.cuh`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RegisterInstruction {
    pub(crate) code: u16,
    pub(crate) to: u8,
    pub(crate) a: u8,
    pub(crate) b: u8,
    pub(crate) c: u8,
    pub(crate) kind: u16,
    pub(crate) value: u64,
}

/// A program on registers. The first registers hold the operands.
#[derive(Debug, Default)]
pub(super) struct Registers {
    pub(super) code: Vec<RegisterInstruction>,
    /// Number of registers.
    pub(super) count: u32,
}

impl Registers {
    /// Convert a program that has been checked.
    pub(super) fn from_program(program: &ElementwiseProgram, inputs: usize) -> Self {
        let inputs = inputs as u8;
        let mut code = Vec::with_capacity(program.instructions.len());
        let mut stack: Vec<u8> = Vec::new();
        let mut count = inputs;
        for instruction in &program.instructions {
            let (takes, step) = match *instruction {
                Instruction::Load(place) => {
                    stack.push(place);
                    continue;
                }
                Instruction::Constant(scalar) => (0, (0, 0, scalar_bits(scalar))),
                Instruction::Unary(unary) => (1, unary_code(unary)),
                Instruction::Binary(binary) => (2, (binary_code(binary), 0, 0)),
                Instruction::Where => (3, (1, 0, 0)),
            };
            let from = stack.split_off(stack.len().saturating_sub(takes));
            // The lowest register that is not on the stack.
            let to = (inputs..u8::MAX).find(|register| !stack.contains(register)).unwrap_or(inputs);
            count = count.max(to + 1);
            let operand = |place: usize| from.get(place).copied().unwrap_or(0);
            let (code_number, kind, value) = step;
            code.push(RegisterInstruction {
                code: code_number,
                to,
                a: operand(0),
                b: operand(1),
                c: operand(2),
                kind,
                value,
            });
            stack.push(to);
        }
        if code.is_empty() {
            // A program with loads only needs an instruction, since the kernel stores the last
            // result. A cast to the lane's type leaves the number unchanged.
            let a = stack.first().copied().unwrap_or(0);
            let to = inputs;
            let (code_number, kind, value) = unary_code(Unary::Cast(match program.lane {
                NumberType::Float => weir_types::ElementType::Fp32,
                NumberType::Integer => weir_types::ElementType::Int64,
            }));
            code.push(RegisterInstruction { code: code_number, to, a, b: 0, c: 0, kind, value });
            count = count.max(to + 1);
        }
        Self { code, count: u32::from(count) }
    }
}

fn scalar_bits(scalar: Scalar) -> u64 {
    match scalar {
        Scalar::Float(number) => u64::from(number.to_bits()),
        Scalar::Integer(number) => number.cast_unsigned(),
    }
}

/// Code, kind and value of an instruction.
fn unary_code(unary: Unary) -> (u16, u16, u64) {
    let code = match unary {
        Unary::Not => 19,
        Unary::Neg => 20,
        Unary::Abs => 21,
        Unary::Sign => 22,
        // Types without a code are rejected as operands; within a program, such a number always
        // fits i64.
        Unary::Cast(element_type) => return (23, type_code(element_type).unwrap_or(3) as u16, 0),
        Unary::Sqrt => 24,
        Unary::Rsqrt => 25,
        Unary::Reciprocal => 26,
        Unary::Exp => 27,
        Unary::Log => 28,
        Unary::Erf => 29,
        Unary::Sin => 30,
        Unary::Cos => 31,
        Unary::Floor => 32,
        Unary::Ceil => 33,
        Unary::Round => 34,
        Unary::IsNan => 35,
        Unary::Activate(activation) => {
            let (kind, alpha, beta) = activation_code(Some(activation));
            return (36, kind as u16, u64::from(alpha.to_bits()) | u64::from(beta.to_bits()) << 32);
        }
    };
    (code, 0, 0)
}

fn binary_code(binary: Binary) -> u16 {
    match binary {
        Binary::Add => 2,
        Binary::Sub => 3,
        Binary::Mul => 4,
        Binary::Div => 5,
        Binary::Pow => 6,
        Binary::Min => 7,
        Binary::Max => 8,
        Binary::Mod => 9,
        Binary::Fmod => 10,
        Binary::Equal => 11,
        Binary::Less => 12,
        Binary::LessEqual => 13,
        Binary::Greater => 14,
        Binary::GreaterEqual => 15,
        Binary::And => 16,
        Binary::Or => 17,
        Binary::Xor => 18,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_registers_are_reused() {
        use Instruction::{Binary as B, Load};
        let program = ElementwiseProgram {
            lane: NumberType::Float,
            instructions: vec![
                Load(0),
                Load(1),
                B(Binary::Add),
                Instruction::Constant(Scalar::Float(2.0)),
                B(Binary::Mul),
                Load(0),
                B(Binary::Sub),
            ],
        };
        program.check(2).unwrap();
        let registers = Registers::from_program(&program, 2);
        let steps: Vec<_> = registers.code.iter().map(|step| (step.code, step.to, step.a, step.b)).collect();
        assert_eq!(steps, [(2, 2, 0, 1), (0, 3, 0, 0), (4, 2, 2, 3), (3, 2, 2, 0)]);
        assert_eq!(registers.count, 4);
    }

    #[test]
    fn load_only_program_produces_a_result() {
        let program =
            ElementwiseProgram { lane: NumberType::Float, instructions: vec![Instruction::Load(0)] };
        let registers = Registers::from_program(&program, 1);
        assert_eq!((registers.code.len(), registers.count), (1, 2));
    }
}
