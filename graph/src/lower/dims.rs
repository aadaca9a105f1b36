//! Arithmetic on dimensions and strides.

use crate::tensor_type::row_major;

/// Return the dimensions that all of these broadcast to; `None` if they are incompatible.
pub(crate) fn broadcast(all: &[&[usize]]) -> Option<Vec<usize>> {
    let rank = all.iter().map(|dims| dims.len()).max().unwrap_or(0);
    let mut out = vec![1; rank];
    for dims in all {
        for (out, dim) in out.iter_mut().rev().zip(dims.iter().rev()) {
            match (*out, *dim) {
                (_, 1) => {}
                (1, dim) => *out = dim,
                (out, dim) if out == dim => {}
                _ => return None,
            }
        }
    }
    Some(out)
}

/// Strides of a contiguous value of `dims`, broadcast to `out`.
pub(crate) fn broadcast_strides(dims: &[usize], out: &[usize]) -> Vec<usize> {
    let mut strides = vec![0; out.len()];
    let own = row_major(dims);
    for ((stride, own), dim) in strides.iter_mut().rev().zip(own.iter().rev()).zip(dims.iter().rev()) {
        *stride = if *dim == 1 { 0 } else { *own };
    }
    strides
}

/// Collapse dimensions to as few as possible, at least one: dimensions of 1 are removed, and
/// neighbours are merged where all `strides` allow.
pub(crate) fn collapse(dims: &[usize], strides: &[Vec<isize>]) -> (Vec<usize>, Vec<Vec<isize>>) {
    let mut out_dims: Vec<usize> = Vec::new();
    let mut out: Vec<Vec<isize>> = vec![Vec::new(); strides.len()];
    for (axis, dim) in dims.iter().enumerate().filter(|(_, dim)| **dim != 1) {
        let size = isize::try_from(*dim).unwrap_or(isize::MAX);
        let follows = !out_dims.is_empty()
            && out.iter().zip(strides).all(|(out, strides)| {
                out.last().copied() == strides.get(axis).and_then(|stride| stride.checked_mul(size))
            });
        if follows && let Some(last) = out_dims.last_mut() {
            *last *= dim;
            out.iter_mut().zip(strides).for_each(|(out, strides)| {
                if let (Some(out), Some(stride)) = (out.last_mut(), strides.get(axis)) {
                    *out = *stride;
                }
            });
        } else {
            out_dims.push(*dim);
            out.iter_mut().zip(strides).for_each(|(out, strides)| out.extend(strides.get(axis)));
        }
    }
    if out_dims.is_empty() {
        // A single element: no step is taken along the only dimension.
        out_dims.push(1);
        out.iter_mut().for_each(|out| out.push(if strides.is_empty() { 0 } else { 1 }));
    }
    (out_dims, out)
}

/// Convert unsigned strides to signed ones.
pub(crate) fn signed(strides: &[usize]) -> Vec<isize> {
    strides.iter().map(|stride| isize::try_from(*stride).unwrap_or(isize::MAX)).collect()
}

/// Convert strides that are not negative to unsigned ones.
pub(crate) fn unsigned(strides: &[isize]) -> Vec<usize> {
    strides.iter().map(|stride| usize::try_from(*stride).unwrap_or(0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn broadcast_follows_onnx_standard() {
        assert_eq!(broadcast(&[&[2, 1, 4], &[3, 1]]), Some(vec![2, 3, 4]));
        assert_eq!(broadcast(&[&[0], &[1]]), Some(vec![0]));
        assert_eq!(broadcast(&[&[2], &[3]]), None);
        assert_eq!(broadcast_strides(&[3, 1], &[2, 3, 4]), [0, 1, 0]);
    }

    #[test]
    fn contiguous_value_collapses_to_one_dimension() {
        let strides = vec![signed(&row_major(&[2, 1, 3, 4]))];
        assert_eq!(collapse(&[2, 1, 3, 4], &strides), (vec![24], vec![vec![1]]));
        // A broadcast dimension must not be merged with a neighbour that is not broadcast.
        let both = vec![vec![12, 4, 1], vec![0, 4, 1]];
        assert_eq!(collapse(&[2, 3, 4], &both), (vec![2, 12], vec![vec![12, 1], vec![0, 1]]));
    }

    proptest! {
        #[test]
        fn collapse_preserves_addresses(dims in prop::collection::vec(1_usize..4, 0..5), seed in prop::collection::vec(-3_isize..12, 5)) {
            let strides = vec![signed(&row_major(&dims)), seed[..dims.len()].to_vec()];
            let (out_dims, out) = collapse(&dims, &strides);
            prop_assert_eq!(out_dims.iter().product::<usize>(), dims.iter().product::<usize>());
            let at = |dims: &[usize], strides: &[isize], mut index: usize| {
                let mut at = 0;
                for (dim, stride) in dims.iter().zip(strides).rev() {
                    at += (index % dim) as isize * stride;
                    index /= dim;
                }
                at
            };
            for index in 0..dims.iter().product() {
                for (before, after) in strides.iter().zip(&out) {
                    prop_assert_eq!(at(&dims, before, index), at(&out_dims, after, index));
                }
            }
        }
    }
}
