//! Table of the supported operators, by name; `docs/reference/operators.md` is generated from it.

use super::call::LoweringCall;
use super::{
    Lowering, Made, arithmetic, attention, conv, grid, index, make, matmul, moves, norm, pad, quantise,
    recurrent, resize, rotary, rows, scatter, slice,
};
use crate::{GraphError, onnx};

/// A supported operator.
#[derive(Clone, Copy)]
pub struct Operator {
    /// Name, prefixed with the domain unless that is ONNX's default.
    pub name: &'static str,
    /// First opset with the operator, for operators of ONNX's default domain.
    pub since: i64,
    /// Unsupported features of the operator; empty if all are supported.
    pub without: &'static str,
    /// Places of the outputs that are made; `None` for all.
    makes: Option<&'static [usize]>,
    /// Function that lowers a call of the operator.
    pub(super) lower: fn(&mut Lowering<'_>, &LoweringCall<'_>) -> Made,
}

impl Operator {
    /// Whether the output at `place` is made.
    pub(super) fn makes(&self, place: usize) -> bool {
        self.makes.is_none_or(|places| places.contains(&place))
    }
}

/// All supported operators, sorted by name.
#[must_use]
pub fn operators() -> &'static [Operator] {
    OPERATORS
}

/// The operator that a node calls.
pub(super) fn find(node: &onnx::Node) -> Option<Operator> {
    let name = full_name(node);
    OPERATORS
        .binary_search_by(|operator| operator.name.cmp(&name))
        .ok()
        .and_then(|at| OPERATORS.get(at))
        .copied()
}

/// Whether a node calls an operator of ONNX's default domain.
pub(super) fn is_own(node: &onnx::Node) -> bool {
    crate::model::is_own(&node.domain)
}

pub(super) fn unknown(node: &onnx::Node) -> GraphError {
    GraphError::UnknownOperator { node: node.title().to_owned(), operator: full_name(node) }
}

/// An operator's name, prefixed with the domain unless that is ONNX's default.
pub(super) fn full_name(node: &onnx::Node) -> String {
    if is_own(node) { node.operator.clone() } else { format!("{}:{}", node.domain, node.operator) }
}

macro_rules! operators {
    ($($name:literal $since:literal $lower:path $(=> $places:tt)? $(, $without:literal)?;)*) => {
        const OPERATORS: &[Operator] = &[$(
            Operator {
                name: $name,
                since: $since,
                without: concat!("" $(, $without)?),
                makes: operators!(@makes $($places)?),
                lower: $lower,
            },
        )*];
    };
    (@makes) => { Some(&[0]) };
    (@makes all) => { None };
    (@makes $places:tt) => { Some(&$places) };
}

