//! Strided walks over memory: a walk under other dimensions, and the composition of two walks.

use crate::ir::{BlockLayout, CopyPart};
use crate::lower::collapse;
use crate::tensor_type::row_major;

/// A strided walk: starts at `offset` and visits `dims` elements with `strides`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StridedWalk {
    pub(crate) offset: usize,
    pub(crate) dims: Vec<usize>,
    pub(crate) strides: Vec<isize>,
}

impl StridedWalk {
    /// The walk that a part of a copy reads by.
    pub(crate) fn from_part(part: &CopyPart) -> Self {
        Self { offset: part.from.offset, dims: part.dims.clone(), strides: part.from.strides.clone() }
    }

    /// The walk over a whole contiguous value.
    pub(crate) fn whole(dims: &[usize]) -> Self {
        let strides =
            row_major(dims).iter().map(|stride| isize::try_from(*stride).unwrap_or(isize::MAX)).collect();
        Self { offset: 0, dims: dims.to_vec(), strides }
    }

    /// Return the part of a copy that reads this walk from operand 0, and writes it in order.
    pub(crate) fn into_part(self) -> CopyPart {
        let to = Self::whole(&self.dims).strides;
        let (dims, mut layouts) = collapse(&self.dims, &[self.strides, to]);
        let to = layouts.pop().unwrap_or_default();
        let from = layouts.pop().unwrap_or_default();
        CopyPart {
            input: 0,
            dims,
            from: BlockLayout { offset: self.offset, strides: from },
            to: BlockLayout { offset: 0, strides: to },
        }
    }

    /// Return the strides of this walk along `dims`, which hold as many elements in the same order.
    /// Strides of dimensions of 1 are 0. `None` if the steps along one of `dims` are uneven.
    pub(crate) fn along(&self, dims: &[usize]) -> Option<Vec<isize>> {
        let (own_dims, own) = collapse(&self.dims, std::slice::from_ref(&self.strides));
        let mut rest = own_dims.into_iter().zip(own.into_iter().next()?).rev();
        let (mut left, mut stride) = rest.next()?;
        let mut out = vec![0; dims.len()];
        for (out, size) in out.iter_mut().zip(dims).rev().filter(|(_, size)| **size != 1) {
            if left == 1 {
                (left, stride) = rest.next()?;
            }
            if left % size != 0 {
                return None;
            }
            *out = stride;
            stride = stride.checked_mul(isize::try_from(*size).ok()?)?;
            left /= size;
        }
        (left == 1 && rest.next().is_none()).then_some(out)
    }

    /// Return the strides along `dims`, if none is negative.
    pub(super) fn forward_along(&self, dims: &[usize]) -> Option<Vec<usize>> {
        self.along(dims)?.into_iter().map(|stride| usize::try_from(stride).ok()).collect()
    }

    /// Compose two walks: this walk visits the elements that `inner` visits, and the result reads
    /// the same elements from the buffer of `inner`.
    pub(super) fn through(&self, inner: &Self) -> Option<Self> {
        let units = row_major(&inner.dims);
        let mut reach = Vec::with_capacity(units.len());
        let mut rest = self.offset;
        for (unit, dim) in units.iter().zip(&inner.dims) {
            let index = rest / unit;
            rest %= unit;
            if index >= *dim {
                return None;
            }
            reach.push((index, index));
        }
        let mut offset = inner.offset;
        for ((index, _), stride) in reach.iter().zip(&inner.strides) {
            offset = offset.checked_add_signed(isize::try_from(*index).ok()?.checked_mul(*stride)?)?;
        }
        let mut through = Through { inner, units, reach, dims: Vec::new(), strides: Vec::new() };
        for (dim, stride) in self.dims.iter().zip(&self.strides) {
            through.step(*dim, *stride)?;
        }
        Some(Self { offset, dims: through.dims, strides: through.strides })
    }
}

struct Through<'a> {
    inner: &'a StridedWalk,
    /// Number of elements in one step along each dimension of the inner walk.
    units: Vec<usize>,
    /// First and last index that is reached along each dimension of the inner walk.
    reach: Vec<(usize, usize)>,
    dims: Vec<usize>,
    strides: Vec<isize>,
}

