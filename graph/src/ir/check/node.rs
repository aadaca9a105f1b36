//! Check that a node fits its operands and outputs.

use crate::TensorType;
use crate::ir::{
    Attention, BiasAxis, BlockLayout, Conv, Copy, DIMS_MAX, Elementwise, Graph, GraphNode, HEAD_DIM_MAX,
    Heads, INPUTS_MAX, ImageLayout, LayerNorm, Mask, MatMul, Op, ProgramError, Softmax,
};

/// Checks one node within its graph.
pub(super) struct NodeChecker<'a> {
    pub(super) graph: &'a Graph,
    pub(super) node: &'a GraphNode,
}

/// Reason why a node is unsound.
pub(super) enum NodeFault {
    Misfit(&'static str),
    Program(ProgramError),
}

/// Dimensions of images or filters, channels first.
fn picture(layout: ImageLayout, dims: &[usize]) -> Option<[usize; 4]> {
    dims.try_into().ok().map(|dims| layout.channels_first(dims))
}

fn ensure(holds: bool, what: &'static str) -> Result<(), NodeFault> {
    if holds { Ok(()) } else { Err(NodeFault::Misfit(what)) }
}

impl NodeChecker<'_> {
    pub(super) fn check(&self) -> Result<(), NodeFault> {
        let out = self.output(0).ok_or(NodeFault::Misfit("its output"))?;
        ensure(out.elements() > 0, "an output without elements")?;
        match &self.node.op {
            Op::Conv(op) => self.conv(op, out),
            Op::MatMul(op) => self.matmul(op, out),
            Op::Attention(op) => self.attention(op, out),
            Op::Elementwise(op) => self.elementwise(op, out),
            Op::Copy(op) => self.copy(op, out),
            Op::Fill(_) => Ok(()),
            Op::Pool(op) => {
                let x = picture(op.layout, self.operand(0)?.dims()).map(|[n, c, ..]| [n, c]);
                let y = picture(op.layout, out.dims()).map(|[n, c, ..]| [n, c]);
                ensure(x.is_some() && x == y, "its picture")?;
                ensure(!op.kernel.contains(&0) && !op.strides.contains(&0), "its window")
            }
            Op::Resize(_) => {
                let x = self.operand(0)?;
                ensure(x.dims().len() == 4 && x.dims().get(..2) == out.dims().get(..2), "its picture")?;
                ensure(out.dims().len() == 4 && x.elements() > 0, "its picture")
            }
            Op::Lrn(_) => {
                ensure(self.operand(0)?.dims() == out.dims() && out.dims().len() >= 3, "its picture")
            }
            Op::Gather(op) => {
                self.elements(0, op.outer * op.axis * op.inner)?;
                self.elements(1, op.count)?;
                ensure(op.axis > 0 && out.elements() == op.outer * op.count * op.inner, "its output")
            }
            Op::GatherElements(op) => {
                self.elements(1, out.elements())?;
                ensure(op.axis > 0 && op.dims.len() == op.strides.len(), "its axis")?;
                ensure(op.dims.iter().product::<usize>() == out.elements(), "its output")?;
                let reach = reach(0, &op.dims, &op.strides) + (op.axis - 1) * op.axis_stride;
                ensure(reach < self.operand(0)?.elements(), "its operand")
            }
            Op::Reduce(op) => self.rows(op.rows, op.cols, out, op.rows),
            Op::ArgReduce(op) => self.rows(op.rows, op.cols, out, op.rows),
            Op::CumSum(op) => self.rows(op.rows, op.cols, out, op.rows * op.cols),
            Op::TopK(op) => {
                ensure(op.k <= op.cols, "how many it takes")?;
                self.rows(op.rows, op.cols, out, op.rows * op.k)
            }
            Op::Softmax(op) => {
                self.rows(op.rows, op.cols, out, op.rows * op.cols)?;
                ensure(op.mask.as_ref().is_none_or(|mask| mask.dims.last() == Some(&op.cols)), "its mask")?;
                self.mask(Softmax::MASK, op.mask.as_ref(), op.rows * op.cols)
            }
            Op::LayerNorm(op) => {
                self.rows(op.rows, op.cols, out, op.rows * op.cols)?;
                self.maybe(LayerNorm::GAMMA, op.cols)?;
                self.maybe(LayerNorm::BETA, op.cols)?;
                self.maybe(LayerNorm::RESIDUAL, op.rows * op.cols)
            }
        }
    }

