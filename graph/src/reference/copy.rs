//! Data movement, and elements selected by index.

use super::{ReferenceData, ReferenceTensor, fill};
use crate::TensorType;
use crate::ir::{BlockLayout, Copy, CopyPart, Gather, GatherElements, Scalar};

pub(super) fn copy(
    op: &Copy,
    operands: &[Option<ReferenceTensor>],
    out: &TensorType,
) -> Option<ReferenceTensor> {
    let blank = fill(op.fill.unwrap_or(Scalar::Integer(0)), out);
    match blank.data() {
        ReferenceData::Floats(blank) => {
            let mut made = blank.to_vec();
            for part in &op.parts {
                let ReferenceData::Floats(from) = operands.get(part.input)?.as_ref()?.data() else {
                    return None;
                };
                copy_part(part, from, &mut made)?;
            }
            Some(ReferenceTensor::floats(out.clone(), made))
        }
        ReferenceData::Integers(blank) => {
            let mut made = blank.to_vec();
            for part in &op.parts {
                let ReferenceData::Integers(from) = operands.get(part.input)?.as_ref()?.data() else {
                    return None;
                };
                copy_part(part, from, &mut made)?;
            }
            Some(ReferenceTensor::integers(out.clone(), made))
        }
    }
}

fn copy_part<T: std::marker::Copy>(part: &CopyPart, from: &[T], to: &mut [T]) -> Option<()> {
    for index in 0..part.dims.iter().product() {
        let target = to.get_mut(part.to.at(&part.dims, index)?)?;
        *target = *from.get(part.from.at(&part.dims, index)?)?;
    }
    Some(())
}

impl BlockLayout {
    /// Index, in the value, of the block's element `index` in row-major order.
    fn at(&self, dims: &[usize], mut index: usize) -> Option<usize> {
        let mut at = self.offset;
        for (dim, stride) in dims.iter().zip(&self.strides).rev() {
            at = at.checked_add_signed(isize::try_from(index % dim).ok()?.checked_mul(*stride)?)?;
            index /= dim;
        }
        Some(at)
    }
}

/// Resolve an index into `axis` elements: negative indices count from the end, and indices out of
/// range are clamped.
fn place(index: i64, axis: usize) -> usize {
    let size = i64::try_from(axis).unwrap_or(i64::MAX);
    let index = if index < 0 { index.saturating_add(size) } else { index };
    usize::try_from(index.clamp(0, (size - 1).max(0))).unwrap_or(0)
}

pub(super) fn gather(
    op: &Gather,
    x: &ReferenceTensor,
    indices: &ReferenceTensor,
    out: &TensorType,
) -> Option<ReferenceTensor> {
    let indices = indices.as_integers()?;
    if indices.len() != op.count || x.tensor().elements() != op.outer * op.axis * op.inner || op.axis == 0 {
        return None;
    }
    let starts = (0..op.outer).flat_map(|outer| {
        indices.iter().map(move |index| (outer * op.axis + place(*index, op.axis)) * op.inner)
    });
    Some(match x.data() {
        ReferenceData::Floats(x) => ReferenceTensor::floats(
            out.clone(),
            starts.flat_map(|start| x[start..start + op.inner].iter().copied()).collect(),
        ),
        ReferenceData::Integers(x) => ReferenceTensor::integers(
            out.clone(),
            starts.flat_map(|start| x[start..start + op.inner].iter().copied()).collect(),
        ),
    })
}

pub(super) fn gather_elements(
    op: &GatherElements,
    x: &ReferenceTensor,
    indices: &ReferenceTensor,
    out: &TensorType,
) -> Option<ReferenceTensor> {
    let indices = indices.as_integers()?;
    let around = |mut index: usize| {
        let mut at = 0;
        for (dim, stride) in op.dims.iter().zip(&op.strides).rev() {
            at += index % dim * stride;
            index /= dim;
        }
        at
    };
    let at = |(element, index): (usize, &i64)| around(element) + place(*index, op.axis) * op.axis_stride;
    let at = indices.iter().enumerate().map(at);
    Some(match x.data() {
        ReferenceData::Floats(x) => {
            ReferenceTensor::floats(out.clone(), at.map(|at| x.get(at).copied()).collect::<Option<_>>()?)
        }
        ReferenceData::Integers(x) => {
            ReferenceTensor::integers(out.clone(), at.map(|at| x.get(at).copied()).collect::<Option<_>>()?)
        }
    })
}
