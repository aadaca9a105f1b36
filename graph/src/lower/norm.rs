//! Normalisations.

use super::call::LoweringCall;
use super::{Lowering, Made};
use crate::GraphError;
use crate::ir::{Binary, Instruction, LayerNorm, Lrn, NumberType, Op, ReduceKind, Scalar, Unary, ValueId};
use weir_types::ElementType;

const ADD: Instruction = Instruction::Binary(Binary::Add);
const SUB: Instruction = Instruction::Binary(Binary::Sub);
const MUL: Instruction = Instruction::Binary(Binary::Mul);
const DIV: Instruction = Instruction::Binary(Binary::Div);

fn load(place: u8) -> Instruction {
    Instruction::Load(place)
}

fn number(float: f32) -> Instruction {
    Instruction::Constant(Scalar::Float(float))
}

/// Lower `(x - mean) / sqrt(variance + epsilon) * scale + shift` to one multiplication and one
/// addition for each channel. If the factor and the summand are constants, they are computed at
/// compile time, and a preceding convolution can absorb them.
pub(super) fn batch(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    if call.flag("training_mode") || call.wants(1) || call.int("is_test") == Some(0) {
        return Err(call.unsupported("training is"));
    }
    if call.int("spatial") == Some(0) {
        return Err(call.unsupported("one mean for each element is"));
    }
    let x = call.input(0)?;
    let scale = call.input(1)?;
    let shift = call.input(2)?;
    let mean = call.input(3)?;
    let variance = call.input(4)?;
    let dims = lowering.dims(x);
    let &[_, channels, ..] = dims.as_slice() else {
        return Err(call.invalid(format!("{dims:?} has no channels")));
    };
    for id in [scale, shift, mean, variance] {
        if lowering.tensor(id).dims() != [channels] {
            return Err(call.invalid(format!(
                "{} is not one number for each of {channels} channels",
                lowering.tensor(id)
            )));
        }
    }
    let epsilon = number(call.float("epsilon").unwrap_or(1e-5));
    let of_channels = lowering.element_type(scale);
    let code = vec![load(0), load(1), epsilon, ADD, Instruction::Unary(Unary::Sqrt), DIV];
    let factor = lowering.elementwise(call, NumberType::Float, code, &[scale, variance], of_channels)?;
    let code = vec![load(0), load(1), load(2), MUL, SUB];
    let summand = lowering.elementwise(call, NumberType::Float, code, &[shift, mean, factor], of_channels)?;
    Ok(vec![Some(lowering.of_channels(call, x, factor, summand)?)])
}

impl Lowering<'_> {
    /// Add `x * factor[c] + summand[c]`; channels are the second dimension of `x`.
    fn of_channels(
        &mut self,
        call: &LoweringCall<'_>,
        x: ValueId,
        factor: ValueId,
        summand: ValueId,
    ) -> Result<ValueId, GraphError> {
        let dims = self.dims(x);
        let mut along = vec![1; dims.len().saturating_sub(1)];
        if let (Some(first), Some(channels)) = (along.first_mut(), dims.get(1)) {
            *first = *channels;
        }
        let factor = self.view(call, factor, along.clone())?;
        let summand = self.view(call, summand, along)?;
        let element_type = self.element_type(x);
        let code = vec![load(0), load(1), MUL, load(2), ADD];
        self.elementwise(call, NumberType::Float, code, &[x, factor, summand], element_type)
    }

    /// Normalise each row of `cols` elements; the output has the dimensions of `x`.
    fn layer_norm(
        &mut self,
        x: ValueId,
        gamma: Option<ValueId>,
        beta: Option<ValueId>,
        cols: usize,
        epsilon: f32,
    ) -> ValueId {
        let tensor = self.tensor(x).clone();
        let rows = tensor.elements() / cols.max(1);
        let op = LayerNorm { rows, cols, epsilon };
        let sum = tensor.clone();
        let made = self.emit_all(Op::LayerNorm(op), vec![Some(x), gamma, beta, None], vec![tensor, sum]);
        made.first().copied().unwrap_or(x)
    }
}

pub(super) fn layer(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let dims = lowering.dims(x);
    let axis = call.axis(call.int("axis").unwrap_or(-1), dims.len())?;
    let epsilon = call.float("epsilon").unwrap_or(1e-5);
    let y = lowering.scaled_layer_norm(call, x, call.optional(1), call.optional(2), axis, epsilon)?;
    if !call.wants(1) && !call.wants(2) {
        return Ok(vec![Some(y)]);
    }
    let axes: Vec<usize> = (axis..dims.len()).collect();
    let [mean, deviation] = lowering.moments(call, x, &axes, epsilon)?;
    Ok(vec![Some(y), Some(mean), Some(deviation)])
}