// Sorted by name, for binary search. An operator makes its first output, unless `=>` lists the
// places of the outputs that it makes.
operators! {
    "Abs" 1 arithmetic::unary;
    "Acosh" 9 arithmetic::unary;
    "Add" 1 arithmetic::binary;
    "And" 1 arithmetic::binary;
    "ArgMax" 1 rows::arg_reduce;
    "ArgMin" 1 rows::arg_reduce;
    "Asinh" 9 arithmetic::unary;
    "Atanh" 9 arithmetic::unary;
    "Attention" 23 attention::attention => all, "local windows, and masks shorter than the keys";
    "AveragePool" 1 conv::pool, "3-D";
    "BatchNormalization" 1 norm::batch, "training";
    "Cast" 6 arithmetic::cast, "strings and 8-bit floats";
    "CastLike" 15 arithmetic::cast_like;
    "Ceil" 1 arithmetic::unary;
    "Celu" 12 arithmetic::unary;
    "Clip" 1 arithmetic::clip;
    "Concat" 1 moves::concat;
    "ConstantOfShape" 9 make::constant_of_shape;
    "Conv" 1 conv::conv, "3-D";
    "ConvInteger" 10 quantise::conv_integer, "3-D";
    "ConvTranspose" 1 conv::conv_transpose, "3-D";
    "Cos" 7 arithmetic::unary;
    "Cosh" 9 arithmetic::unary;
    "CumSum" 11 rows::cum_sum;
    "DepthToSpace" 1 moves::depth_to_space;
    "DequantizeLinear" 10 quantise::dequantize, "other quantised types than INT8, UINT8 and INT32";
    "Div" 1 arithmetic::binary;
    "Dropout" 1 moves::dropout => [0, 1], "training, unless the ratio is 0; the mask before opset 10";
    "DynamicQuantizeLinear" 11 quantise::dynamic => [0, 1, 2];
    "Einsum" 12 matmul::einsum, "all but products of two operands without repeated letters or `...`";
    "Elu" 1 arithmetic::unary;
    "Equal" 1 arithmetic::binary;
    "Erf" 9 arithmetic::unary;
    "Exp" 1 arithmetic::unary;
    "Expand" 8 moves::expand;
    "Flatten" 1 moves::flatten;
    "Floor" 1 arithmetic::unary;
    "GRU" 7 recurrent::recurrent => [0, 1], "the batch as the first dimension, sequences over 256 steps, and some activations";
    "Gather" 1 index::gather;
    "GatherElements" 11 index::gather_elements;
    "GatherND" 11 scatter::gather_nd, "batches";
    "Gelu" 20 arithmetic::unary;
    "Gemm" 1 matmul::gemm, "integers";
    "GlobalAveragePool" 1 rows::global_pool;
    "GlobalMaxPool" 1 rows::global_pool;
    "Greater" 1 arithmetic::binary;
    "GreaterOrEqual" 12 arithmetic::binary;
    "GridSample" 16 grid::grid_sample, "3-D, and cubic";
    "GroupNormalization" 18 norm::group;
    "HardSigmoid" 1 arithmetic::unary;
    "HardSwish" 14 arithmetic::unary;
    "Hardmax" 1 rows::hardmax;
    "Identity" 1 moves::identity, "sequences";
    "InstanceNormalization" 1 norm::instance;
    "IsInf" 10 arithmetic::unary;
    "IsNaN" 9 arithmetic::unary;
    "LRN" 1 norm::lrn;
    "LSTM" 7 recurrent::recurrent => [0, 1, 2], "the batch as the first dimension, sequences over 256 steps, and some activations";
    "LayerNormalization" 17 norm::layer => [0, 1, 2];
    "LeakyRelu" 1 arithmetic::unary;
    "Less" 1 arithmetic::binary;
    "LessOrEqual" 12 arithmetic::binary;
    "Log" 1 arithmetic::unary;
    "LogSoftmax" 1 rows::softmax;
    "LpNormalization" 1 norm::lp;
    "LpPool" 7 conv::lp_pool, "3-D, and rounding up";
    "MatMul" 1 matmul::matmul, "integers";
    "MatMulInteger" 10 quantise::matmul_integer;
    "Max" 1 arithmetic::variadic;
    "MaxPool" 1 conv::pool, "3-D, and the output of indices";
    "Mean" 1 arithmetic::variadic;
    "MeanVarianceNormalization" 9 norm::mean_variance;
    "Min" 1 arithmetic::variadic;
    "Mish" 18 arithmetic::unary;
    "Mod" 10 arithmetic::binary;
    "Mul" 1 arithmetic::binary;
    "Neg" 1 arithmetic::unary;
    "NonZero" 9 make::non_zero, "contents that depend on the inputs";
    "Not" 1 arithmetic::unary;
    "OneHot" 9 index::one_hot, "a depth or values that depend on the inputs";
    "Or" 1 arithmetic::binary;
    "PRelu" 1 arithmetic::prelu;
    "Pad" 1 pad::pad, "wrapping around";
    "Pow" 1 arithmetic::binary;
    "QLinearConv" 10 quantise::qlinear_conv, "3-D";
    "QLinearMatMul" 10 quantise::qlinear_matmul;
    "QuantizeLinear" 10 quantise::quantize, "other quantised types than INT8 and UINT8";
    "RMSNormalization" 23 norm::rms;
    "RNN" 7 recurrent::recurrent => [0, 1], "the batch as the first dimension, sequences over 256 steps, and some activations";
    "Range" 11 make::range, "ends that depend on the inputs";
    "Reciprocal" 1 arithmetic::unary;
    "ReduceL1" 1 rows::reduce;
    "ReduceL2" 1 rows::reduce;
    "ReduceLogSum" 1 rows::reduce;
    "ReduceLogSumExp" 1 rows::reduce;
    "ReduceMax" 1 rows::reduce;
    "ReduceMean" 1 rows::reduce;
    "ReduceMin" 1 rows::reduce;
    "ReduceProd" 1 rows::reduce;
    "ReduceSum" 1 rows::reduce;
    "ReduceSumSquare" 1 rows::reduce;
    "Relu" 1 arithmetic::unary;
    "Reshape" 5 moves::reshape;
    "Resize" 10 resize::resize, "cubic, antialiasing, and cropping; other dimensions than the last two";
    "RotaryEmbedding" 23 rotary::embedding;
    "Round" 11 arithmetic::unary;
    "Scatter" 9 scatter::scatter_elements, "over 2^22 pairs of elements and updates, if the indices depend on the inputs";
    "ScatterElements" 11 scatter::scatter_elements, "over 2^22 pairs of elements and updates, if the indices depend on the inputs";
    "ScatterND" 11 scatter::scatter_nd, "over 2^22 pairs of elements and updates, if the indices depend on the inputs";
    "Selu" 1 arithmetic::unary;
    "Shape" 1 make::shape;
    "Shrink" 9 arithmetic::unary;
    "Sigmoid" 1 arithmetic::unary;
    "Sign" 9 arithmetic::unary;
    "Sin" 7 arithmetic::unary;
    "Sinh" 9 arithmetic::unary;
    "Size" 1 make::size;
    "Slice" 1 slice::slice, "ends that depend on the inputs";
    "Softmax" 1 rows::softmax;
    "Softplus" 1 arithmetic::unary;
    "Softsign" 1 arithmetic::unary;
    "SpaceToDepth" 1 moves::space_to_depth;
    "Split" 2 slice::split => all;
    "Sqrt" 1 arithmetic::unary;
    "Squeeze" 1 moves::squeeze;
    "Sub" 1 arithmetic::binary;
    "Sum" 1 arithmetic::variadic;
    "Swish" 24 arithmetic::unary;
    "Tan" 7 arithmetic::unary;
    "Tanh" 1 arithmetic::unary;
    "ThresholdedRelu" 10 arithmetic::unary;
    "Tile" 6 moves::tile;
    "TopK" 1 rows::top_k => [0, 1];
    "Transpose" 1 moves::transpose;
    "Trilu" 14 index::trilu;
    "Unsqueeze" 1 moves::unsqueeze;
    "Upsample" 7 resize::upsample, "other dimensions than the last two";
    "Where" 9 arithmetic::choose;
    "Xor" 1 arithmetic::binary;
    "com.microsoft:Attention" 1 attention::packed, "past states, causal masks, lengths as masks, and heads over 128 elements";
    "com.microsoft:BiasGelu" 1 arithmetic::biased;
    "com.microsoft:FastGelu" 1 arithmetic::biased;
    "com.microsoft:FusedConv" 1 conv::fused, "3-D";
    "com.microsoft:FusedMatMul" 1 matmul::fused, "transposed batches";
    "com.microsoft:Gelu" 1 arithmetic::unary;
    "com.microsoft:MultiHeadAttention" 1 attention::multi_head, "past states, packed inputs, biases, padding masks, and heads over 128 elements";
    "com.microsoft:QuickGelu" 1 arithmetic::unary;
    "com.microsoft:SkipLayerNormalization" 1 norm::skip_layer => [0, 3], "the outputs mean and deviation";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operator_names_are_sorted_and_unique() {
        for pair in OPERATORS.windows(2) {
            assert!(pair[0].name < pair[1].name, "{} before {}", pair[0].name, pair[1].name);
        }
    }
}