impl Through<'_> {
    /// Add a dimension of the outer walk, which must stay within one dimension of the inner walk,
    /// or fill several.
    fn step(&mut self, dim: usize, stride: isize) -> Option<()> {
        if dim == 1 || stride == 0 {
            self.dims.push(dim);
            self.strides.push(0);
            return Some(());
        }
        let size = stride.unsigned_abs();
        let axis =
            (0..self.units.len()).find(|axis| self.units[*axis] <= size && self.inner.dims[*axis] > 1)?;
        let times = size / self.units[axis];
        if !size.is_multiple_of(self.units[axis]) {
            return None;
        }
        let far = (dim - 1).checked_mul(times)?;
        let (first, last) = self.reach[axis];
        let moved =
            if stride > 0 { (first, last.checked_add(far)?) } else { (first.wrapping_sub(far), last) };
        if moved.0 <= first && moved.1 < self.inner.dims[axis] {
            self.reach[axis] = moved;
            self.dims.push(dim);
            self.strides.push(
                self.inner.strides[axis]
                    .checked_mul(isize::try_from(times).ok()?)?
                    .checked_mul(stride.signum())?,
            );
            return Some(());
        }
        // The outer dimension covers all of this dimension of the inner walk, and continues along
        // the dimensions around it.
        let here = self.inner.dims[axis];
        if stride < 0 || first != last || first >= times || !here.is_multiple_of(times) {
            return None;
        }
        let steps = here / times;
        if steps < 2 || !dim.is_multiple_of(steps) {
            return None;
        }
        self.step(dim / steps, stride.checked_mul(isize::try_from(steps).ok()?)?)?;
        self.step(steps, stride)
    }
}

/// Return dimensions that split both `a` and `b`: each dimension of `a` and `b` is a product of
/// neighbours in the result. `None` if there are no such dimensions.
pub(super) fn refined(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    let (mut a, mut b) =
        (a.iter().rev().copied().filter(|dim| *dim != 1), b.iter().rev().copied().filter(|dim| *dim != 1));
    let mut left = a.next();
    let mut right = b.next();
    let mut out = Vec::new();
    while let (Some(one), Some(other)) = (left, right) {
        let small = one.min(other);
        let large = one.max(other);
        if large % small != 0 {
            return None;
        }
        out.push(small);
        let rest = Some(large / small).filter(|rest| *rest != 1);
        let (next_left, next_right) = if one <= other { (None, rest) } else { (rest, None) };
        left = next_left.or_else(|| a.next());
        right = next_right.or_else(|| b.next());
    }
    if left.is_some() || right.is_some() {
        return None;
    }
    out.reverse();
    Some(if out.is_empty() { vec![1] } else { out })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(walk: &StridedWalk, mut index: usize) -> isize {
        let mut at = walk.offset as isize;
        for (dim, stride) in walk.dims.iter().zip(&walk.strides).rev() {
            at += (index % dim) as isize * stride;
            index /= dim;
        }
        at
    }

    #[test]
    fn slice_of_transposition_composes_to_one_walk() {
        let transposed = StridedWalk { offset: 0, dims: vec![4, 3], strides: vec![1, 4] };
        let slice = StridedWalk { offset: 3, dims: vec![2, 3], strides: vec![3, 1] };
        assert_eq!(
            slice.through(&transposed),
            Some(StridedWalk { offset: 1, dims: vec![2, 3], strides: vec![1, 4] })
        );
    }

    #[test]
    fn refined_splits_dimensions_where_possible() {
        assert_eq!(refined(&[2, 12], &[6, 4]), Some(vec![2, 3, 4]));
        assert_eq!(refined(&[6], &[1, 2, 1, 3]), Some(vec![2, 3]));
        assert_eq!(refined(&[4, 6], &[6, 4]), None);
        assert_eq!(refined(&[1], &[]), Some(vec![1]));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn along_reads_the_same_elements(
            dims in prop::collection::vec(1_usize..5, 1..4), strides in prop::collection::vec(0_isize..20, 4), cut in prop::collection::vec(1_usize..5, 1..5)
        ) {
            let walk = StridedWalk { offset: 7, strides: strides[..dims.len()].to_vec(), dims };
            if let Some(strides) = walk.along(&cut) {
                let same = StridedWalk { offset: 7, dims: cut, strides };
                let count: usize = walk.dims.iter().product();
                prop_assert_eq!(count, same.dims.iter().product::<usize>());
                for index in 0..count {
                    prop_assert_eq!(at(&walk, index), at(&same, index));
                }
            }
        }

        #[test]
        fn through_equals_two_walks_in_sequence(
            inner in prop::collection::vec((1_usize..5, -9_isize..20), 1..4),
            outer in prop::collection::vec((1_usize..4, -4_isize..9), 1..4),
            offset in 0_usize..5,
        ) {
            let walk = |pairs: Vec<(usize, isize)>, offset| {
                let (dims, strides) = pairs.into_iter().unzip();
                StridedWalk { offset, dims, strides }
            };
            let inner = walk(inner, 100);
            let outer = walk(outer, offset);
            let size: usize = inner.dims.iter().product();
            let count: usize = outer.dims.iter().product();
            // The walk is defined only for indices inside `inner`.
            if !(0..count).all(|index| (0..size as isize).contains(&at(&outer, index))) {
                return Ok(());
            }
            if let Some(through) = outer.through(&inner) {
                for index in 0..count {
                    prop_assert_eq!(at(&through, index), at(&inner, at(&outer, index) as usize));
                }
            }
        }
    }
}
