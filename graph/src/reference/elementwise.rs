//! Elementwise programs.

use super::tensor::{round_to, wrap_to};
use super::{Data, Tensor};
use crate::TensorType;
use crate::ir::{Activation, Binary, Elementwise, Instruction, Lane, Program, STACK_MAX, Scalar, Unary};
use weir_types::ElementType;

pub(super) fn elementwise(op: &Elementwise, operands: &[Option<Tensor>], out: &TensorType) -> Option<Tensor> {
    op.program.check(op.strides.len()).ok()?;
    let operands: Vec<&Tensor> = operands.iter().map(Option::as_ref).collect::<Option<_>>()?;
    let mut walk = Walk::new(&op.dims, &op.strides);
    let elements = out.elements();
    match op.program.lane {
        Lane::Float => {
            let inputs: Vec<Vec<f32>> = operands.iter().map(|tensor| tensor.to_floats()).collect();
            let mut made = Vec::with_capacity(elements);
            for _ in 0..elements {
                made.push(float(&op.program, |input| inputs.get(input)?.get(*walk.at.get(input)?).copied())?);
                walk.step();
            }
            Some(Tensor::floats(out.clone(), made))
        }
        Lane::Integer => {
            let inputs: Vec<Vec<i64>> = operands.iter().map(|tensor| integers(tensor)).collect();
            let mut made = Vec::with_capacity(elements);
            for _ in 0..elements {
                made.push(integer(&op.program, |input| {
                    inputs.get(input)?.get(*walk.at.get(input)?).copied()
                })?);
                walk.step();
            }
            Some(Tensor::integers(out.clone(), made))
        }
    }
}

fn integers(tensor: &Tensor) -> Vec<i64> {
    match tensor.data() {
        Data::Integers(integers) => integers.to_vec(),
        Data::Floats(floats) => floats.iter().map(|float| *float as i64).collect(),
    }
}

/// Where in each operand the elements of the output, one after the other, come from.
struct Walk<'a> {
    dims: &'a [usize],
    strides: &'a [Vec<usize>],
    index: Vec<usize>,
    at: Vec<usize>,
}

impl<'a> Walk<'a> {
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

/// One element of a program in floats, each step rounded to `f32`.
pub(crate) fn float(program: &Program, load: impl Fn(usize) -> Option<f32>) -> Option<f32> {
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
                let (b, a) = (stack.pop()?, stack.pop()?);
                if stack.pop()? == 0.0 { b } else { a }
            }
        };
        stack.push(number)?;
    }
    stack.pop()
}

/// One element of a program in integers.
fn integer(program: &Program, load: impl Fn(usize) -> Option<i64>) -> Option<i64> {
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
                let (b, a) = (stack.pop()?, stack.pop()?);
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

fn truth(is_so: bool) -> f32 {
    f32::from(u8::from(is_so))
}

fn float_unary(unary: Unary, x: f32) -> f32 {
    let wide = f64::from(x);
    match unary {
        Unary::Neg => -x,
        Unary::Abs => x.abs(),
        Unary::Sign => truth(x > 0.0) - truth(x < 0.0),
        Unary::Not => truth(x == 0.0),
        Unary::Cast(ElementType::Bool) => truth(x != 0.0),
        Unary::Cast(to) if Lane::of(to) == Lane::Integer => wrap_to(to, x as i64) as f32,
        Unary::Cast(to) => round_to(to, x),
        Unary::Sqrt => x.sqrt(),
        Unary::Rsqrt => (1.0 / wide.sqrt()) as f32,
        Unary::Reciprocal => 1.0 / x,
        Unary::Exp => wide.exp() as f32,
        Unary::Log => wide.ln() as f32,
        Unary::Erf => libm::erf(wide) as f32,
        Unary::Sin => wide.sin() as f32,
        Unary::Cos => wide.cos() as f32,
        Unary::Floor => x.floor(),
        Unary::Ceil => x.ceil(),
        Unary::Round => x.round_ties_even(),
        Unary::IsNan => truth(x.is_nan()),
        Unary::Activate(activation) => activate(activation, x),
    }
}

/// An activation, worked out in `f64`.
pub(crate) fn activate(activation: Activation, x: f32) -> f32 {
    let wide = f64::from(x);
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let y = match activation {
        // Not `max`, which would make 0 of what is not a number.
        Activation::Relu => return if x < 0.0 { 0.0 } else { x },
        Activation::Clip { min, max } => {
            return if x < min {
                min
            } else if x > max {
                max
            } else {
                x
            };
        }
        Activation::LeakyRelu(alpha) => return if x < 0.0 { alpha * x } else { x },
        Activation::Sigmoid => sigmoid(wide),
        Activation::Tanh => wide.tanh(),
        Activation::HardSigmoid { alpha, beta } => {
            f64::from(alpha).mul_add(wide, f64::from(beta)).clamp(0.0, 1.0)
        }
        Activation::HardSwish => wide * (wide / 6.0 + 0.5).clamp(0.0, 1.0),
        Activation::Silu => wide * sigmoid(wide),
        Activation::Gelu => wide / 2.0 * (1.0 + libm::erf(wide * std::f64::consts::FRAC_1_SQRT_2)),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (wide + 0.044_715 * wide.powi(3));
            wide / 2.0 * (1.0 + inner.tanh())
        }
        Activation::Softplus => wide.max(0.0) + (-wide.abs()).exp().ln_1p(),
    };
    y as f32
}

