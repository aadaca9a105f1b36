//! Operators that move elements, or view them under other dimensions.

use super::call::LoweringCall;
use super::dims::{broadcast, broadcast_strides, collapse, signed};
use super::views::part;
use super::{Lowering, Made};
use crate::GraphError;
use crate::ir::{Copy, NumberType, Op, Scalar, ValueId};
use crate::tensor_type::row_major;
use weir_types::ElementType;

pub(super) fn identity(_: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    Ok(vec![Some(call.input(0)?)])
}

/// Lower a dropout that keeps all elements: outside training, or with the ratio 0.
pub(super) fn dropout(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let mut is_zero = |place| {
        let scalar = call.optional(place).map(|id| lowering.scalar(id));
        scalar
            .map(|known| known.is_some_and(|scalar| scalar.in_lane(NumberType::Float) == Scalar::Float(0.0)))
    };
    // Both inputs exist from opset 12 on; by default there is no training, and the ratio is not 0.
    let is_training = is_zero(2) == Some(false);
    if is_training && is_zero(1) != Some(true) {
        return Err(call.unsupported("training with a ratio that is not known to be 0 is"));
    }
    let mut mask = None;
    if call.wants(1) && call.opset >= 10 {
        let tensor = call.tensor(ElementType::Bool, lowering.dims(x))?;
        // Before opset 12, the standard leaves the mask open, and ONNX Runtime's is all false.
        let kept = i64::from(call.opset >= 12);
        mask = Some(lowering.emit(Op::Fill(Scalar::Integer(kept)), vec![], tensor));
    }
    Ok(vec![Some(x), mask])
}

pub(super) fn reshape(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let wanted = lowering.integers(call, 1)?;
    let dims = lowering.dims(x);
    let invalid = || call.invalid(format!("{dims:?} cannot be {wanted:?}"));
    let mut out = Vec::with_capacity(wanted.len());
    for (axis, size) in wanted.iter().enumerate() {
        out.push(match size {
            0 if !call.flag("allowzero") => *dims.get(axis).ok_or_else(invalid)?,
            // Inferred below.
            -1 => 1,
            size => usize::try_from(*size).map_err(|_| invalid())?,
        });
    }
    if let Some(open) = wanted.iter().position(|size| *size == -1) {
        let others =
            out.iter().try_fold(1_usize, |product, dim| product.checked_mul(*dim)).ok_or_else(invalid)?;
        let elements = lowering.tensor(x).elements();
        if others == 0
            || !elements.is_multiple_of(others)
            || wanted.iter().filter(|size| **size == -1).count() > 1
        {
            return Err(invalid());
        }
        out[open] = elements / others;
    }
    Ok(vec![Some(lowering.view(call, x, out)?)])
}

pub(super) fn flatten(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let dims = lowering.dims(x);
    let axis = call.int("axis").unwrap_or(1);
    // The axis may also be one past the last dimension.
    let axis =
        if usize::try_from(axis) == Ok(dims.len()) { dims.len() } else { call.axis(axis, dims.len())? };
    let (rows, columns) = dims.split_at(axis);
    let out = [rows.iter().product(), columns.iter().product()];
    Ok(vec![Some(lowering.view(call, x, out)?)])
}

