//! Operators that take parts of a value.

use super::call::LoweringCall;
use super::dims::signed;
use super::{Lowering, Made};
use crate::GraphError;
use crate::tensor_type::row_major;

pub(super) fn slice(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let dims = lowering.dims(x);
    let (starts, ends, axes, steps) = if call.opset < 10 {
        let list = |name| {
            call.ints(name).map(<[i64]>::to_vec).ok_or_else(|| call.invalid(format!("it has no {name}")))
        };
        (list("starts")?, list("ends")?, call.ints("axes").map(<[i64]>::to_vec), None)
    } else {
        let mut list = |place| call.optional(place).map(|_| lowering.integers(call, place)).transpose();
        let missing = || call.invalid("the starts or the ends are missing");
        (list(1)?.ok_or_else(missing)?, list(2)?.ok_or_else(missing)?, list(3)?, list(4)?)
    };
    let axes = axes.unwrap_or_else(|| (0_i64..).take(starts.len()).collect());
    let steps = steps.unwrap_or_else(|| vec![1; starts.len()]);
    if [ends.len(), axes.len(), steps.len()].iter().any(|len| *len != starts.len()) {
        return Err(call.invalid("starts, ends, axes and steps are not equally many"));
    }
    let mut out = dims.clone();
    let mut strides = signed(&row_major(&dims));
    let mut offset = 0_usize;
    for (((start, end), axis), step) in starts.iter().zip(&ends).zip(&axes).zip(&steps) {
        let axis = call.axis(*axis, dims.len())?;
        let (first, count) =
            range(*start, *end, *step, dims[axis]).ok_or_else(|| call.invalid("a step of 0"))?;
        offset += first * usize::try_from(strides[axis]).unwrap_or(0);
        out[axis] = count;
        let step = isize::try_from(*step).unwrap_or(isize::MAX);
        // With a single element, the step is irrelevant and may be arbitrarily large.
        strides[axis] = if count > 1 { strides[axis].saturating_mul(step) } else { strides[axis] };
    }
    Ok(vec![Some(lowering.strided(call, x, &out, offset, &strides)?)])
}

/// First index and count, clamped as the standard defines; `None` for a step of 0.
fn range(start: i64, end: i64, step: i64, size: usize) -> Option<(usize, usize)> {
    let size = i64::try_from(size).ok()?;
    if size == 0 && step != 0 {
        return Some((0, 0));
    }
    let from_start = |index: i64| if index < 0 { index.saturating_add(size) } else { index };
    let start = from_start(start);
    let end = from_start(end);
    let (first, count) = match step {
        0 => return None,
        1.. => {
            let start = start.clamp(0, size);
            let end = end.clamp(0, size);
            (start, (end - start).max(0).unsigned_abs().div_ceil(step.unsigned_abs()))
        }
        _ => {
            let start = start.clamp(0, size - 1);
            let end = end.clamp(-1, size - 1);
            (start, (start - end).max(0).unsigned_abs().div_ceil(step.unsigned_abs()))
        }
    };
    if count == 0 {
        return Some((0, 0));
    }
    Some((usize::try_from(first).ok()?, usize::try_from(count).ok()?))
}

pub(super) fn split(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let dims = lowering.dims(x);
    let axis = call.axis(call.int("axis").unwrap_or(0), dims.len())?;
    let sizes = match (call.ints("split"), call.optional(1)) {
        (Some(sizes), _) => sizes.to_vec(),
        (None, Some(_)) => lowering.integers(call, 1)?,
        (None, None) => {
            let parts = call.int("num_outputs").and_then(|parts| usize::try_from(parts).ok());
            let parts = parts.unwrap_or(call.node.outputs.len()).clamp(1, super::call::SIZE_MAX);
            // The last part is smaller if the size is not divisible.
            let each = dims[axis].div_ceil(parts);
            (0..parts.min(call.node.outputs.len()))
                .map(|part| i64::try_from(each.min(dims[axis].saturating_sub(part * each))).unwrap_or(0))
                .collect()
        }
    };
    let strides = signed(&row_major(&dims));
    let mut made = Vec::with_capacity(sizes.len());
    let mut start = 0_usize;
    for size in &sizes {
        let size = usize::try_from(*size)
            .ok()
            .filter(|size| start.checked_add(*size).is_some_and(|end| end <= dims[axis]));
        let size = size.ok_or_else(|| misfit(call, &sizes, &dims))?;
        let mut out = dims.clone();
        out[axis] = size;
        let offset = start * usize::try_from(strides[axis]).unwrap_or(0);
        made.push(Some(lowering.strided(call, x, &out, offset, &strides)?));
        start += size;
    }
    if start != dims[axis] { Err(misfit(call, &sizes, &dims)) } else { Ok(made) }
}

fn misfit(call: &LoweringCall<'_>, sizes: &[i64], dims: &[usize]) -> GraphError {
    call.invalid(format!("{dims:?} cannot be split into {sizes:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn slice_bounds_are_clamped_as_in_python() {
        assert_eq!(range(1, i64::MAX, 2, 6), Some((1, 3)));
        assert_eq!(range(-1, i64::MIN, -1, 3), Some((2, 3)));
        assert_eq!(range(-100, 2, 1, 5), Some((0, 2)));
        assert_eq!(range(3, 1, 1, 5), Some((0, 0)));
        assert_eq!(range(0, 1, 0, 5), None);
    }

    proptest! {
        #[test]
        fn slice_stays_within_bounds(start: i64, end: i64, step: i64, size in 0_usize..20) {
            if let Some((first, count)) = range(start, end, step, size) && count > 0 {
                prop_assert!(first < size);
                let last = first as i128 + i128::from(step) * (count as i128 - 1);
                prop_assert!((0..size as i128).contains(&last), "{first} {count} {step}");
            }
        }
    }
}
