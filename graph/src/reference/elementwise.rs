//! Elementwise programs.

use super::numbers::{float_binary, float_unary, integer_binary, integer_unary};
use super::{ReferenceData, ReferenceTensor};
use crate::TensorType;
use crate::ir::{Elementwise, ElementwiseProgram, Instruction, NumberType, STACK_MAX, Scalar};

pub(super) fn elementwise(
    op: &Elementwise,
    operands: &[Option<ReferenceTensor>],
    out: &TensorType,
) -> Option<ReferenceTensor> {
    op.program.check(op.strides.len()).ok()?;
    let operands: Vec<&ReferenceTensor> = operands.iter().map(Option::as_ref).collect::<Option<_>>()?;
    let mut walk = OperandWalk::new(&op.dims, &op.strides);
    let elements = out.elements();
    match op.program.lane {
        NumberType::Float => {
            let inputs: Vec<Vec<f32>> = operands.iter().map(|tensor| tensor.to_floats()).collect();
            let mut made = Vec::with_capacity(elements);
            for _ in 0..elements {
                made.push(float(&op.program, |input| inputs.get(input)?.get(*walk.at.get(input)?).copied())?);
                walk.step();
            }
            Some(ReferenceTensor::floats(out.clone(), made))
        }
        NumberType::Integer => {
            let inputs: Vec<Vec<i64>> = operands.iter().map(|tensor| integers(tensor)).collect();
            let mut made = Vec::with_capacity(elements);
            for _ in 0..elements {
                made.push(integer(&op.program, |input| {
                    inputs.get(input)?.get(*walk.at.get(input)?).copied()
                })?);
                walk.step();
            }
            Some(ReferenceTensor::integers(out.clone(), made))
        }
    }
}

fn integers(tensor: &ReferenceTensor) -> Vec<i64> {
    match tensor.data() {
        ReferenceData::Integers(integers) => integers.to_vec(),
        ReferenceData::Floats(floats) => floats.iter().map(|float| *float as i64).collect(),
    }
}

/// Position in each operand, for the elements of the output in order.
struct OperandWalk<'a> {
    dims: &'a [usize],
    strides: &'a [Vec<usize>],
    index: Vec<usize>,
    at: Vec<usize>,
}

impl<'a> OperandWalk<'a> {
    fn new(dims: &'a [usize], strides: &'a [Vec<usize>]) -> Self {
        Self { dims, strides, index: vec![0; dims.len()], at: vec![0; strides.len()] }
    }

    fn step(&mut self) {
        for axis in (0..self.dims.len()).rev() {
            self.index[axis] += 1;
            self.at.iter_mut().zip(self.strides).for_each(|(at, strides)| *at += strides[axis]);
            if self.index[axis] < self.dims[axis] {
                return;
            }
            self.index[axis] = 0;
            self.at
                .iter_mut()
                .zip(self.strides)
                .for_each(|(at, strides)| *at -= strides[axis] * self.dims[axis]);
        }
    }
}

/// Run a program for one element in floats; each step rounds to `f32`.
pub(crate) fn float(program: &ElementwiseProgram, load: impl Fn(usize) -> Option<f32>) -> Option<f32> {
    let mut stack = Stack::default();
    for instruction in &program.instructions {
        let number = match instruction {
            Instruction::Load(input) => load(usize::from(*input))?,
            Instruction::Constant(Scalar::Float(number)) => *number,
            Instruction::Constant(Scalar::Integer(_)) => return None,
            Instruction::Unary(unary) => float_unary(*unary, stack.pop()?),
            Instruction::Binary(binary) => {
                let b = stack.pop()?;
                float_binary(*binary, stack.pop()?, b)
            }
            Instruction::Where => {
                let b = stack.pop()?;
                let a = stack.pop()?;
                if stack.pop()? == 0.0 { b } else { a }
            }
        };
        stack.push(number)?;
    }
    stack.pop()
}

/// Run a program for one element in integers.
fn integer(program: &ElementwiseProgram, load: impl Fn(usize) -> Option<i64>) -> Option<i64> {
    let mut stack = Stack::default();
    for instruction in &program.instructions {
        let number = match instruction {
            Instruction::Load(input) => load(usize::from(*input))?,
            Instruction::Constant(Scalar::Integer(number)) => *number,
            Instruction::Constant(Scalar::Float(_)) => return None,
            Instruction::Unary(unary) => integer_unary(*unary, stack.pop()?)?,
            Instruction::Binary(binary) => {
                let b = stack.pop()?;
                integer_binary(*binary, stack.pop()?, b)
            }
            Instruction::Where => {
                let b = stack.pop()?;
                let a = stack.pop()?;
                if stack.pop()? == 0 { b } else { a }
            }
        };
        stack.push(number)?;
    }
    stack.pop()
}

#[derive(Default)]
struct Stack<T> {
    numbers: [T; STACK_MAX],
    len: usize,
}

impl<T: Copy> Stack<T> {
    fn push(&mut self, number: T) -> Option<()> {
        *self.numbers.get_mut(self.len)? = number;
        self.len += 1;
        Some(())
    }

    fn pop(&mut self) -> Option<T> {
        self.len = self.len.checked_sub(1)?;
        self.numbers.get(self.len).copied()
    }
}
