//! Scalar semantics of the instructions of elementwise programs.

use super::tensor::{round_to, wrap_to};
use crate::ir::{Activation, Binary, NumberType, Unary};
use weir_types::ElementType;

fn truth(is_so: bool) -> f32 {
    f32::from(u8::from(is_so))
}

pub(super) fn float_unary(unary: Unary, x: f32) -> f32 {
    let wide = f64::from(x);
    match unary {
        Unary::Neg => -x,
        Unary::Abs => x.abs(),
        Unary::Sign => truth(x > 0.0) - truth(x < 0.0),
        Unary::Not => truth(x == 0.0),
        Unary::Cast(ElementType::Bool) => truth(x != 0.0),
        Unary::Cast(to) if NumberType::for_element_type(to) == NumberType::Integer => {
            wrap_to(to, x as i64) as f32
        }
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

/// Compute an activation in `f64`.
pub(crate) fn activate(activation: Activation, x: f32) -> f32 {
    let wide = f64::from(x);
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let y = match activation {
        // `max` would turn NaN into 0.
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

pub(super) fn float_binary(binary: Binary, a: f32, b: f32) -> f32 {
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

pub(super) fn integer_unary(unary: Unary, x: i64) -> Option<i64> {
    Some(match unary {
        Unary::Neg => x.wrapping_neg(),
        Unary::Abs => x.wrapping_abs(),
        Unary::Sign => x.signum(),
        Unary::Not => i64::from(x == 0),
        Unary::Cast(to) if NumberType::for_element_type(to) == NumberType::Integer => wrap_to(to, x),
        Unary::Cast(_) => x,
        _ => return None,
    })
}

pub(super) fn integer_binary(binary: Binary, a: i64, b: i64) -> i64 {
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
            let mut base = a;
            let mut result = 1_i64;
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
