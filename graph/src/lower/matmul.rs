//! Matrix products.

use super::call::Call;
use super::dims::{broadcast, broadcast_strides, collapse, unsigned};
use super::{Lowering, Made};
use crate::GraphError;
use crate::ir::{BiasAxis, Binary, Instruction, Lane, MatMul, Matrix, Op, Scalar, ValueId};

/// Largest number of batch dimensions.
pub(crate) const BATCH_DIMS_MAX: usize = 4;

pub(super) fn matmul(lowering: &mut Lowering<'_>, call: &Call<'_>) -> Made {
    let (a, b) = (call.input(0)?, call.input(1)?);
    Ok(vec![Some(lowering.product(call, (a, false), (b, false), 1.0)?)])
}

/// Lower ONNX Runtime's `FusedMatMul`: a product with a factor, of matrices that may be transposed.
pub(super) fn fused(lowering: &mut Lowering<'_>, call: &Call<'_>) -> Made {
    if call.flag("transBatchA") || call.flag("transBatchB") {
        return Err(call.unsupported("transposed batches are"));
    }
    let a = (call.input(0)?, call.flag("transA"));
    let b = (call.input(1)?, call.flag("transB"));
    Ok(vec![Some(lowering.product(call, a, b, call.float("alpha").unwrap_or(1.0))?)])
}

/// Lower `alpha * a * b + beta * c`.
pub(super) fn gemm(lowering: &mut Lowering<'_>, call: &Call<'_>) -> Made {
    let (a, b) = (call.input(0)?, call.input(1)?);
    if lowering.dims(a).len() != 2 || lowering.dims(b).len() != 2 {
        return Err(call.invalid(format!(
            "{} and {} are not matrices",
            lowering.tensor(a),
            lowering.tensor(b)
        )));
    }
    let alpha = call.float("alpha").unwrap_or(1.0);
    let y = lowering.product(call, (a, call.flag("transA")), (b, call.flag("transB")), alpha)?;
    let (Some(c), beta) = (call.optional(2), call.float("beta").unwrap_or(1.0)) else {
        return Ok(vec![Some(y)]);
    };
    let element_type = lowering.element_type(y);
    let out = lowering.dims(y);
    if broadcast(&[&out, lowering.tensor(c).dims()]) != Some(out.clone()) {
        return Err(call.invalid(format!("{} does not broadcast to {out:?}", lowering.tensor(c))));
    }
    let mut c = c;
    if beta != 1.0 {
        let beta = Instruction::Constant(Scalar::Float(beta));
        let code = vec![Instruction::Load(0), beta, Instruction::Binary(Binary::Mul)];
        c = lowering.elementwise(call, Lane::Float, code, &[c], element_type)?;
    }
    let code = vec![Instruction::Load(0), Instruction::Load(1), Instruction::Binary(Binary::Add)];
    Ok(vec![Some(lowering.elementwise(call, Lane::Float, code, &[y, c], element_type)?)])
}

/// Lower `Einsum` where it equals a product of two matrices.
pub(super) fn einsum(lowering: &mut Lowering<'_>, call: &Call<'_>) -> Made {
    let equation: String = call.text("equation", "")?.chars().filter(|c| !c.is_whitespace()).collect();
    let unsupported = || call.unsupported(format!("the equation {equation:?} is"));
    let (operands, out) = equation.split_once("->").ok_or_else(unsupported)?;
    let (left, right) = operands.split_once(',').ok_or_else(unsupported)?;
    let (a, b) = (call.input(0)?, call.input(1)?);
    let [left, right, out]: [Vec<char>; 3] = [left, right, out].map(|letters| letters.chars().collect());
    for letters in [&left, &right, &out] {
        let twice = letters.iter().enumerate().any(|(at, letter)| letters[..at].contains(letter));
        if twice || !letters.iter().all(char::is_ascii_alphabetic) {
            return Err(unsupported());
        }
    }
    let (a_dims, b_dims) = (lowering.dims(a), lowering.dims(b));
    if a_dims.len() != left.len() || b_dims.len() != right.len() {
        return Err(call.invalid(format!("{equation:?} is for other numbers of dimensions")));
    }
    let pick = |letters: &[char], is: &dyn Fn(&char) -> bool| -> Vec<char> {
        letters.iter().copied().filter(is).collect()
    };
    let batch = pick(&out, &|letter| left.contains(letter) && right.contains(letter));
    let rows = pick(&out, &|letter| left.contains(letter) && !right.contains(letter));
    let columns = pick(&out, &|letter| !left.contains(letter) && right.contains(letter));
    let inner = pick(&left, &|letter| right.contains(letter) && !out.contains(letter));
    if batch.len() + rows.len() + inner.len() != left.len()
        || batch.len() + columns.len() + inner.len() != right.len()
        || batch.len() + rows.len() + columns.len() != out.len()
    {
        return Err(unsupported());
    }
    let size = |letter: &char| -> usize {
        let of = |letters: &[char], dims: &[usize]| {
            letters.iter().position(|other| other == letter).and_then(|at| dims.get(at).copied())
        };
        of(&left, &a_dims).or_else(|| of(&right, &b_dims)).unwrap_or(1)
    };
    let sizes = |letters: &[char]| -> Vec<usize> { letters.iter().map(size).collect() };
    let order = |own: &[char], wanted: &[&[char]]| -> Vec<usize> {
        wanted
            .iter()
            .flat_map(|letters| letters.iter())
            .filter_map(|letter| own.iter().position(|other| other == letter))
            .collect()
    };
    if sizes(&right) != b_dims {
        return Err(call.invalid(format!("{a_dims:?} and {b_dims:?} do not fit {equation:?}")));
    }
    let count = |letters: &[char]| sizes(letters).iter().product::<usize>();
    let with = |two: [usize; 2]| -> Vec<usize> { sizes(&batch).into_iter().chain(two).collect() };
    let a = lowering.transposed(call, a, &order(&left, &[&batch, &rows, &inner]))?;
    let a = lowering.view(call, a, with([count(&rows), count(&inner)]))?;
    let b = lowering.transposed(call, b, &order(&right, &[&batch, &inner, &columns]))?;
    let b = lowering.view(call, b, with([count(&inner), count(&columns)]))?;
    let y = lowering.product(call, (a, false), (b, false), 1.0)?;
    let made = [batch, rows, columns].concat();
    let y = lowering.view(call, y, sizes(&made))?;
    Ok(vec![Some(lowering.transposed(call, y, &order(&made, &[&out]))?)])
}