    fn output(&self, place: usize) -> Option<&TensorType> {
        self.node.output(place).map(|id| &self.graph.value(id).tensor)
    }

    fn operand(&self, place: usize) -> Result<&TensorType, NodeFault> {
        let id = self.node.input(place).ok_or(NodeFault::Misfit("a missing operand"))?;
        Ok(&self.graph.value(id).tensor)
    }

    fn elements(&self, place: usize, elements: usize) -> Result<(), NodeFault> {
        ensure(self.operand(place)?.elements() == elements, "an operand")
    }

    /// Check an optional operand.
    fn maybe(&self, place: usize, elements: usize) -> Result<(), NodeFault> {
        if self.node.input(place).is_some() { self.elements(place, elements) } else { Ok(()) }
    }

    fn rows(&self, rows: usize, cols: usize, out: &TensorType, elements: usize) -> Result<(), NodeFault> {
        self.elements(0, rows * cols)?;
        ensure(cols > 0 && out.elements() == elements, "its rows")
    }

    fn mask(&self, place: usize, mask: Option<&Mask>, elements: usize) -> Result<(), NodeFault> {
        ensure(self.node.input(place).is_some() == mask.is_some(), "its mask")?;
        let Some(mask) = mask else { return Ok(()) };
        ensure(walks(&mask.dims, mask.strides.len(), elements), "its mask")?;
        ensure(reach(0, &mask.dims, &mask.strides) < self.operand(place)?.elements(), "its mask")
    }

    fn conv(&self, op: &Conv, out: &TensorType) -> Result<(), NodeFault> {
        let x = self.operand(Conv::X)?.dims();
        let w = self.operand(Conv::W)?.dims();
        let (Some([n, c, h, width]), Some([m, group_channels, kh, kw]), Some([out_n, out_m, oh, ow])) =
            (picture(op.images, x), picture(op.filters, w), picture(op.images, out.dims()))
        else {
            return Err(NodeFault::Misfit("its picture"));
        };
        let is_first = [op.images, op.filters].iter().all(|layout| *layout == ImageLayout::ChannelsFirst);
        ensure(is_first || op.groups == 1, "its groups")?;
        ensure(
            (out_n, out_m) == (n, m)
                && op.groups > 0
                && group_channels * op.groups == c
                && m % op.groups == 0,
            "its channels",
        )?;
        for (axis, size, kernel, count) in [(0, h, kh, oh), (1, width, kw, ow)] {
            let padded = size + op.pads_begin[axis] + op.pads_end[axis];
            let window = op.dilations[axis] * (kernel.max(1) - 1) + 1;
            ensure(
                op.strides[axis] > 0 && kernel > 0 && (count - 1) * op.strides[axis] + window <= padded,
                "its window",
            )?;
        }
        [Conv::BIAS, Conv::SCALE, Conv::SHIFT].into_iter().try_for_each(|place| self.maybe(place, m))?;
        self.maybe(Conv::RESIDUAL, out.elements())
    }

    fn matmul(&self, op: &MatMul, out: &TensorType) -> Result<(), NodeFault> {
        let count: usize = op.batch.iter().product();
        ensure(out.elements() == count * op.m * op.n, "its output")?;
        ensure(
            op.a.batch_strides.len() == op.batch.len() && op.b.batch_strides.len() == op.batch.len(),
            "its batch",
        )?;
        let a = op.a.reach(&op.batch, op.m, op.k).ok_or(NodeFault::Misfit("its left operand"))?;
        let b = op.b.reach(&op.batch, op.k, op.n).ok_or(NodeFault::Misfit("its right operand"))?;
        ensure(a <= self.operand(MatMul::A)?.elements(), "its left operand")?;
        ensure(b <= self.operand(MatMul::B)?.elements(), "its right operand")?;
        self.maybe(MatMul::BIAS, if op.bias_axis == BiasAxis::Rows { op.m } else { op.n })?;
        self.maybe(MatMul::RESIDUAL, out.elements())
    }