impl Lowering<'_> {
    /// Return the mean and the reciprocal of the standard deviation along axes, in fp32.
    fn moments(
        &mut self,
        call: &LoweringCall<'_>,
        x: ValueId,
        axes: &[usize],
        epsilon: f32,
    ) -> Result<[ValueId; 2], GraphError> {
        let x = self.cast(call, x, ElementType::Fp32)?;
        let mean = self.reduced(call, x, ReduceKind::Mean, axes, true)?;
        let centred = [load(0), load(1), SUB];
        let code = [&centred[..], &centred, &[MUL]].concat();
        let squares = self.elementwise(call, NumberType::Float, code, &[x, mean], ElementType::Fp32)?;
        let variance = self.reduced(call, squares, ReduceKind::Mean, axes, true)?;
        let code = vec![load(0), number(epsilon), ADD, Instruction::Unary(Unary::Rsqrt)];
        let deviation = self.elementwise(call, NumberType::Float, code, &[variance], ElementType::Fp32)?;
        Ok([mean, deviation])
    }

    fn scaled_layer_norm(
        &mut self,
        call: &LoweringCall<'_>,
        x: ValueId,
        gamma: Option<ValueId>,
        beta: Option<ValueId>,
        axis: usize,
        epsilon: f32,
    ) -> Result<ValueId, GraphError> {
        let cols: usize = self.dims(x).iter().skip(axis).product();
        if cols == 0 {
            return Ok(x);
        }
        let element_type = self.element_type(x);
        let fits =
            |id: &ValueId| self.tensor(*id).elements() == cols && self.element_type(*id) == element_type;
        if [gamma, beta].iter().flatten().all(fits) {
            return Ok(self.layer_norm(x, gamma, beta, cols, epsilon));
        }
        // Scale and bias broadcast in some other way: separate operations apply them.
        let mut y = self.layer_norm(x, None, None, cols, epsilon);
        for (id, binary) in [(gamma, MUL), (beta, ADD)] {
            if let Some(id) = id {
                y = self.elementwise(
                    call,
                    NumberType::Float,
                    vec![load(0), load(1), binary],
                    &[y, id],
                    element_type,
                )?;
            }
        }
        Ok(y)
    }
}

/// Lower ONNX Runtime's `SkipLayerNormalization`: the normalised sum of two or three values.
pub(super) fn skip_layer(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let skip = call.input(1)?;
    let element_type = lowering.element_type(x);
    let mut operands = vec![x, skip];
    let mut code = vec![load(0), load(1), ADD];
    if let Some(bias) = call.optional(4) {
        operands.push(bias);
        code.extend([load(2), ADD]);
    }
    let sum = lowering.elementwise(call, NumberType::Float, code, &operands, element_type)?;
    let rank = lowering.dims(sum).len();
    let epsilon = call.float("epsilon").unwrap_or(1e-12);
    let y = lowering.scaled_layer_norm(
        call,
        sum,
        call.optional(2),
        call.optional(3),
        rank.saturating_sub(1),
        epsilon,
    )?;
    Ok(vec![Some(y), None, None, Some(sum)])
}

/// Lower `x / sqrt(mean(x^2) + epsilon) * scale`.
pub(super) fn rms(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let scale = call.input(1)?;
    let rank = lowering.dims(x).len();
    let axis = call.axis(call.int("axis").unwrap_or(-1), rank)?;
    let axes: Vec<usize> = (axis..rank).collect();
    let element_type = lowering.element_type(x);
    let squares =
        lowering.elementwise(call, NumberType::Float, vec![load(0), load(0), MUL], &[x], element_type)?;
    let mean = lowering.reduced(call, squares, ReduceKind::Mean, &axes, true)?;
    let epsilon = number(call.float("epsilon").unwrap_or(1e-5));
    let code = vec![load(0), load(1), epsilon, ADD, Instruction::Unary(Unary::Rsqrt), MUL, load(2), MUL];
    Ok(vec![Some(lowering.elementwise(call, NumberType::Float, code, &[x, mean, scale], element_type)?)])
}