/// The axes from an attribute, or from opset 13 on from the second input.
fn axes(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Result<Option<Vec<i64>>, GraphError> {
    match (call.ints("axes"), call.optional(1)) {
        (Some(axes), _) => Ok(Some(axes.to_vec())),
        (None, Some(_)) => lowering.integers(call, 1).map(Some),
        (None, None) => Ok(None),
    }
}

pub(super) fn squeeze(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let dims = lowering.dims(x);
    let gone = match axes(lowering, call)? {
        Some(axes) => call.axes(&axes, dims.len())?,
        None => (0..dims.len()).filter(|axis| dims[*axis] == 1).collect(),
    };
    if gone.iter().any(|axis| dims[*axis] != 1) {
        return Err(call.invalid(format!("the axes {gone:?} of {dims:?} are not all of size 1")));
    }
    let out: Vec<usize> =
        (0..dims.len()).filter(|axis| !gone.contains(axis)).map(|axis| dims[axis]).collect();
    Ok(vec![Some(lowering.view(call, x, out)?)])
}

pub(super) fn unsqueeze(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let axes = axes(lowering, call)?.ok_or_else(|| call.invalid("the axes are missing"))?;
    let dims = lowering.dims(x);
    let rank = dims.len() + axes.len();
    let new = call.axes(&axes, rank)?;
    if new.len() != axes.len() {
        return Err(call.invalid(format!("an axis is twice in {axes:?}")));
    }
    let mut rest = dims.into_iter();
    let out: Vec<usize> =
        (0..rank).map(|axis| if new.contains(&axis) { 1 } else { rest.next().unwrap_or(1) }).collect();
    Ok(vec![Some(lowering.view(call, x, out)?)])
}

pub(super) fn transpose(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let rank = lowering.dims(x).len();
    let order = match call.ints("perm") {
        Some(order) => order.iter().map(|axis| call.axis(*axis, rank)).collect::<Result<Vec<_>, _>>()?,
        None => (0..rank).rev().collect(),
    };
    if order.len() != rank || (0..rank).any(|axis| !order.contains(&axis)) {
        return Err(call.invalid(format!("{order:?} is no order of {rank} dimensions")));
    }
    Ok(vec![Some(lowering.transposed(call, x, &order)?)])
}

pub(super) fn expand(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let wanted = lowering.integers(call, 1)?;
    let dims = lowering.dims(x);
    let sizes: Option<Vec<usize>> = wanted.iter().map(|size| usize::try_from(*size).ok()).collect();
    let out = sizes.and_then(|sizes| broadcast(&[&dims, &sizes]));
    let out = out.ok_or_else(|| call.invalid(format!("{dims:?} cannot be expanded to {wanted:?}")))?;
    let strides = signed(&broadcast_strides(&dims, &out));
    Ok(vec![Some(lowering.strided(call, x, &out, 0, &strides)?)])
}

pub(super) fn tile(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let repeats = lowering.integers(call, 1)?;
    let dims = lowering.dims(x);
    let times: Vec<usize> = repeats
        .iter()
        .map(|times| usize::try_from(*times))
        .collect::<Result<_, _>>()
        .map_err(|_| call.invalid(format!("nothing can be repeated {repeats:?} times")))?;
    if times.len() != dims.len() {
        return Err(
            call.invalid(format!("{repeats:?} is not one number for each of {} dimensions", dims.len()))
        );
    }
    let own = signed(&row_major(&dims));
    // Each dimension becomes two, the outer with a stride of 0 to repeat the inner. Dimensions of 1
    // are dropped, so they do not count against the limit.
    let pairs = times.iter().zip(&dims).zip(&own);
    let mut block = Vec::new();
    let mut strides = Vec::new();
    for ((times, dim), own) in pairs {
        for (size, stride) in [(*times, 0), (*dim, *own)] {
            if size != 1 {
                block.push(size);
                strides.push(stride);
            }
        }
    }
    let out = times.iter().zip(&dims).map(|(times, dim)| times.checked_mul(*dim)).collect::<Option<Vec<_>>>();
    let out = out.ok_or_else(|| call.invalid(format!("{dims:?} cannot be repeated {repeats:?} times")))?;
    let y = lowering.strided(call, x, &block, 0, &strides)?;
    Ok(vec![Some(lowering.view(call, y, out)?)])
}

pub(super) fn concat(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let inputs = call.all_inputs()?;
    let first = inputs.first().map(|id| lowering.dims(*id)).unwrap_or_default();
    let axis = call.axis(call.int("axis").unwrap_or(1), first.len())?;
    Ok(vec![Some(lowering.joined(call, &inputs, axis)?)])
}

impl Lowering<'_> {
    /// Concatenate values along an axis.
    pub(super) fn joined(
        &mut self,
        call: &LoweringCall<'_>,
        inputs: &[ValueId],
        axis: usize,
    ) -> Result<ValueId, GraphError> {
        let first = inputs.first().copied().ok_or_else(|| call.invalid("it has no inputs"))?;
        let mut out = self.dims(first);
        let mut size = 0_usize;
        for id in inputs {
            let mut dims = self.dims(*id);
            size = dims.get(axis).and_then(|dim| size.checked_add(*dim)).unwrap_or(usize::MAX);
            let same_type = self.element_type(*id) == self.element_type(first);
            if let (Some(dim), Some(of_out)) = (dims.get_mut(axis), out.get(axis)) {
                *dim = *of_out;
            }
            if dims != out || !same_type {
                let why = format!(
                    "{} cannot be concatenated with {} along axis {axis}",
                    self.tensor(*id),
                    self.tensor(first)
                );
                return Err(call.invalid(why));
            }
        }
        if let Some(of_out) = out.get_mut(axis) {
            *of_out = size;
        }
        let filled: Vec<ValueId> =
            inputs.iter().copied().filter(|id| self.tensor(*id).elements() > 0).collect();
        if let [only] = filled.as_slice() {
            return Ok(*only);
        }
        let output = call.tensor(self.element_type(first), out)?;
        let to = signed(&row_major(output.dims()));
        let along = row_major(output.dims()).get(axis).copied().unwrap_or(1);
        let mut parts = Vec::with_capacity(filled.len());
        let mut offset = 0;
        for (place, id) in filled.iter().enumerate() {
            let dims = self.dims(*id);
            let (block, layouts) = collapse(&dims, &[signed(&row_major(&dims)), to.clone()]);
            parts.push(part(call, place, block, [0, offset], layouts)?);
            offset += dims.get(axis).copied().unwrap_or(0) * along;
        }
        let inputs = filled.into_iter().map(Some).collect();
        Ok(self.emit(Op::Copy(Copy { fill: None, parts }), inputs, output))
    }
}

