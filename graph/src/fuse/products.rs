//! Fusion into matrix products: operands are read in place, without a transposition or a scaling
//! before the product.

use super::copies::source;
use super::strides::{StridedWalk, refined};
use crate::ir::{Binary, Graph, Instruction, MatMul, Matrix, Op, Scalar, ValueId};
use crate::lower::BATCH_DIMS_MAX;

pub(super) fn fuse(graph: &mut Graph) {
    for index in 0..graph.nodes.len() {
        for place in [MatMul::A, MatMul::B] {
            // Both steps repeat, since a model may have them in any order. Each success goes back
            // by one node, so the loop ends.
            while scaled(graph, index, place).is_some() || strided(graph, index, place).is_some() {}
        }
    }
}

/// Collapse batches to as few dimensions as possible, after all passes that match on batch
/// dimensions.
pub(super) fn collapse(graph: &mut Graph) {
    for node in &mut graph.nodes {
        let Op::MatMul(matmul) = &mut node.op else { continue };
        let signed = |matrix: &Matrix| {
            matrix.batch_strides.iter().map(|stride| isize::try_from(*stride).ok()).collect()
        };
        let (Some(a), Some(b)) = (signed(&matmul.a), signed(&matmul.b)) else { continue };
        if matmul.batch.is_empty() {
            continue;
        }
        let (dims, strides) = crate::lower::collapse(&matmul.batch, &[a, b]);
        let unsigned = |strides: &Vec<isize>| strides.iter().map(|stride| stride.unsigned_abs()).collect();
        if let [a, b] = strides.as_slice() {
            matmul.a.batch_strides = unsigned(a);
            matmul.b.batch_strides = unsigned(b);
            matmul.batch = dims;
        }
    }
}

/// Move a factor of an operand into the product's own factor.
fn scaled(graph: &mut Graph, index: usize, place: usize) -> Option<()> {
    let node = graph.nodes.get(index)?;
    let Op::MatMul(_) = &node.op else { return None };
    let operand = graph.buffer(node.input(place)?);
    let maker = graph.nodes.get(graph.maker(operand)?)?;
    let Op::Elementwise(op) = &maker.op else { return None };
    let of = maker.input(0).filter(|_| maker.inputs.len() == 1)?;
    let [Instruction::Load(0), Instruction::Constant(Scalar::Float(by)), Instruction::Binary(binary)] =
        op.program.instructions[..]
    else {
        return None;
    };
    let by = match binary {
        Binary::Mul => by,
        Binary::Div => 1.0 / by,
        _ => return None,
    };
    let same = graph.value(of).tensor.elements() == graph.value(operand).tensor.elements()
        && graph.value(of).tensor.element_type() == graph.value(operand).tensor.element_type();
    if !same || !by.is_finite() {
        return None;
    }
    let node = graph.nodes.get_mut(index)?;
    let Op::MatMul(matmul) = &mut node.op else { return None };
    matmul.alpha *= by;
    node.inputs[place] = Some(of);
    Some(())
}

/// Read an operand in place, without the copy that made it.
fn strided(graph: &mut Graph, index: usize, place: usize) -> Option<()> {
    let node = graph.nodes.get(index)?;
    let Op::MatMul(matmul) = &node.op else { return None };
    let (matrix, rows, columns) = match place {
        MatMul::A => (&matmul.a, matmul.m, matmul.k),
        _ => (&matmul.b, matmul.k, matmul.n),
    };
    let maker = graph.maker(node.input(place)?)?;
    let (base, walk) = source(graph, maker)?;
    let walked = matrix.walked(&matmul.batch, rows, columns)?.through(&walk)?;
    let batch = cut(&matmul.batch, &walked)?;
    let matrix = matrix.seen_through(&walked, &batch, rows, columns)?;
    // The other operand needs strides along the same batch dimensions.
    let other = if place == MatMul::A { &matmul.b } else { &matmul.a };
    let other = Matrix { batch_strides: other.strides_along(&matmul.batch, &batch)?, ..other.clone() };
    let node = graph.nodes.get_mut(index)?;
    let Op::MatMul(matmul) = &mut node.op else { return None };
    (matmul.a, matmul.b) = if place == MatMul::A { (matrix, other) } else { (other, matrix) };
    matmul.batch = batch;
    node.inputs[place] = Some(base);
    Some(())
}

/// Return the batch split at the dimensions of a walk over all matrices.
fn cut(batch: &[usize], walked: &StridedWalk) -> Option<Vec<usize>> {
    let count: usize = batch.iter().product();
    let mut outer = Vec::new();
    for dim in &walked.dims {
        if outer.iter().product::<usize>() == count {
            break;
        }
        outer.push(*dim);
    }
    let cut = refined(batch, &outer)?;
    let cut = if cut == [1] { vec![] } else { cut };
    (cut.len() <= BATCH_DIMS_MAX).then_some(cut)
}

impl Matrix {
    /// Return the walk over all matrices, row by row in memory.
    fn walked(&self, batch: &[usize], rows: usize, columns: usize) -> Option<StridedWalk> {
        let (outer, inner) = if self.transposed { (columns, rows) } else { (rows, columns) };
        let strides = self.batch_strides.iter().chain([&self.row_stride, &1]);
        let strides = strides.map(|stride| isize::try_from(*stride).ok()).collect::<Option<_>>()?;
        Some(StridedWalk { offset: self.offset, dims: [batch, &[outer, inner]].concat(), strides })
    }

    /// Return the same matrices at their places in the buffer that `through` reads, if rows or
    /// columns are still contiguous in memory there.
    fn seen_through(
        &self,
        through: &StridedWalk,
        batch: &[usize],
        rows: usize,
        columns: usize,
    ) -> Option<Self> {
        let (outer, inner) = if self.transposed { (columns, rows) } else { (rows, columns) };
        let mut strides = through.forward_along(&[batch, &[outer, inner]].concat())?;
        let inner_stride = strides.pop()?;
        let outer_stride = strides.pop()?;
        let (row_stride, swapped) = if inner == 1 || inner_stride == 1 {
            (outer_stride, false)
        } else if outer == 1 || outer_stride == 1 {
            (inner_stride, true)
        } else {
            return None;
        };
        // A single row has no step to a next row; the row length is the conventional stride.
        let (rows, len) = if swapped { (inner, outer) } else { (outer, inner) };
        let row_stride = if rows == 1 { len } else { row_stride };
        let transposed = self.transposed != swapped;
        Some(Self { offset: through.offset, batch_strides: strides, row_stride, transposed })
    }

    /// Return the strides between matrices along `dims`, a split of the batch.
    pub(super) fn strides_along(&self, batch: &[usize], dims: &[usize]) -> Option<Vec<usize>> {
        let strides = self
            .batch_strides
            .iter()
            .map(|stride| isize::try_from(*stride).ok())
            .collect::<Option<Vec<_>>>()?;
        StridedWalk { offset: 0, dims: batch.to_vec(), strides }.forward_along(dims)
    }
}

/// Return the product that makes a value, if there is one.
pub(super) fn product(graph: &Graph, id: ValueId) -> Option<(usize, &MatMul)> {
    let maker = graph.maker(id)?;
    match &graph.nodes.get(maker)?.op {
        Op::MatMul(matmul) => Some((maker, matmul)),
        _ => None,
    }
}