/// Normalise each channel of each image separately.
pub(super) fn instance(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let scale = call.input(1)?;
    let shift = call.input(2)?;
    let cols: usize = lowering.dims(x).iter().skip(2).product();
    if lowering.dims(x).len() < 3 || cols == 0 {
        return Err(call.invalid("its input is not an image"));
    }
    let y = lowering.layer_norm(x, None, None, cols, call.float("epsilon").unwrap_or(1e-5));
    Ok(vec![Some(lowering.of_channels(call, y, scale, shift)?)])
}

/// Normalise each group of channels of each image separately.
pub(super) fn group(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let mut scale = call.input(1)?;
    let mut shift = call.input(2)?;
    let dims = lowering.dims(x);
    let groups = call.int("num_groups").and_then(|groups| usize::try_from(groups).ok()).unwrap_or(0);
    let channels = dims.get(1).copied().unwrap_or(0);
    let per_picture: usize = dims.iter().skip(1).product();
    if groups == 0 || channels == 0 || channels % groups != 0 || per_picture == 0 {
        return Err(call.invalid(format!("{channels} channels do not make {groups} groups")));
    }
    let y = lowering.layer_norm(x, None, None, per_picture / groups, call.float("epsilon").unwrap_or(1e-5));
    // Until opset 21, scale and bias had one number per group.
    if call.opset < 21 {
        for id in [&mut scale, &mut shift] {
            let column = lowering.view(call, *id, [groups, 1])?;
            let all = lowering.strided(call, column, &[groups, channels / groups], 0, &[1, 0])?;
            *id = lowering.view(call, all, [channels])?;
        }
    }
    Ok(vec![Some(lowering.of_channels(call, y, scale, shift)?)])
}

/// Divide by a norm along an axis; rows of zeroes stay.
pub(super) fn lp(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let axis = call.axis(call.int("axis").unwrap_or(-1), lowering.dims(x).len())?;
    let kind = match call.int("p").unwrap_or(2) {
        1 => ReduceKind::L1,
        2 => ReduceKind::L2,
        p => return Err(call.invalid(format!("there is no norm of order {p}"))),
    };
    let element_type = lowering.element_type(x);
    let norm = lowering.reduced(call, x, kind, &[axis], true)?;
    // The divisor of a row of zeroes is 1.
    let is_zero = [load(1), number(0.0), Instruction::Binary(Binary::Equal)];
    let code = [&[load(0), load(1)], &is_zero[..], &[ADD, DIV]].concat();
    Ok(vec![Some(lowering.elementwise(call, NumberType::Float, code, &[x, norm], element_type)?)])
}

pub(super) fn lrn(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let tensor = lowering.tensor(x).clone();
    let size = call.int("size").and_then(|size| usize::try_from(size).ok());
    let size = size.filter(|size| (1..=super::call::SIZE_MAX).contains(size));
    let size = size.ok_or_else(|| call.invalid("the attribute `size` is missing or out of range"))?;
    if tensor.dims().len() < 3 || NumberType::for_element_type(tensor.element_type()) == NumberType::Integer {
        return Err(call.invalid("its input is not an image"));
    }
    let float = |name, default| call.float(name).unwrap_or(default);
    let op = Lrn { size, alpha: float("alpha", 1e-4), beta: float("beta", 0.75), bias: float("bias", 1.0) };
    Ok(vec![Some(lowering.emit(Op::Lrn(op), vec![Some(x)], tensor))])
}

/// Lower `(x - mean) / (deviation + 1e-9)`, along the batch and all pixels by default.
pub(super) fn mean_variance(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let rank = lowering.dims(x).len();
    let axes = call.axes(call.ints("axes").unwrap_or(&[0, 2, 3]), rank)?;
    let element_type = lowering.element_type(x);
    let mean = lowering.reduced(call, x, ReduceKind::Mean, &axes, true)?;
    let centred = lowering.elementwise(
        call,
        NumberType::Float,
        vec![load(0), load(1), SUB],
        &[x, mean],
        element_type,
    )?;
    let square = vec![load(0), load(0), MUL];
    let squares = lowering.elementwise(call, NumberType::Float, square, &[centred], element_type)?;
    let variance = lowering.reduced(call, squares, ReduceKind::Mean, &axes, true)?;
    let code = vec![load(0), load(1), Instruction::Unary(Unary::Sqrt), number(1e-9), ADD, DIV];
    Ok(vec![Some(lowering.elementwise(call, NumberType::Float, code, &[centred, variance], element_type)?)])
}
