//! The closed set of operations that a device runs.

use super::{
    ArgReduce, Attention, Conv, Copy, CumSum, Elementwise, Gather, GatherElements, LayerNorm, Lrn, MatMul,
    Pooling, Reduce, Resize, Scalar, Softmax, TopK,
};

/// Operation of a node. Each variant documents its operands and their indices; dimensions that the
/// operation does not state are those of the values.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// Two-dimensional convolution.
    Conv(Conv),
    /// Matrix products.
    MatMul(MatMul),
    /// Maximum or mean of windows.
    Pool(Pooling),
    /// One expression for every element.
    Elementwise(Elementwise),
    /// Data movement: transposing, slicing, joining, padding, expanding.
    Copy(Copy),
    /// Fill the whole output with a number. No operands.
    Fill(Scalar),
    /// Blocks selected by index.
    Gather(Gather),
    /// Elements selected by index.
    GatherElements(GatherElements),
    /// Reduction of each row to one number.
    Reduce(Reduce),
    /// Softmax of each row.
    Softmax(Softmax),
    /// Layer normalisation of each row.
    LayerNorm(LayerNorm),
    /// Scaled dot-product attention.
    Attention(Attention),
    /// Local response normalisation across channels.
    Lrn(Lrn),
    /// Image resizing.
    Resize(Resize),
    /// Index of the maximum or minimum of each row.
    ArgReduce(ArgReduce),
    /// The largest or smallest elements of each row.
    TopK(TopK),
    /// Cumulative sums of each row.
    CumSum(CumSum),
}

impl Op {
    /// The operation's name, for messages and statistics.
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
