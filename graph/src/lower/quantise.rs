//! Quantised operators. Quantised values become floats, and products and convolutions of integers
//! are computed in floats, which hold every integer up to 2^24.

use super::call::LoweringCall;
use super::functions::{X, apply, number, with};
use super::matmul::Factor;
use super::{Lowering, Made};
use crate::GraphError;
use crate::ir::{Binary, Instruction, NumberType, ReduceKind, Scalar, Unary, ValueId};
use weir_types::ElementType;

/// The operands of a conversion, viewed in blocks that share a scale.
struct Blocks {
    /// The dimensions of the converted value.
    dims: Vec<usize>,
    x: ValueId,
    scale: ValueId,
    zero: Option<ValueId>,
}

impl Blocks {
    fn new(
        lowering: &mut Lowering<'_>,
        call: &LoweringCall<'_>,
        x: ValueId,
        scale: ValueId,
    ) -> Result<Self, GraphError> {
        let dims = lowering.dims(x);
        let (split, along) = blocks(lowering, call, &dims, scale)?;
        let x = lowering.view(call, x, split)?;
        let scale = lowering.view(call, scale, along.clone())?;
        let zero = zero_point(lowering, call, call.optional(2), &along)?;
        Ok(Self { dims, x, scale, zero })
    }
}

/// Lower `DequantizeLinear`: `(x - zero point) * scale`.
pub(super) fn dequantize(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let scale = call.input(1)?;
    let made = match call.int("output_dtype").unwrap_or(0) {
        0 => lowering.element_type(scale),
        number => element_type(call, number)?,
    };
    let quantised = lowering.element_type(x);
    if !matches!(quantised, ElementType::Uint8 | ElementType::Int8 | ElementType::Int32) {
        return Err(call.unsupported(format!("quantised elements of type {quantised} are")));
    }
    let Blocks { dims, x, scale, zero } = Blocks::new(lowering, call, x, scale)?;
    let y = lowering.dequantized(call, x, scale, zero, made)?;
    Ok(vec![Some(lowering.view(call, y, dims)?)])
}

/// Lower `QuantizeLinear`: `saturate(round(x / scale) + zero point)`.
pub(super) fn quantize(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let scale = call.input(1)?;
    let made = match (call.optional(2), call.int("output_dtype").unwrap_or(0)) {
        (Some(zero), _) => lowering.element_type(zero),
        (None, 0) => ElementType::Uint8,
        (None, number) => element_type(call, number)?,
    };
    let Blocks { dims, x, scale, zero } = Blocks::new(lowering, call, x, scale)?;
    let y = lowering.quantized(call, x, scale, zero, made)?;
    Ok(vec![Some(lowering.view(call, y, dims)?)])
}

/// Lower `DynamicQuantizeLinear`, which derives scale and zero point from the range of the elements
/// and 0.
pub(super) fn dynamic(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let axes: Vec<usize> = (0..lowering.dims(x).len()).collect();
    let most = lowering.reduced(call, x, ReduceKind::Max, &axes, false)?;
    let least = lowering.reduced(call, x, ReduceKind::Min, &axes, false)?;
    let zero = number(0.0);
    // The scale of a range without extent is 1.
    let range = [
        [X, zero, with(Binary::Max), Instruction::Load(1), zero, with(Binary::Min), with(Binary::Sub)]
            .as_slice(),
        &[number(255.0), with(Binary::Div)],
    ]
    .concat();
    let code =
        [&range[..], &[zero, with(Binary::Equal), number(1.0)], &range, &[Instruction::Where]].concat();
    let scale = lowering.elementwise(call, NumberType::Float, code, &[most, least], ElementType::Fp32)?;
    let [low, high] = saturation(call, ElementType::Uint8)?;
    let code = vec![
        zero,
        X,
        zero,
        with(Binary::Min),
        Instruction::Load(1),
        with(Binary::Div),
        with(Binary::Sub),
        apply(Unary::Round),
        low,
        with(Binary::Max),
        high,
        with(Binary::Min),
    ];
    let zero = lowering.elementwise(call, NumberType::Float, code, &[least, scale], ElementType::Uint8)?;
    let y = lowering.quantized(call, x, scale, Some(zero), ElementType::Uint8)?;
    Ok(vec![Some(y), Some(scale), Some(zero)])
}

/// Lower `MatMulInteger`: the product of two values without their zero points.
pub(super) fn matmul_integer(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let (sums, unit) = integer_product(lowering, call, [0, 2], [1, 3])?;
    let code = vec![X, number(unit), with(Binary::Mul), apply(Unary::Round)];
    Ok(vec![Some(lowering.elementwise(call, NumberType::Float, code, &[sums], ElementType::Int32)?)])
}

/// Lower `QLinearMatMul`: a product of quantised values, quantised.
pub(super) fn qlinear_matmul(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let (sums, unit) = integer_product(lowering, call, [0, 2], [3, 5])?;
    let a_scale = call.input(1)?;
    let rank = lowering.dims(sums).len();
    // A scale per row of the left matrices is a column.
    let a_scale = match lowering.dims(a_scale).as_slice() {
        &[rows] if rows > 1 && rank > 1 => lowering.view(call, a_scale, [rows, 1])?,
        _ => a_scale,
    };
    let scales = [a_scale, call.input(4)?, call.input(6)?];
    Ok(vec![Some(lowering.requantized(call, sums, unit, scales, call.input(7)?)?)])
}

