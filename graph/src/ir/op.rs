//! The closed set of operations that a device runs.

use super::{
    ArgReduce, Attention, Conv, Copy, CumSum, Elementwise, Gather, GatherElements, LayerNorm, Lrn, MatMul,
    Pool, Reduce, Resize, Scalar, Softmax, TopK,
};

/// What a node does. Each says which operands it has, in which place; dimensions that are not in the operation itself are those of the
/// values.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// A convolution in two dimensions.
    Conv(Conv),
    /// Products of matrices.
    MatMul(MatMul),
    /// The largest or mean of windows.
    Pool(Pool),
    /// One expression for every element.
    Elementwise(Elementwise),
    /// Bytes that move: transposing, slicing, joining, padding, expanding.
    Copy(Copy),
    /// The output, all of it this number. No operands.
    Fill(Scalar),
    /// Rows picked by index.
    Gather(Gather),
    /// Elements picked by index.
    GatherElements(GatherElements),
    /// A sum or the like of each row.
    Reduce(Reduce),
    /// Softmax of each row.
    Softmax(Softmax),
    /// Layer normalisation of each row.
    LayerNorm(LayerNorm),
    /// Scaled dot-product attention.
    Attention(Attention),
    /// Local response normalisation across channels.
    Lrn(Lrn),
    /// Pictures of another size.
    Resize(Resize),
    /// Where each row has its largest or smallest element.
    ArgReduce(ArgReduce),
    /// The largest or smallest elements of each row.
    TopK(TopK),
    /// Running sums of each row.
    CumSum(CumSum),
}

impl Op {
    /// Its name, for messages and statistics.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Conv(_) => "Conv",
            Self::MatMul(_) => "MatMul",
            Self::Pool(_) => "Pool",
            Self::Elementwise(_) => "Elementwise",
            Self::Copy(_) => "Copy",
            Self::Fill(_) => "Fill",
            Self::Gather(_) => "Gather",
            Self::GatherElements(_) => "GatherElements",
            Self::Reduce(_) => "Reduce",
            Self::Softmax(_) => "Softmax",
            Self::LayerNorm(_) => "LayerNorm",
            Self::Attention(_) => "Attention",
            Self::Lrn(_) => "Lrn",
            Self::Resize(_) => "Resize",
            Self::ArgReduce(_) => "ArgReduce",
            Self::TopK(_) => "TopK",
            Self::CumSum(_) => "CumSum",
        }
    }
}