    fn attention(&self, op: &Attention, out: &TensorType) -> Result<(), NodeFault> {
        ensure(out.elements() == op.batch * op.q_len * op.heads * op.head_dim, "its output")?;
        ensure((1..=HEAD_DIM_MAX).contains(&op.head_dim) && op.kv_len > 0, "its heads")?;
        let fits = |place: usize, heads: &Heads, len: usize| -> Result<(), NodeFault> {
            let dims = [op.batch, op.heads, len];
            let strides = [heads.batch_stride, heads.head_stride, heads.row_stride];
            ensure(
                reach(heads.offset, &dims, &strides) + op.head_dim <= self.operand(place)?.elements(),
                "its heads",
            )
        };
        fits(Attention::Q, &op.q, op.q_len)?;
        fits(Attention::K, &op.k, op.kv_len)?;
        fits(Attention::V, &op.v, op.kv_len)?;
        let dims = op.scores();
        let mask = op.mask.map(|strides| Mask { dims: dims.to_vec(), strides: strides.to_vec() });
        self.mask(Attention::MASK, mask.as_ref(), dims.iter().product())
    }

    fn elementwise(&self, op: &Elementwise, out: &TensorType) -> Result<(), NodeFault> {
        op.program.check(op.strides.len()).map_err(NodeFault::Program)?;
        ensure(op.strides.len() == self.node.inputs.len() && op.strides.len() <= INPUTS_MAX, "its operands")?;
        for (place, strides) in op.strides.iter().enumerate() {
            ensure(walks(&op.dims, strides.len(), out.elements()), "its dimensions")?;
            ensure(reach(0, &op.dims, strides) < self.operand(place)?.elements(), "an operand")?;
        }
        ensure(walks(&op.dims, op.dims.len(), out.elements()), "its dimensions")
    }

    fn copy(&self, op: &Copy, out: &TensorType) -> Result<(), NodeFault> {
        let mut written = 0;
        for part in &op.parts {
            let from = self.operand(part.input)?;
            ensure(from.element_type() == out.element_type(), "an operand's type")?;
            let elements = part.dims.iter().product();
            ensure(walks(&part.dims, part.from.strides.len(), elements), "a part")?;
            ensure(part.to.strides.len() == part.dims.len(), "a part")?;
            ensure(elements > 0 && inside(&part.from, &part.dims, from), "where a part comes from")?;
            ensure(inside(&part.to, &part.dims, out), "where a part goes")?;
            written += elements;
        }
        ensure(
            written == out.elements() || (op.fill.is_some() && written < out.elements()),
            "what its parts write",
        )
    }
}

/// Whether an operation can iterate over `dims` with this many strides, and visits `elements`
/// elements.
fn walks(dims: &[usize], strides: usize, elements: usize) -> bool {
    (1..=DIMS_MAX).contains(&dims.len())
        && dims.len() == strides
        && dims.iter().product::<usize>() == elements
}

/// Index of the last element of a block that begins at `offset`.
fn reach(offset: usize, dims: &[usize], strides: &[usize]) -> usize {
    offset + dims.iter().zip(strides).map(|(dim, stride)| dim.saturating_sub(1) * stride).sum::<usize>()
}

/// Whether all elements of a block are inside a value.
fn inside(layout: &BlockLayout, dims: &[usize], tensor: &TensorType) -> bool {
    let mut first = layout.offset as i128;
    let mut last = layout.offset as i128;
    for (dim, stride) in dims.iter().zip(&layout.strides) {
        let way = (*dim as i128 - 1) * *stride as i128;
        if way < 0 { first += way } else { last += way }
    }
    first >= 0 && last < tensor.elements() as i128
}
