//! Elementwise operators.

use super::call::LoweringCall;
use super::functions::{X, activate, apply, number, of_floats, with};
use super::{Lowering, Made};
use crate::GraphError;
use crate::ir::{Activation, Binary, INPUTS_MAX, Instruction, NumberType, Scalar, Unary, ValueId};
use weir_types::ElementType;

/// Lower an operator of one input.
pub(super) fn unary(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let element_type = lowering.element_type(x);
    let lane = NumberType::for_element_type(element_type);
    let instructions = match (call.node.operator.as_str(), lane) {
        ("Abs", _) => vec![X, apply(Unary::Abs)],
        ("Neg", _) => vec![X, apply(Unary::Neg)],
        ("Sign", _) => vec![X, apply(Unary::Sign)],
        ("Not", _) => vec![X, apply(Unary::Not)],
        // Integers are whole already.
        ("Ceil" | "Floor" | "Round", NumberType::Integer) => vec![X],
        ("Relu", NumberType::Integer) => {
            vec![X, Instruction::Constant(Scalar::Integer(0)), with(Binary::Max)]
        }
        (_, NumberType::Float) => of_floats(call)?,
        (_, NumberType::Integer) => {
            return Err(call.unsupported(format!("elements of type {element_type} are")));
        }
    };
    let made = if matches!(call.node.operator.as_str(), "IsInf" | "IsNaN") {
        ElementType::Bool
    } else {
        element_type
    };
    Ok(vec![Some(lowering.elementwise(call, lane, instructions, &[x], made)?)])
}

/// Lower an operator of two inputs.
pub(super) fn binary(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let mut a = call.input(0)?;
    let mut b = call.input(1)?;
    let element_type = lowering.element_type(a);
    let mut lane = NumberType::for_element_type(element_type);
    let (binary, made) = match call.node.operator.as_str() {
        "Add" => (Binary::Add, element_type),
        "Sub" => (Binary::Sub, element_type),
        "Mul" => (Binary::Mul, element_type),
        "Div" => (Binary::Div, element_type),
        "Mod" if call.flag("fmod") => (Binary::Fmod, element_type),
        "Mod" => (Binary::Mod, element_type),
        "And" => (Binary::And, ElementType::Bool),
        "Or" => (Binary::Or, ElementType::Bool),
        "Xor" => (Binary::Xor, ElementType::Bool),
        "Equal" => (Binary::Equal, ElementType::Bool),
        "Less" => (Binary::Less, ElementType::Bool),
        "LessOrEqual" => (Binary::LessEqual, ElementType::Bool),
        "Greater" => (Binary::Greater, ElementType::Bool),
        "GreaterOrEqual" => (Binary::GreaterEqual, ElementType::Bool),
        // Base and exponent may differ in type; the result has the type of the base.
        "Pow" => {
            if NumberType::for_element_type(lowering.element_type(b)) == NumberType::Float {
                lane = NumberType::Float;
            }
            (Binary::Pow, element_type)
        }
        _ => return Err(super::operators::unknown(call.node)),
    };
    if binary != Binary::Pow && lowering.element_type(b) != element_type {
        return Err(call.invalid(format!(
            "{} and {} differ in type",
            lowering.tensor(a),
            lowering.tensor(b)
        )));
    }
    if call.opset < 7 || call.int("axis").is_some() {
        return Err(call.unsupported("broadcasting as before opset 7 is"));
    }
    // Swapping keeps the result; fusion patterns expect constants on the right.
    if matches!(binary, Binary::Add | Binary::Mul) && lowering.scalar(a).is_some() {
        std::mem::swap(&mut a, &mut b);
    }
    let code = vec![X, Instruction::Load(1), with(binary)];
    Ok(vec![Some(lowering.elementwise(call, lane, code, &[a, b], made)?)])
}

/// Lower an operator of any number of inputs.
pub(super) fn variadic(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let inputs = call.all_inputs()?;
    let (first, rest) = inputs.split_first().ok_or_else(|| call.invalid("it has no inputs"))?;
    let element_type = lowering.element_type(*first);
    let lane = NumberType::for_element_type(element_type);
    let binary = match call.node.operator.as_str() {
        "Max" => Binary::Max,
        "Min" => Binary::Min,
        _ => Binary::Add,
    };
    let mut made = *first;
    // Each expression takes as many inputs as it can hold.
    for chunk in rest.chunks(INPUTS_MAX - 1) {
        let mut operands = vec![made];
        let mut code = vec![X];
        for (place, id) in (1..).zip(chunk) {
            operands.push(*id);
            code.extend([Instruction::Load(place), with(binary)]);
        }
        made = lowering.elementwise(call, lane, code, &operands, element_type)?;
    }
    if call.node.operator == "Mean" {
        if lane == NumberType::Integer {
            return Err(call.invalid(format!("elements of type {element_type} have no mean")));
        }
        let code = vec![X, number(inputs.len() as f32), with(Binary::Div)];
        made = lowering.elementwise(call, lane, code, &[made], element_type)?;
    }
    Ok(vec![Some(made)])
}