/// Lower `ConvInteger`: a convolution of a value without its zero point.
pub(super) fn conv_integer(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let (sums, unit) = integer_convolution(lowering, call, [0, 2], [1, 3], None)?;
    let code = vec![X, number(unit), with(Binary::Mul), apply(Unary::Round)];
    Ok(vec![Some(lowering.elementwise(call, NumberType::Float, code, &[sums], ElementType::Int32)?)])
}

/// Lower `QLinearConv`: a convolution of quantised values, quantised.
pub(super) fn qlinear_conv(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let (sums, unit) = integer_convolution(lowering, call, [0, 2], [3, 5], call.optional(8))?;
    let mut w_scale = call.input(4)?;
    if let &[filters] = lowering.dims(w_scale).as_slice() {
        let along = channels_of(filters, lowering.dims(sums).len());
        w_scale = lowering.view(call, w_scale, along)?;
    }
    let scales = [call.input(1)?, w_scale, call.input(6)?];
    Ok(vec![Some(lowering.requantized(call, sums, unit, scales, call.input(7)?)?)])
}

/// Dimensions of one number per channel; channels are the second dimension of `rank`.
fn channels_of(channels: usize, rank: usize) -> Vec<usize> {
    [vec![channels], vec![1; rank.saturating_sub(2)]].concat()
}

/// The type with this number in the standard.
fn element_type(call: &LoweringCall<'_>, number: i64) -> Result<ElementType, GraphError> {
    let known = i32::try_from(number).ok().and_then(crate::model::element_type);
    known.ok_or_else(|| call.unsupported(format!("elements of type {number} are")))
}

/// The smallest and the largest quantised number of a type.
fn saturation(call: &LoweringCall<'_>, element_type: ElementType) -> Result<[Instruction; 2], GraphError> {
    let [low, high] = match element_type {
        ElementType::Uint8 => [0.0, 255.0],
        ElementType::Int8 => [-128.0, 127.0],
        other => return Err(call.unsupported(format!("quantised elements of type {other} are"))),
    };
    Ok([number(low), number(high)])
}

/// Dimensions of `x`, split such that the scale broadcasts, and the dimensions of the scale.
fn blocks(
    lowering: &Lowering<'_>,
    call: &LoweringCall<'_>,
    dims: &[usize],
    scale: ValueId,
) -> Result<(Vec<usize>, Vec<usize>), GraphError> {
    let scales = lowering.dims(scale);
    let axis = || call.axis(call.int("axis").unwrap_or(1), dims.len());
    match (scales.as_slice(), call.int("block_size").unwrap_or(0)) {
        ([], 0) | (&[1], 0) => Ok((dims.to_vec(), vec![])),
        (&[count], 0) => {
            let axis = axis()?;
            let mut along = vec![1; dims.len() - axis];
            if dims.get(axis) != Some(&count) {
                return Err(call.invalid(format!("{count} scales are not for axis {axis} of {dims:?}")));
            }
            along[0] = count;
            Ok((dims.to_vec(), along))
        }
        (scales, block) => {
            let axis = axis()?;
            let block = usize::try_from(block).unwrap_or(0);
            let mut whole = scales.to_vec();
            if let Some(size) = whole.get_mut(axis) {
                *size = size.saturating_mul(block);
            }
            if block == 0 || whole != dims {
                return Err(
                    call.unsupported(format!("scales of {scales:?} for {dims:?} in blocks of {block} are"))
                );
            }
            let mut split = scales.to_vec();
            let mut along = scales.to_vec();
            split.insert(axis + 1, block);
            along.insert(axis + 1, 1);
            Ok((split, along))
        }
    }
}

/// The zero point under the dimensions of the scale; `None` if it is absent.
fn zero_point(
    lowering: &mut Lowering<'_>,
    call: &LoweringCall<'_>,
    zero: Option<ValueId>,
    along: &[usize],
) -> Result<Option<ValueId>, GraphError> {
    zero.map(|zero| lowering.view(call, zero, along)).transpose()
}

/// Largest power of two by which sums of products are divided, so that they stay within the range
/// of half-precision floats. The division is exact.
fn unit_of_sums(terms: usize) -> f32 {
    terms.max(1).next_power_of_two() as f32
}

/// The product of two values without their zero points, divided by the number that is returned.
/// Each operand is given by its place and the place of its zero point.
fn integer_product(
    lowering: &mut Lowering<'_>,
    call: &LoweringCall<'_>,
    a: [usize; 2],
    b: [usize; 2],
) -> Result<(ValueId, f32), GraphError> {
    let a_dims = lowering.dims(call.input(a[0])?);
    let mut a_zero = call.optional(a[1]);
    // A zero point per row of the left matrices is a column.
    if let Some(zero) = a_zero
        && let &[rows] = lowering.dims(zero).as_slice()
        && rows > 1
        && a_dims.len() > 1
    {
        a_zero = Some(lowering.view(call, zero, [rows, 1])?);
    }
    let unit = unit_of_sums(a_dims.last().copied().unwrap_or(1));
    let left = lowering.without_zero_point(call, call.input(a[0])?, a_zero, 1.0)?;
    let right = lowering.without_zero_point(call, call.input(b[0])?, call.optional(b[1]), 1.0)?;
    let sums = lowering.product(call, Factor::new(left), Factor::new(right), 1.0 / unit)?;
    Ok((sums, unit))
}

