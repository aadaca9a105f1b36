//! Operations on rows.

use super::{ReferenceData, ReferenceTensor, floats};
use crate::TensorType;
use crate::ir::{ArgReduce, CumSum, LayerNorm, Mask, Reduce, ReduceKind, Softmax, TopK};
use std::cmp::Ordering;

pub(super) fn reduce(op: &Reduce, x: &ReferenceTensor, out: &TensorType) -> Option<ReferenceTensor> {
    if op.cols == 0 || x.tensor().elements() != op.rows * op.cols {
        return None;
    }
    Some(match x.data() {
        ReferenceData::Floats(x) => ReferenceTensor::floats(
            out.clone(),
            x.chunks_exact(op.cols).map(|row| of_floats(op.kind, row)).collect(),
        ),
        ReferenceData::Integers(x) => ReferenceTensor::integers(
            out.clone(),
            x.chunks_exact(op.cols).map(|row| of_integers(op.kind, row)).collect(),
        ),
    })
}

fn of_floats(kind: ReduceKind, row: &[f32]) -> f32 {
    let wide = row.iter().map(|x| f64::from(*x));
    let y = match kind {
        ReduceKind::Sum => wide.sum(),
        ReduceKind::Mean => wide.sum::<f64>() / row.len() as f64,
        ReduceKind::Max => wide.fold(f64::NEG_INFINITY, |max, x| if x > max || x.is_nan() { x } else { max }),
        ReduceKind::Min => wide.fold(f64::INFINITY, |min, x| if x < min || x.is_nan() { x } else { min }),
        ReduceKind::Product => wide.product(),
        ReduceKind::L1 => wide.map(f64::abs).sum(),
        ReduceKind::L2 => wide.map(|x| x * x).sum::<f64>().sqrt(),
        ReduceKind::SumSquares => wide.map(|x| x * x).sum(),
    };
    y as f32
}

fn of_integers(kind: ReduceKind, row: &[i64]) -> i64 {
    let all = row.iter().copied();
    let sum = |values: &mut dyn Iterator<Item = i64>| values.fold(0_i64, i64::wrapping_add);
    match kind {
        ReduceKind::Sum => sum(&mut all.into_iter()),
        ReduceKind::Mean => sum(&mut all.into_iter()) / i64::try_from(row.len()).unwrap_or(i64::MAX),
        ReduceKind::Max => all.max().unwrap_or(i64::MIN),
        ReduceKind::Min => all.min().unwrap_or(i64::MAX),
        ReduceKind::Product => all.fold(1, i64::wrapping_mul),
        ReduceKind::L1 => sum(&mut all.map(i64::wrapping_abs)),
        ReduceKind::L2 => (sum(&mut all.map(|x| x.wrapping_mul(x))) as f64).sqrt() as i64,
        ReduceKind::SumSquares => sum(&mut all.map(|x| x.wrapping_mul(x))),
    }
}

pub(super) fn softmax(
    op: &Softmax,
    x: &ReferenceTensor,
    mask: Option<&ReferenceTensor>,
    out: &TensorType,
) -> Option<ReferenceTensor> {
    let x = floats(Some(x))?;
    if op.cols == 0 || x.len() != op.rows * op.cols {
        return None;
    }
    let mask = masked(mask, op.mask.as_ref(), x.len())?;
    let mut made = Vec::with_capacity(x.len());
    for (row, x) in x.chunks_exact(op.cols).enumerate() {
        let scores: Vec<f64> = x
            .iter()
            .zip(row * op.cols..)
            .map(|(x, at)| {
                f64::from(op.scale) * f64::from(*x) + mask.as_ref().map_or(0.0, |mask| f64::from(mask[at]))
            })
            .collect();
        made.extend(softmax_row(&scores, op.log).into_iter().map(|y| y as f32));
    }
    Some(ReferenceTensor::floats(out.clone(), made))
}