fn float_binary(binary: Binary, a: f32, b: f32) -> f32 {
    match binary {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => a / b,
        Binary::Pow => f64::from(a).powf(f64::from(b)) as f32,
        Binary::Min => {
            if b < a {
                b
            } else {
                a
            }
        }
        Binary::Max => {
            if b > a {
                b
            } else {
                a
            }
        }
        Binary::Mod => {
            let rest = a % b;
            if rest != 0.0 && (rest < 0.0) != (b < 0.0) { rest + b } else { rest }
        }
        Binary::Fmod => a % b,
        Binary::Equal => truth(a == b),
        Binary::Less => truth(a < b),
        Binary::LessEqual => truth(a <= b),
        Binary::Greater => truth(a > b),
        Binary::GreaterEqual => truth(a >= b),
        Binary::And => truth(a != 0.0 && b != 0.0),
        Binary::Or => truth(a != 0.0 || b != 0.0),
        Binary::Xor => truth((a != 0.0) != (b != 0.0)),
    }
}

fn integer_unary(unary: Unary, x: i64) -> Option<i64> {
    Some(match unary {
        Unary::Neg => x.wrapping_neg(),
        Unary::Abs => x.wrapping_abs(),
        Unary::Sign => x.signum(),
        Unary::Not => i64::from(x == 0),
        Unary::Cast(to) if Lane::of(to) == Lane::Integer => wrap_to(to, x),
        Unary::Cast(_) => x,
        _ => return None,
    })
}

fn integer_binary(binary: Binary, a: i64, b: i64) -> i64 {
    match binary {
        Binary::Add => a.wrapping_add(b),
        Binary::Sub => a.wrapping_sub(b),
        Binary::Mul => a.wrapping_mul(b),
        Binary::Div => {
            if b == 0 {
                0
            } else {
                a.wrapping_div(b)
            }
        }
        Binary::Pow => power(a, b),
        Binary::Min => a.min(b),
        Binary::Max => a.max(b),
        Binary::Mod => {
            let rest = if b == 0 { 0 } else { a.wrapping_rem(b) };
            if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest }
        }
        Binary::Fmod => {
            if b == 0 {
                0
            } else {
                a.wrapping_rem(b)
            }
        }
        Binary::Equal => i64::from(a == b),
        Binary::Less => i64::from(a < b),
        Binary::LessEqual => i64::from(a <= b),
        Binary::Greater => i64::from(a > b),
        Binary::GreaterEqual => i64::from(a >= b),
        Binary::And => i64::from(a != 0 && b != 0),
        Binary::Or => i64::from(a != 0 || b != 0),
        Binary::Xor => i64::from((a != 0) != (b != 0)),
    }
}

fn power(a: i64, b: i64) -> i64 {
    match (a, u64::try_from(b)) {
        (1, _) => 1,
        (-1, _) => {
            if b % 2 == 0 {
                1
            } else {
                -1
            }
        }
        (_, Err(_)) => 0,
        (_, Ok(mut exponent)) => {
            let (mut base, mut result) = (a, 1_i64);
            while exponent > 0 {
                if exponent % 2 == 1 {
                    result = result.wrapping_mul(base);
                }
                base = base.wrapping_mul(base);
                exponent /= 2;
            }
            result
        }
    }
}
