//! Padding, and cropping by negative padding.

use super::call::LoweringCall;
use super::dims::{collapse, signed};
use super::views::part;
use super::{Lowering, Made};
use crate::GraphError;
use crate::ir::{BlockLayout, Copy, CopyPart, Op, Scalar, ValueId};
use crate::tensor_type::row_major;

pub(super) fn pad(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let rank = lowering.dims(x).len();
    let pads = match call.ints("pads").or_else(|| call.ints("paddings")) {
        Some(pads) => pads.to_vec(),
        None => lowering.integers(call, 1)?,
    };
    let axes = match call.optional(3) {
        Some(_) => {
            let axes = lowering.integers(call, 3)?;
            axes.iter().map(|axis| call.axis(*axis, rank)).collect::<Result<Vec<_>, _>>()?
        }
        None => (0..rank).collect(),
    };
    if pads.len() != 2 * axes.len()
        || pads.iter().any(|pad| pad.unsigned_abs() > super::call::SIZE_MAX as u64)
    {
        return Err(call.invalid(format!("the padding {pads:?} does not fit {} axes", axes.len())));
    }
    let (before, behind) = pads.split_at(axes.len());
    let mut each = vec![[0_i64; 2]; rank];
    for ((axis, before), behind) in axes.iter().zip(before).zip(behind) {
        each[*axis] = [*before, *behind];
    }
    let x = lowering.cropped(call, x, &each)?;
    let y = match call.text("mode", "constant")? {
        "constant" => {
            let value = match call.optional(2) {
                Some(id) => Some(lowering.scalar(id).ok_or_else(|| {
                    call.unsupported("a padding value that depends on the contents of the model's inputs is")
                })?),
                None => call.float("value").map(Scalar::Float),
            };
            lowering.padded(call, x, &each, value.unwrap_or(Scalar::Integer(0)))?
        }
        mode @ ("edge" | "reflect") => {
            let mut x = x;
            for (axis, [before, behind]) in each.iter().enumerate() {
                x = lowering.mirrored(call, x, axis, [size(*before), size(*behind)], mode == "reflect")?;
            }
            x
        }
        mode => return Err(call.unsupported(format!("the mode {mode:?} is"))),
    };
    Ok(vec![Some(y)])
}

/// The padding as a size; 0 where it is negative.
fn size(pad: i64) -> usize {
    usize::try_from(pad).unwrap_or(0)
}

impl Lowering<'_> {
    /// Crop where padding is negative.
    fn cropped(
        &mut self,
        call: &LoweringCall<'_>,
        x: ValueId,
        each: &[[i64; 2]],
    ) -> Result<ValueId, GraphError> {
        let dims = self.dims(x);
        let strides = row_major(&dims);
        let mut out = dims.clone();
        let mut offset = 0;
        for (axis, [before, behind]) in each.iter().enumerate() {
            let before = size(-before);
            let behind = size(-behind);
            let left = out[axis].checked_sub(before).and_then(|left| left.checked_sub(behind));
            out[axis] =
                left.ok_or_else(|| call.invalid(format!("more is cut off than there is of {dims:?}")))?;
            offset += before * strides[axis];
        }
        let offset = if out.contains(&0) { 0 } else { offset };
        self.strided(call, x, &out, offset, &signed(&strides))
    }

    /// Surround with `value`.
    pub(super) fn padded(
        &mut self,
        call: &LoweringCall<'_>,
        x: ValueId,
        each: &[[i64; 2]],
        value: Scalar,
    ) -> Result<ValueId, GraphError> {
        let dims = self.dims(x);
        let out: Vec<usize> =
            dims.iter().zip(each).map(|(dim, pads)| dim + size(pads[0]) + size(pads[1])).collect();
        if out == dims {
            return Ok(x);
        }
        let element_type = self.element_type(x);
        let output = call.tensor(element_type, out)?;
        let fill = Some(value.in_lane(crate::ir::NumberType::for_element_type(element_type)));
        if dims.contains(&0) {
            return Ok(self.emit(Op::Copy(Copy { fill, parts: vec![] }), vec![], output));
        }
        let to = row_major(output.dims());
        let offset = to.iter().zip(each).map(|(stride, pads)| stride * size(pads[0])).sum();
        let (block, layouts) = collapse(&dims, &[signed(&row_major(&dims)), signed(&to)]);
        let part = part(call, 0, block, [0, offset], layouts)?;
        Ok(self.emit(Op::Copy(Copy { fill, parts: vec![part] }), vec![Some(x)], output))
    }

    /// Extend along one axis with the edge element, or with a reflection of the elements next to
    /// the edge.
    fn mirrored(
        &mut self,
        call: &LoweringCall<'_>,
        x: ValueId,
        axis: usize,
        [before, behind]: [usize; 2],
        reflect: bool,
    ) -> Result<ValueId, GraphError> {
        let dims = self.dims(x);
        let here = dims[axis];
        if before + behind == 0 {
            return Ok(x);
        }
        if here == 0 || (reflect && before.max(behind) >= here) {
            return Err(call.invalid(format!(
                "{here} elements are too few to continue {before} before and {behind} after"
            )));
        }
        let mut out = dims.clone();
        out[axis] = before + here + behind;
        let output = call.tensor(self.element_type(x), out)?;
        // The dimensions on each side of the axis are collapsed to one.
        let outer: usize = dims[..axis].iter().product();
        let inner: usize = dims[axis + 1..].iter().product();
        let whole = here * inner;
        let wide = output.dims()[axis] * inner;
        let block = |count: usize, from: usize, step: isize, to: usize| -> CopyPart {
            let strides = |outer: usize, step| [signed(&[outer]), vec![step], vec![1]].concat();
            let inner_step = signed(&[inner]).first().copied().unwrap_or(1);
            CopyPart {
                input: 0,
                dims: vec![outer, count, inner],
                from: BlockLayout { offset: from * inner, strides: strides(whole, step * inner_step) },
                to: BlockLayout { offset: to * inner, strides: strides(wide, inner_step) },
            }
        };
        let mut parts = vec![block(here, 0, 1, before)];
        let step = if reflect { -1 } else { 0 };
        if before > 0 {
            parts.push(block(before, if reflect { before } else { 0 }, step, 0));
        }
        if behind > 0 {
            parts.push(block(
                behind,
                if reflect { here.saturating_sub(2) } else { here - 1 },
                step,
                before + here,
            ));
        }
        Ok(self.emit(Op::Copy(Copy { fill: None, parts }), vec![Some(x)], output))
    }
}