/// Softmax of a row, or its logarithm.
pub(super) fn softmax_row(scores: &[f64], log: bool) -> Vec<f64> {
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scores.iter().map(|score| (score - max).exp()).sum();
    let each = |score: &f64| if log { score - max - sum.ln() } else { (score - max).exp() / sum };
    scores.iter().map(each).collect()
}

/// Broadcast a mask to `elements` elements. The inner `None` means that there is no mask; the outer
/// `None` that the operation and its operands disagree.
#[expect(clippy::option_option, reason = "the outer option is an invalid mask, the inner an absent one")]
pub(super) fn masked(
    mask: Option<&ReferenceTensor>,
    how: Option<&Mask>,
    elements: usize,
) -> Option<Option<Vec<f32>>> {
    let (mask, how) = match (mask, how) {
        (None, None) => return Some(None),
        (Some(mask), Some(how)) => (floats(Some(mask))?, how),
        _ => return None,
    };
    if how.dims.iter().product::<usize>() != elements {
        return None;
    }
    let at = |mut index: usize| {
        let mut at = 0;
        for (dim, stride) in how.dims.iter().zip(&how.strides).rev() {
            at += index % dim * stride;
            index /= dim;
        }
        mask.get(at).copied()
    };
    (0..elements).map(at).collect::<Option<Vec<f32>>>().map(Some)
}

pub(super) fn layer_norm<'a>(
    op: &LayerNorm,
    operand: &dyn Fn(usize) -> Option<&'a ReferenceTensor>,
    types: &[Option<&TensorType>],
) -> Option<Vec<Option<ReferenceTensor>>> {
    let x = floats(operand(LayerNorm::X))?;
    let gamma = floats(operand(LayerNorm::GAMMA));
    let beta = floats(operand(LayerNorm::BETA));
    let residual = floats(operand(LayerNorm::RESIDUAL));
    if op.cols == 0 || x.len() != op.rows * op.cols || residual.as_ref().is_some_and(|r| r.len() != x.len()) {
        return None;
    }
    if [&gamma, &beta].into_iter().flatten().any(|numbers| numbers.len() != op.cols) {
        return None;
    }
    let sums: Vec<f32> = match &residual {
        Some(residual) => x.iter().zip(residual.iter()).map(|(x, r)| x + r).collect(),
        None => x.to_vec(),
    };
    let mut made = Vec::with_capacity(x.len());
    for row in sums.chunks_exact(op.cols) {
        let count = op.cols as f64;
        let mean = row.iter().map(|x| f64::from(*x)).sum::<f64>() / count;
        let variance = row.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / count;
        let by = (variance + f64::from(op.epsilon)).sqrt();
        made.extend(row.iter().enumerate().map(|(column, x)| {
            let gamma = gamma.as_ref().map_or(1.0, |gamma| f64::from(gamma[column]));
            let beta = beta.as_ref().map_or(0.0, |beta| f64::from(beta[column]));
            ((f64::from(*x) - mean) / by * gamma + beta) as f32
        }));
    }
    let y = ReferenceTensor::floats((*types.first()?)?.clone(), made);
    let sum = types
        .get(LayerNorm::SUM)
        .copied()
        .flatten()
        .map(|tensor| ReferenceTensor::floats(tensor.clone(), sums));
    Some(vec![Some(y), sum])
}

/// Order of two elements; NaN is equal to every number.
fn compare<T: PartialOrd>(a: &T, b: &T) -> Ordering {
    a.partial_cmp(b).unwrap_or(Ordering::Equal)
}

pub(super) fn arg_reduce(op: &ArgReduce, x: &ReferenceTensor, out: &TensorType) -> Option<ReferenceTensor> {
    if op.cols == 0 || x.tensor().elements() != op.rows * op.cols {
        return None;
    }
    let made = match x.data() {
        ReferenceData::Floats(x) => x.chunks_exact(op.cols).map(|row| extreme(op, row)).collect(),
        ReferenceData::Integers(x) => x.chunks_exact(op.cols).map(|row| extreme(op, row)).collect(),
    };
    Some(ReferenceTensor::integers(out.clone(), made))
}