/// The convolution of two values without their zero points, divided by the number that is returned.
fn integer_convolution(
    lowering: &mut Lowering<'_>,
    call: &LoweringCall<'_>,
    x: [usize; 2],
    w: [usize; 2],
    bias: Option<ValueId>,
) -> Result<(ValueId, f32), GraphError> {
    let filters = lowering.dims(call.input(w[0])?);
    let unit = unit_of_sums(filters.iter().skip(1).product());
    let mut w_zero = call.optional(w[1]);
    if let Some(zero) = w_zero
        && let &[count] = lowering.dims(zero).as_slice()
        && count > 1
    {
        w_zero = Some(lowering.view(
            call,
            zero,
            [vec![count], vec![1; filters.len().saturating_sub(1)]].concat(),
        )?);
    }
    let x = lowering.without_zero_point(call, call.input(x[0])?, call.optional(x[1]), 1.0)?;
    let w = lowering.without_zero_point(call, call.input(w[0])?, w_zero, 1.0 / unit)?;
    let bias = match bias {
        Some(bias) => Some(lowering.without_zero_point(call, bias, None, 1.0 / unit)?),
        None => None,
    };
    Ok((lowering.conv(call, x, w, bias)?, unit))
}

impl Lowering<'_> {
    fn dequantized(
        &mut self,
        call: &LoweringCall<'_>,
        x: ValueId,
        scale: ValueId,
        zero: Option<ValueId>,
        made: ElementType,
    ) -> Result<ValueId, GraphError> {
        let mut code = vec![X];
        let mut operands = vec![x, scale];
        if let Some(zero) = zero {
            operands.push(zero);
            code.extend([Instruction::Load(2), with(Binary::Sub)]);
        }
        code.extend([Instruction::Load(1), with(Binary::Mul)]);
        self.elementwise(call, NumberType::Float, code, &operands, made)
    }

    fn quantized(
        &mut self,
        call: &LoweringCall<'_>,
        x: ValueId,
        scale: ValueId,
        zero: Option<ValueId>,
        made: ElementType,
    ) -> Result<ValueId, GraphError> {
        let [low, high] = saturation(call, made)?;
        let mut code = vec![X, Instruction::Load(1), with(Binary::Div), apply(Unary::Round)];
        let mut operands = vec![x, scale];
        if let Some(zero) = zero {
            operands.push(zero);
            code.extend([Instruction::Load(2), with(Binary::Add)]);
        }
        code.extend([low, with(Binary::Max), high, with(Binary::Min)]);
        self.elementwise(call, NumberType::Float, code, &operands, made)
    }

    /// Compute `(x - zero point) * factor` in fp32.
    fn without_zero_point(
        &mut self,
        call: &LoweringCall<'_>,
        x: ValueId,
        zero: Option<ValueId>,
        factor: f32,
    ) -> Result<ValueId, GraphError> {
        let mut code = vec![X];
        let mut operands = vec![x];
        // A zero point of 0 needs no subtraction.
        let zero = zero.filter(|zero| self.scalar(*zero) != Some(Scalar::Integer(0)));
        if let Some(zero) = zero {
            let of_one = self.tensor(zero).elements() == 1;
            operands.push(if of_one { self.view(call, zero, [])? } else { zero });
            code.extend([Instruction::Load(1), with(Binary::Sub)]);
        }
        if factor != 1.0 {
            code.extend([number(factor), with(Binary::Mul)]);
        }
        self.elementwise(call, NumberType::Float, code, &operands, ElementType::Fp32)
    }

    /// Quantise sums of products, which were divided by `unit`: the scales are those of the two
    /// factors and of the result.
    fn requantized(
        &mut self,
        call: &LoweringCall<'_>,
        sums: ValueId,
        unit: f32,
        [a, b, y]: [ValueId; 3],
        zero: ValueId,
    ) -> Result<ValueId, GraphError> {
        let made = self.element_type(zero);
        let [low, high] = saturation(call, made)?;
        let zero = if self.tensor(zero).elements() == 1 { self.view(call, zero, [])? } else { zero };
        let load = Instruction::Load;
        let times = with(Binary::Mul);
        let code = vec![
            X,
            number(unit),
            times,
            load(1),
            load(2),
            times,
            load(3),
            with(Binary::Div),
            times,
            apply(Unary::Round),
            load(4),
            with(Binary::Add),
            low,
            with(Binary::Max),
            high,
            with(Binary::Min),
        ];
        self.elementwise(call, NumberType::Float, code, &[sums, a, b, y, zero], made)
    }
}