/// Lower `min(max(x, min), max)`, with bounds from attributes or inputs.
pub(super) fn clip(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let element_type = lowering.element_type(x);
    let lane = NumberType::for_element_type(element_type);
    let mut bounds = [call.float("min").map(Scalar::Float), call.float("max").map(Scalar::Float)];
    let mut operands = vec![x];
    let mut code = vec![X];
    for (place, binary) in [(0, Binary::Max), (1, Binary::Min)] {
        let Some(id) = call.optional(place + 1) else { continue };
        match lowering.scalar(id) {
            Some(scalar) => bounds[place] = Some(scalar),
            None => {
                code.extend([Instruction::Load(operands.len() as u8), with(binary)]);
                operands.push(id);
            }
        }
    }
    if operands.len() == 1 && lane == NumberType::Float {
        let bound = |scalar: Option<Scalar>, default| match scalar.map(|scalar| scalar.in_lane(lane)) {
            Some(Scalar::Float(float)) => float,
            _ => default,
        };
        let min = bound(bounds[0], f32::NEG_INFINITY);
        let max = bound(bounds[1], f32::INFINITY);
        let activation =
            if (min, max) == (0.0, f32::INFINITY) { Activation::Relu } else { Activation::Clip { min, max } };
        code.push(activate(activation));
    } else {
        for (bound, binary) in bounds.into_iter().zip([Binary::Max, Binary::Min]) {
            if let Some(scalar) = bound {
                code.extend([Instruction::Constant(scalar.in_lane(lane)), with(binary)]);
            }
        }
    }
    Ok(vec![Some(lowering.elementwise(call, lane, code, &operands, element_type)?)])
}

/// Lower `PRelu`: a slope for elements below 0, from an input that broadcasts.
pub(super) fn prelu(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let slope = call.input(1)?;
    let element_type = lowering.element_type(x);
    let lane = NumberType::for_element_type(element_type);
    let zero = Instruction::Constant(Scalar::Integer(0).in_lane(lane));
    let code =
        vec![X, zero, with(Binary::Less), X, Instruction::Load(1), with(Binary::Mul), X, Instruction::Where];
    Ok(vec![Some(lowering.elementwise(call, lane, code, &[x, slope], element_type)?)])
}

/// Lower `Where`: elements of one value or the other.
pub(super) fn choose(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let condition = call.input(0)?;
    let a = call.input(1)?;
    let b = call.input(2)?;
    let element_type = lowering.element_type(a);
    if lowering.element_type(b) != element_type {
        return Err(call.invalid(format!(
            "{} and {} differ in type",
            lowering.tensor(a),
            lowering.tensor(b)
        )));
    }
    let code = vec![X, Instruction::Load(1), Instruction::Load(2), Instruction::Where];
    let lane = NumberType::for_element_type(element_type);
    Ok(vec![Some(lowering.elementwise(call, lane, code, &[condition, a, b], element_type)?)])
}

/// Lower GELU of a value with an optional bias.
pub(super) fn biased(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let gelu = if call.node.operator == "FastGelu" { Activation::GeluTanh } else { Activation::Gelu };
    let mut operands = vec![x];
    let mut code = vec![X];
    if let Some(bias) = call.optional(1) {
        operands.push(bias);
        code.extend([Instruction::Load(1), with(Binary::Add)]);
    }
    code.push(activate(gelu));
    let element_type = lowering.element_type(x);
    Ok(vec![Some(lowering.elementwise(call, NumberType::Float, code, &operands, element_type)?)])
}

pub(super) fn cast(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let number = call.int("to").ok_or_else(|| call.invalid("the attribute `to` is missing"))?;
    let to = i32::try_from(number).ok().and_then(crate::model::element_type);
    let to = to.ok_or_else(|| call.unsupported(format!("elements of type {number} are")))?;
    let x = call.input(0)?;
    Ok(vec![Some(lowering.cast(call, x, to)?)])
}

pub(super) fn cast_like(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let like = call.input(1)?;
    let to = lowering.element_type(like);
    Ok(vec![Some(lowering.cast(call, x, to)?)])
}

impl Lowering<'_> {
    /// Convert a value to another element type.
    pub(super) fn cast(
        &mut self,
        call: &LoweringCall<'_>,
        x: ValueId,
        to: ElementType,
    ) -> Result<ValueId, GraphError> {
        let from = self.element_type(x);
        if from == to {
            return Ok(x);
        }
        let both = NumberType::for_element_type(from) == NumberType::Integer
            && NumberType::for_element_type(to) == NumberType::Integer;
        let lane = if both { NumberType::Integer } else { NumberType::Float };
        self.elementwise(call, lane, vec![X], &[x], to)
    }
}