fn extreme<T: PartialOrd>(op: &ArgReduce, row: &[T]) -> i64 {
    let mut best = 0;
    for (at, x) in row.iter().enumerate().skip(1) {
        let order = compare(x, &row[best]);
        let better = if op.largest { Ordering::Greater } else { Ordering::Less };
        if order == better || (op.last && order == Ordering::Equal) {
            best = at;
        }
    }
    i64::try_from(best).unwrap_or(i64::MAX)
}

pub(super) fn top_k(
    op: &TopK,
    x: &ReferenceTensor,
    types: &[Option<&TensorType>],
) -> Option<Vec<Option<ReferenceTensor>>> {
    if op.cols == 0 || op.k > op.cols || x.tensor().elements() != op.rows * op.cols {
        return None;
    }
    let output = |place: usize| types.get(place).copied().flatten().cloned();
    let at: Vec<usize> = match x.data() {
        ReferenceData::Floats(x) => {
            x.chunks_exact(op.cols).enumerate().flat_map(|(row, x)| best(op, row, x)).collect()
        }
        ReferenceData::Integers(x) => {
            x.chunks_exact(op.cols).enumerate().flat_map(|(row, x)| best(op, row, x)).collect()
        }
    };
    let values = output(0).map(|tensor| match x.data() {
        ReferenceData::Floats(x) => ReferenceTensor::floats(tensor, at.iter().map(|at| x[*at]).collect()),
        ReferenceData::Integers(x) => ReferenceTensor::integers(tensor, at.iter().map(|at| x[*at]).collect()),
    });
    let column = |at: &usize| i64::try_from(at % op.cols).unwrap_or(i64::MAX);
    let indices = output(1).map(|tensor| ReferenceTensor::integers(tensor, at.iter().map(column).collect()));
    Some(vec![values, indices])
}

/// Indices, in the whole tensor, of the selected elements of a row.
fn best<T: PartialOrd>(op: &TopK, row: usize, x: &[T]) -> Vec<usize> {
    let mut columns: Vec<usize> = (0..x.len()).collect();
    columns.sort_by(|a, b| {
        let order = compare(&x[*a], &x[*b]);
        if op.largest { order.reverse() } else { order }
    });
    columns.truncate(op.k);
    columns.into_iter().map(|column| row * op.cols + column).collect()
}

pub(super) fn cum_sum(op: &CumSum, x: &ReferenceTensor, out: &TensorType) -> Option<ReferenceTensor> {
    if op.cols == 0 || x.tensor().elements() != op.rows * op.cols {
        return None;
    }
    Some(match x.data() {
        ReferenceData::Floats(x) => {
            let rows = x.chunks_exact(op.cols);
            let sums = rows.flat_map(|row| running(op, row, 0.0_f64, |sum, x| sum + f64::from(x)));
            ReferenceTensor::floats(out.clone(), sums.map(|sum| sum as f32).collect())
        }
        ReferenceData::Integers(x) => {
            let rows = x.chunks_exact(op.cols);
            ReferenceTensor::integers(
                out.clone(),
                rows.flat_map(|row| running(op, row, 0, i64::wrapping_add)).collect(),
            )
        }
    })
}

fn running<T: Copy, S: Copy>(op: &CumSum, row: &[T], zero: S, add: impl Fn(S, T) -> S) -> Vec<S> {
    let mut made = vec![zero; row.len()];
    let mut sum = zero;
    for step in 0..row.len() {
        let at = if op.reverse { row.len() - 1 - step } else { step };
        let next = add(sum, row[at]);
        made[at] = if op.exclusive { sum } else { next };
        sum = next;
    }
    made
}
