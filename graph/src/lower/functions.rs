//! Programs of operators that are functions of one float.

use super::call::LoweringCall;
use crate::GraphError;
use crate::ir::{Activation, Binary, Instruction, Scalar, Unary};

pub(super) const X: Instruction = Instruction::Load(0);

pub(super) fn number(float: f32) -> Instruction {
    Instruction::Constant(Scalar::Float(float))
}

pub(super) fn apply(unary: Unary) -> Instruction {
    Instruction::Unary(unary)
}

pub(super) fn activate(activation: Activation) -> Instruction {
    Instruction::Unary(Unary::Activate(activation))
}

pub(super) fn with(binary: Binary) -> Instruction {
    Instruction::Binary(binary)
}

/// The program of an operator that exists for floats only.
pub(super) fn of_floats(call: &LoweringCall<'_>) -> Result<Vec<Instruction>, GraphError> {
    let float = |name, default: f32| call.float(name).unwrap_or(default);
    let one = |unary| Ok(vec![X, apply(unary)]);
    let activation = |activation| Ok(vec![X, activate(activation)]);
    match call.node.operator.as_str() {
        "Ceil" => one(Unary::Ceil),
        "Cos" => one(Unary::Cos),
        "Erf" => one(Unary::Erf),
        "Exp" => one(Unary::Exp),
        "Floor" => one(Unary::Floor),
        "IsNaN" => one(Unary::IsNan),
        "Log" => one(Unary::Log),
        "Reciprocal" => one(Unary::Reciprocal),
        "Round" => one(Unary::Round),
        "Sin" => one(Unary::Sin),
        "Sqrt" => one(Unary::Sqrt),
        "Gelu" => match call.text("approximate", "none")? {
            "tanh" => activation(Activation::GeluTanh),
            _ => activation(Activation::Gelu),
        },
        "HardSigmoid" => {
            activation(Activation::HardSigmoid { alpha: float("alpha", 0.2), beta: float("beta", 0.5) })
        }
        "HardSwish" => activation(Activation::HardSwish),
        "LeakyRelu" => activation(Activation::LeakyRelu(float("alpha", 0.01))),
        "Relu" => activation(Activation::Relu),
        "Sigmoid" => activation(Activation::Sigmoid),
        "Softplus" => activation(Activation::Softplus),
        "Tanh" => activation(Activation::Tanh),
        // x * tanh(softplus(x))
        "Mish" => {
            Ok(vec![X, X, activate(Activation::Softplus), activate(Activation::Tanh), with(Binary::Mul)])
        }
        // x * sigmoid(alpha * x)
        "QuickGelu" => {
            let alpha = number(float("alpha", 1.702));
            Ok(vec![X, X, alpha, with(Binary::Mul), activate(Activation::Sigmoid), with(Binary::Mul)])
        }
        // x / (1 + |x|)
        "Softsign" => Ok(vec![X, number(1.0), X, apply(Unary::Abs), with(Binary::Add), with(Binary::Div)]),
        // x > alpha ? x : 0
        "ThresholdedRelu" => Ok(vec![
            X,
            number(float("alpha", 1.0)),
            with(Binary::Greater),
            X,
            number(0.0),
            Instruction::Where,
        ]),
        "Elu" => Ok(exponential_below(1.0, float("alpha", 1.0), 1.0)),
        "Selu" => Ok(exponential_below(float("gamma", 1.050_701), float("alpha", 1.673_263_2), 1.0)),
        "Celu" => {
            let alpha = float("alpha", 1.0);
            Ok(exponential_below(1.0, alpha, alpha))
        }
        _ => of_several(call),
    }
}

/// The program of a function that is composed of others.
fn of_several(call: &LoweringCall<'_>) -> Result<Vec<Instruction>, GraphError> {
    let float = |name, default: f32| call.float(name).unwrap_or(default);
    match call.node.operator.as_str() {
        "Tan" => Ok(vec![X, apply(Unary::Sin), X, apply(Unary::Cos), with(Binary::Div)]),
        // (exp(x) +- exp(-x)) / 2
        "Cosh" | "Sinh" => {
            let sign = if call.node.operator == "Cosh" { Binary::Add } else { Binary::Sub };
            let exp = apply(Unary::Exp);
            Ok(vec![X, exp, X, apply(Unary::Neg), exp, with(sign), number(0.5), with(Binary::Mul)])
        }
        // sign(x) * log(|x| + sqrt(x * x + 1))
        "Asinh" => {
            let square = [X, X, with(Binary::Mul), number(1.0), with(Binary::Add), apply(Unary::Sqrt)];
            let mut code = vec![X, apply(Unary::Sign), X, apply(Unary::Abs)];
            code.extend(square);
            code.extend([with(Binary::Add), apply(Unary::Log), with(Binary::Mul)]);
            Ok(code)
        }
        // log(x + sqrt(x * x - 1))
        "Acosh" => {
            let square = [X, X, with(Binary::Mul), number(1.0), with(Binary::Sub), apply(Unary::Sqrt)];
            Ok([&[X], &square[..], &[with(Binary::Add), apply(Unary::Log)]].concat())
        }
        // log((1 + x) / (1 - x)) / 2
        "Atanh" => {
            let one = number(1.0);
            let mut code = vec![one, X, with(Binary::Add), one, X, with(Binary::Sub), with(Binary::Div)];
            code.extend([apply(Unary::Log), number(0.5), with(Binary::Mul)]);
            Ok(code)
        }
        // x * sigmoid(alpha * x)
        "Swish" => {
            let alpha = number(float("alpha", 1.0));
            Ok(vec![X, X, alpha, with(Binary::Mul), activate(Activation::Sigmoid), with(Binary::Mul)])
        }
        // x < -lambd ? x + bias : x > lambd ? x - bias : 0
        "Shrink" => {
            let limit = float("lambd", 0.5);
            let bias = number(float("bias", 0.0));
            let mut code = vec![X, number(-limit), with(Binary::Less), X, bias, with(Binary::Add)];
            code.extend([X, number(limit), with(Binary::Greater), X, bias, with(Binary::Sub), number(0.0)]);
            code.extend([Instruction::Where, Instruction::Where]);
            Ok(code)
        }
        "IsInf" => {
            let is = |name| call.int(name).is_none_or(|flag| flag != 0);
            let equal = |limit| [X, number(limit), with(Binary::Equal)];
            Ok(match (is("detect_negative"), is("detect_positive")) {
                (false, false) => vec![number(0.0)],
                (true, false) => equal(f32::NEG_INFINITY).to_vec(),
                (false, true) => equal(f32::INFINITY).to_vec(),
                (true, true) => {
                    [&equal(f32::NEG_INFINITY)[..], &equal(f32::INFINITY), &[with(Binary::Or)]].concat()
                }
            })
        }
        _ => Err(super::operators::unknown(call.node)),
    }
}

/// `gamma * (x < 0 ? alpha * (exp(x / by) - 1) : x)`
fn exponential_below(gamma: f32, alpha: f32, by: f32) -> Vec<Instruction> {
    let mut code = vec![X, number(0.0), with(Binary::Less), X];
    if by != 1.0 {
        code.extend([number(by), with(Binary::Div)]);
    }
    code.extend([apply(Unary::Exp), number(1.0), with(Binary::Sub), number(alpha), with(Binary::Mul)]);
    code.extend([X, Instruction::Where]);
    if gamma != 1.0 {
        code.extend([number(gamma), with(Binary::Mul)]);
    }
    code
}