/// Lower `DepthToSpace`: blocks of channels become larger images.
pub(super) fn depth_to_space(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let ([n, c, h, w], block) = picture_and_block(lowering, call, x)?;
    if block == 0 || c % (block * block) != 0 {
        return Err(call.invalid(format!("{c} channels do not make blocks of {block} by {block}")));
    }
    let depth = c / (block * block);
    let (split, order) = match call.text("mode", "DCR")? {
        "CRD" => ([n, depth, block, block, h, w], [0, 1, 4, 2, 5, 3]),
        _ => ([n, block, block, depth, h, w], [0, 3, 4, 1, 5, 2]),
    };
    let x = lowering.view(call, x, split)?;
    let x = lowering.transposed(call, x, &order)?;
    Ok(vec![Some(lowering.view(call, x, [n, depth, h * block, w * block])?)])
}

/// Lower `SpaceToDepth`: blocks of images become channels.
pub(super) fn space_to_depth(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let ([n, c, h, w], block) = picture_and_block(lowering, call, x)?;
    if block == 0 || h == 0 || w == 0 || h % block != 0 || w % block != 0 {
        return Err(
            call.invalid(format!("a picture of {h} by {w} is not made of blocks of {block} by {block}"))
        );
    }
    let x = lowering.view(call, x, [n, c, h / block, block, w / block, block])?;
    let x = lowering.transposed(call, x, &[0, 3, 5, 1, 2, 4])?;
    Ok(vec![Some(lowering.view(call, x, [n, c * block * block, h / block, w / block])?)])
}

fn picture_and_block(
    lowering: &Lowering<'_>,
    call: &LoweringCall<'_>,
    x: ValueId,
) -> Result<([usize; 4], usize), GraphError> {
    let dims = lowering.tensor(x).dims();
    let dims: [usize; 4] = dims.try_into().map_err(|_| call.invalid(format!("{dims:?} is not an image")))?;
    let block = call
        .int("blocksize")
        .and_then(|size| usize::try_from(size).ok())
        .filter(|size| *size <= super::call::SIZE_MAX);
    Ok((dims, block.ok_or_else(|| call.invalid("the attribute `blocksize` is missing or out of range"))?))
}