impl Lowering<'_> {
    /// Add the products of the matrices in two values, each optionally transposed.
    pub(super) fn product(
        &mut self,
        call: &Call<'_>,
        (a, a_transposed): (ValueId, bool),
        (b, b_transposed): (ValueId, bool),
        alpha: f32,
    ) -> Result<ValueId, GraphError> {
        let element_type = self.element_type(a);
        if Lane::of(element_type) == Lane::Integer || self.element_type(b) != element_type {
            let what = format!("the product of {} and {} is", self.tensor(a), self.tensor(b));
            return Err(call.unsupported(what));
        }
        let (mut a_dims, mut b_dims) = (self.dims(a), self.dims(b));
        // A vector is a matrix of one row on the left, and of one column on the right.
        let vectors = (a_dims.len() == 1, b_dims.len() == 1);
        if vectors.0 {
            a_dims.insert(0, 1);
        }
        if vectors.1 {
            b_dims.push(1);
        }
        let misfit =
            || call.invalid(format!("{} and {} do not fit as factors", self.tensor(a), self.tensor(b)));
        let (a_batch, a_rows, a_columns) = matrices(&a_dims).ok_or_else(misfit)?;
        let (b_batch, b_rows, b_columns) = matrices(&b_dims).ok_or_else(misfit)?;
        let (m, k) = if a_transposed { (a_columns, a_rows) } else { (a_rows, a_columns) };
        let (b_k, n) = if b_transposed { (b_columns, b_rows) } else { (b_rows, b_columns) };
        let batch = broadcast(&[a_batch, b_batch]).filter(|_| k == b_k).ok_or_else(misfit)?;
        let mut out = batch.clone();
        out.extend((!vectors.0).then_some(m));
        out.extend((!vectors.1).then_some(n));
        let output = call.tensor(element_type, out)?;
        if k == 0 {
            return Ok(self.emit(Op::Fill(Scalar::Float(0.0)), vec![], output));
        }
        let in_batch = |own: &[usize], size: usize| -> Vec<isize> {
            broadcast_strides(own, &batch)
                .iter()
                .map(|stride| isize::try_from(stride * size).unwrap_or(isize::MAX))
                .collect()
        };
        let all_one = b_batch.iter().all(|dim| *dim == 1);
        let (m, batch, strides) = if all_one && !a_transposed && a_batch == batch {
            // All matrices of the batch become rows of one matrix.
            (m * batch.iter().product::<usize>(), vec![], vec![vec![], vec![]])
        } else {
            let strides = [in_batch(a_batch, a_rows * a_columns), in_batch(b_batch, b_rows * b_columns)];
            let kept: Vec<usize> = (0..batch.len()).filter(|axis| batch[*axis] != 1).collect();
            if kept.len() <= BATCH_DIMS_MAX {
                // Dimensions stay separate, so that fusion can read operands in place of a
                // transposed copy.
                let pick = |strides: &Vec<isize>| kept.iter().map(|axis| strides[*axis]).collect();
                (m, kept.iter().map(|axis| batch[*axis]).collect(), strides.iter().map(pick).collect())
            } else {
                let (dims, strides) = collapse(&batch, &strides);
                (m, dims, strides)
            }
        };
        if batch.len() > BATCH_DIMS_MAX {
            return Err(call.unsupported(format!("a batch of more than {BATCH_DIMS_MAX} dimensions is")));
        }
        let matrix = |place: usize, row_stride, transposed| Matrix {
            offset: 0,
            batch_strides: strides.get(place).map(|strides| unsigned(strides)).unwrap_or_default(),
            row_stride,
            transposed,
        };
        let (left, right) = (matrix(0, a_columns, a_transposed), matrix(1, b_columns, b_transposed));
        let op = MatMul {
            batch,
            m,
            n,
            k,
            a: left,
            b: right,
            alpha,
            bias_axis: BiasAxis::Columns,
            activation: None,
        };
        Ok(self.emit(Op::MatMul(op), vec![Some(a), Some(b), None, None], output))
    }
}

/// Split dimensions into batch, rows and columns.
fn matrices(dims: &[usize]) -> Option<(&[usize], usize, usize)> {
    match dims {
        [batch @ .., rows, columns] => Some((batch, *rows, *columns)),
        _ => None,
    }
}
