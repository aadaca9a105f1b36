//! Graphs whose images have their channels last: [`Graph::with_channels_last`].
//!
//! Tensor cores read 16 bytes at a time along the inner dimension of a product, which for a
//! convolution is the channels of a pixel. The pass keeps a value in the new layout from one
//! operation to the next, and inserts a transposing copy where an operation needs the other layout.

use crate::fuse::StridedWalk;
use crate::ir::{
    BiasAxis, BlockLayout, Conv, Copy, CopyPart, Elementwise, Graph, GraphNode, GraphValue, ImageLayout,
    MatMul, Matrix, Op, Pooling, Scalar, ValueId, ValueSource,
};
use crate::lower::{collapse, signed, unsigned};
use crate::tensor_type::row_major;
use crate::{GraphError, INLINE_BYTES_MAX, TensorType};
use std::collections::{HashMap, HashSet};

impl Graph {
    /// The same computation with the channels of images last, for a model whose filters are stored
    /// so ([`OnnxModel::with_filters_channels_last`](crate::OnnxModel::with_filters_channels_last));
    /// other graphs are returned unchanged. Convolutions of one element become matrix products. Call
    /// it last.
    pub fn with_channels_last(mut self) -> Result<Self, GraphError> {
        let is_stored = |node: &GraphNode| matches!(&node.op, Op::Conv(conv) if conv.filters == ImageLayout::ChannelsLast);
        if !self.nodes.iter().any(is_stored) {
            return Ok(self);
        }
        let nodes = std::mem::take(&mut self.nodes);
        let prologue = nodes.iter().take(self.prologue_len).flat_map(|node| &node.outputs).flatten();
        let prologue = prologue.copied().collect();
        let mut pass = LayoutPass { graph: self, last: HashMap::new(), made: HashSet::new(), prologue };
        for node in nodes {
            pass.convert(node)?;
        }
        let outputs: Vec<ValueId> = pass.graph.outputs.iter().map(|port| port.value).collect();
        outputs.into_iter().try_for_each(|id| pass.need_first(id))?;
        let mut graph = pass.graph;
        graph.tidy();
        graph.check()?;
        Ok(graph)
    }
}

/// Bytes that a kernel reads at a time along the channels.
const PACK_BYTES: usize = 16;

/// Dimensions of an image, channels first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Image {
    count: usize,
    channels: usize,
    height: usize,
    width: usize,
}

struct LayoutPass {
    /// The graph, with the nodes that are converted.
    graph: Graph,
    /// Values with channels last, by the value with the same elements and channels first.
    last: HashMap<ValueId, ValueId>,
    /// Buffers that the nodes so far make.
    made: HashSet<ValueId>,
    /// Those of them that do not depend on the inputs.
    prologue: HashSet<ValueId>,
}

impl LayoutPass {
    /// Add a node in the layout that suits it.
    fn convert(&mut self, node: GraphNode) -> Result<(), GraphError> {
        let converted = match &node.op {
            Op::Conv(conv) => self.conv(conv, &node)?,
            Op::Pool(pool) => self.pool(pool, &node)?,
            Op::Elementwise(op) => self.elementwise(op, &node)?,
            Op::Copy(op) => self.join(op, &node)?,
            _ => None,
        };
        if converted.is_some() {
            return Ok(());
        }
        for id in node.inputs.iter().flatten() {
            self.need_first(*id)?;
        }
        self.push(node);
        Ok(())
    }

    fn conv(&mut self, conv: &Conv, node: &GraphNode) -> Result<Option<()>, GraphError> {
        let (Some(x), Some(w), Some(y)) = (node.input(Conv::X), node.input(Conv::W), node.output(0)) else {
            return Ok(None);
        };
        let Some(image) = self.image(x) else { return Ok(None) };
        if conv.groups != 1 {
            return Ok(None);
        }
        let pack = self.pack(x);
        let (x, w) = if image.channels.is_multiple_of(pack) {
            let Some(w) = self.filters(conv.filters, w)? else { return Ok(None) };
            (self.need_last(x)?, w)
        } else if image.channels < pack && self.is_small_window(conv.filters, w) {
            self.need_first(x)?;
            (self.padded(x, pack)?, self.padded(w, pack)?)
        } else {
            return Ok(None);
        };
        let residual = node.input(Conv::RESIDUAL).map(|id| self.need_last(id)).transpose()?;
        let made = self.new_last(y)?;
        let mut inputs = node.inputs.clone();
        inputs.resize(Conv::OPERANDS, None);
        inputs[Conv::X] = Some(x);
        inputs[Conv::W] = Some(w);
        inputs[Conv::RESIDUAL] = residual;
        let layout = ImageLayout::ChannelsLast;
        let conv = Conv { images: layout, filters: layout, ..conv.clone() };
        let is_scaled = node.input(Conv::SCALE).is_some() || node.input(Conv::SHIFT).is_some();
        let (op, inputs) = match self.as_product(&conv, w, made).filter(|_| !is_scaled) {
            Some(product) => {
                let bias = node.input(Conv::BIAS);
                (Op::MatMul(product), vec![Some(x), Some(w), bias, residual])
            }
            None => (Op::Conv(conv), inputs),
        };
        self.push(GraphNode { name: node.name.clone(), op, inputs, outputs: vec![Some(made)] });
        Ok(Some(()))
    }

    /// The filters with channels last. `None` if they would have to be copied, and are large.
    fn filters(&mut self, layout: ImageLayout, w: ValueId) -> Result<Option<ValueId>, GraphError> {
        let tensor = self.graph.value(w).tensor.clone();
        let Ok(dims) = <[usize; 4]>::try_from(tensor.dims()) else { return Ok(None) };
        if layout == ImageLayout::ChannelsLast {
            return Ok(Some(w));
        }
        let [_, _, height, width] = dims;
        if height * width == 1 {
            let of = self.graph.buffer(w);
            return self.value(w, ImageLayout::ChannelsLast.with_dims(dims), ValueSource::View(of)).map(Some);
        }
        if !self.is_kept(w) || tensor.bytes() > INLINE_BYTES_MAX {
            return Ok(None);
        }
        self.need_last(w).map(Some)
    }

    /// Whether filters of more than one element are few enough to be copied for each program.
    fn is_small_window(&self, layout: ImageLayout, w: ValueId) -> bool {
        let value = self.graph.value(w);
        let is_kept = self.is_kept(w);
        let is_window = matches!(value.tensor.dims(), &[_, _, height, width] if height * width > 1);
        is_kept
            && is_window
            && layout == ImageLayout::ChannelsFirst
            && value.tensor.bytes() <= INLINE_BYTES_MAX
    }

    /// Whether a value does not depend on the inputs.
    fn is_kept(&self, id: ValueId) -> bool {
        let buffer = self.graph.buffer(id);
        match self.graph.value(buffer).source {
            ValueSource::Input => false,
            ValueSource::Node { .. } => self.prologue.contains(&buffer),
            _ => true,
        }
    }

    /// Number of channels in a read of 16 bytes.
    fn pack(&self, id: ValueId) -> usize {
        let tensor = &self.graph.value(id).tensor;
        (PACK_BYTES * tensor.elements() / tensor.bytes().max(1)).max(1)
    }

    /// A copy of images or filters with channels last, and zeroes for missing channels.
    fn padded(&mut self, id: ValueId, pack: usize) -> Result<ValueId, GraphError> {
        let Image { count, channels, height, width } = self.image(id).ok_or_else(|| self.misfit(id))?;
        let area = height * width;
        let dims = [count, height, width, pack];
        let made = self.value(id, dims, ValueSource::Node { node: u32::MAX, output: 0 })?;
        let layout = |strides: [usize; 3]| BlockLayout { offset: 0, strides: signed(&strides) };
        let part = CopyPart {
            input: 0,
            dims: vec![count, area, channels],
            from: layout([channels * area, 1, area]),
            to: layout([area * pack, pack, 1]),
        };
        let op = Op::Copy(Copy { fill: Some(Scalar::Float(0.0)), parts: vec![part] });
        let name = self.graph.value(id).name.clone();
        self.push(GraphNode { name, op, inputs: vec![Some(id)], outputs: vec![Some(made)] });
        Ok(made)
    }

    /// The matrix product that computes a convolution of one element with stride 1.
    fn as_product(&self, conv: &Conv, w: ValueId, y: ValueId) -> Option<MatMul> {
        let &[n, height, width, k] = self.graph.value(w).tensor.dims() else { return None };
        let one = height == 1 && width == 1 && conv.strides == [1, 1];
        if !one || conv.pads_begin != [0, 0] || conv.pads_end != [0, 0] {
            return None;
        }
        let m = self.graph.value(y).tensor.elements() / n;
        let rows = |transposed| Matrix { offset: 0, batch_strides: Vec::new(), row_stride: k, transposed };
        Some(MatMul {
            batch: Vec::new(),
            m,
            n,
            k,
            a: rows(false),
            b: rows(true),
            alpha: 1.0,
            bias_axis: BiasAxis::Columns,
            activation: conv.activation,
        })
    }

    /// A pooling of images that are there with channels last.
    fn pool(&mut self, pool: &Pooling, node: &GraphNode) -> Result<Option<()>, GraphError> {
        let Some((x, y)) = node.input(0).and_then(|x| self.known_last(x)).zip(node.output(0)) else {
            return Ok(None);
        };
        let made = self.new_last(y)?;
        let op = Op::Pool(Pooling { layout: ImageLayout::ChannelsLast, ..pool.clone() });
        let node =
            GraphNode { name: node.name.clone(), op, inputs: vec![Some(x)], outputs: vec![Some(made)] };
        self.push(node);
        Ok(Some(()))
    }

    /// An elementwise operation whose images are all there with channels last.
    fn elementwise(&mut self, op: &Elementwise, node: &GraphNode) -> Result<Option<()>, GraphError> {
        let Some((y, image)) = node.output(0).and_then(|y| Some((y, self.image(y)?))) else {
            return Ok(None);
        };
        let mut inputs = Vec::with_capacity(node.inputs.len());
        let mut strides = Vec::with_capacity(node.inputs.len());
        let mut has_image = false;
        for (id, own) in node.inputs.iter().zip(&op.strides) {
            let Some(id) = *id else { return Ok(None) };
            let walk = StridedWalk { offset: 0, dims: op.dims.clone(), strides: signed(own) };
            let Some(along) = walk.along(&image.planes()) else { return Ok(None) };
            let [count, channel, pixel] = [along[0], along[1], along[2]];
            if *own == row_major(&op.dims) && self.image(id) == Some(image) {
                let Some(last) = self.known_last(id) else { return Ok(None) };
                has_image = true;
                inputs.push(Some(last));
                strides.push(signed(&row_major(&image.pixels())));
            } else {
                inputs.push(Some(id));
                strides.push(vec![count, pixel, channel]);
            }
        }
        if !has_image {
            return Ok(None);
        }
        for id in inputs.iter().flatten().copied().collect::<Vec<_>>() {
            self.need_first(id)?;
        }
        // The output is contiguous, so it does not limit the collapse.
        let output = signed(&row_major(&image.pixels()));
        strides.push(output);
        let (dims, mut strides) = collapse(&image.pixels(), &strides);
        strides.pop();
        let strides = strides.iter().map(|strides| unsigned(strides)).collect();
        let op = Op::Elementwise(Elementwise { program: op.program.clone(), dims, strides });
        let made = self.new_last(y)?;
        self.push(GraphNode { name: node.name.clone(), op, inputs, outputs: vec![Some(made)] });
        Ok(Some(()))
    }

    /// Images that are joined along their channels, and all there with channels last.
    fn join(&mut self, op: &Copy, node: &GraphNode) -> Result<Option<()>, GraphError> {
        let Some((y, image)) = node.output(0).and_then(|y| Some((y, self.image(y)?))) else {
            return Ok(None);
        };
        let mut inputs = node.inputs.clone();
        let mut parts = Vec::with_capacity(op.parts.len());
        for part in &op.parts {
            let Some(id) = node.input(part.input) else { return Ok(None) };
            let joined = self.image(id).zip(self.known_last(id));
            let Some((of, last)) = joined.filter(|(of, _)| part.is_join(*of, image)) else {
                return Ok(None);
            };
            inputs[part.input] = Some(last);
            parts.push(joined_part(part, of, image));
        }
        if op.fill.is_some() || inputs.len() != parts.len() {
            return Ok(None);
        }
        let made = self.new_last(y)?;
        let op = Op::Copy(Copy { fill: None, parts });
        self.push(GraphNode { name: node.name.clone(), op, inputs, outputs: vec![Some(made)] });
        Ok(Some(()))
    }

    /// The value with the elements of `id` and channels last, made by a copy if necessary.
    fn need_last(&mut self, id: ValueId) -> Result<ValueId, GraphError> {
        if let Some(last) = self.known_last(id) {
            return Ok(last);
        }
        self.need_first(id)?;
        let image = self.image(id).ok_or_else(|| self.misfit(id))?;
        let made = self.new_last(id)?;
        self.push_copy(id, made, transposed(image.count, image.channels, image.height * image.width));
        Ok(made)
    }

    /// Make the buffer of `id`, if so far it exists with channels last only.
    fn need_first(&mut self, id: ValueId) -> Result<(), GraphError> {
        let id = self.graph.buffer(id);
        let is_made = !matches!(self.graph.value(id).source, ValueSource::Node { .. });
        if is_made || self.made.contains(&id) {
            return Ok(());
        }
        let last = self.last.get(&id).copied().ok_or_else(|| self.misfit(id))?;
        let image = self.image(id).ok_or_else(|| self.misfit(id))?;
        self.push_copy(last, id, transposed(image.count, image.height * image.width, image.channels));
        Ok(())
    }

    fn push_copy(&mut self, from: ValueId, to: ValueId, part: CopyPart) {
        let name = self.graph.value(to).name.clone();
        let op = Op::Copy(Copy { fill: None, parts: vec![part] });
        self.push(GraphNode { name, op, inputs: vec![Some(from)], outputs: vec![Some(to)] });
    }

    fn push(&mut self, node: GraphNode) {
        let index = u32::try_from(self.graph.nodes.len()).unwrap_or(u32::MAX);
        for (output, id) in (0..).zip(&node.outputs) {
            if let Some(value) = id.and_then(|id| self.graph.values.get_mut(id.0 as usize)) {
                value.source = ValueSource::Node { node: index, output };
            }
        }
        self.made.extend(node.outputs.iter().flatten());
        self.graph.nodes.push(node);
    }

    /// The value that stands for `id`: its buffer, if it is a view with the same dimensions.
    fn key(&self, id: ValueId) -> ValueId {
        let buffer = self.graph.buffer(id);
        let dims = |id: ValueId| self.graph.value(id).tensor.dims();
        if dims(buffer) == dims(id) { buffer } else { id }
    }

    fn known_last(&self, id: ValueId) -> Option<ValueId> {
        self.last.get(&self.key(id)).copied()
    }

    /// Create the value with the elements of `id` and channels last. Its node is pushed next.
    fn new_last(&mut self, id: ValueId) -> Result<ValueId, GraphError> {
        let dims = <[usize; 4]>::try_from(self.graph.value(id).tensor.dims());
        let dims = dims.map_err(|_| self.misfit(id))?;
        let source = ValueSource::Node { node: u32::MAX, output: 0 };
        let made = self.value(id, ImageLayout::ChannelsLast.with_dims(dims), source)?;
        let key = self.key(id);
        self.last.insert(key, made);
        Ok(made)
    }

    /// Create a value like `id`, of other dimensions.
    fn value(&mut self, id: ValueId, dims: [usize; 4], source: ValueSource) -> Result<ValueId, GraphError> {
        let GraphValue { name, tensor, .. } = self.graph.value(id).clone();
        let tensor = TensorType::new(tensor.element_type(), dims);
        let tensor = tensor.map_err(|error| GraphError::value(&name, &error))?;
        let made = ValueId(u32::try_from(self.graph.values.len()).unwrap_or(u32::MAX));
        self.graph.values.push(GraphValue { name, tensor, source });
        Ok(made)
    }

    fn image(&self, id: ValueId) -> Option<Image> {
        let &[count, channels, height, width] = self.graph.value(id).tensor.dims() else { return None };
        Some(Image { count, channels, height, width })
    }

    fn misfit(&self, id: ValueId) -> GraphError {
        GraphError::malformed(format!("value {:?} has no layout", self.graph.value(id).name))
    }
}

impl Image {
    fn planes(self) -> [usize; 3] {
        [self.count, self.channels, self.height * self.width]
    }

    fn pixels(self) -> [usize; 3] {
        [self.count, self.height * self.width, self.channels]
    }
}

impl CopyPart {
    /// Whether the part puts all of an image `of` among the channels of `image`.
    fn is_join(&self, of: Image, image: Image) -> bool {
        let sides = |image: Image| (image.count, image.height, image.width);
        let area = image.height * image.width;
        let from = StridedWalk::from_part(self);
        let to = StridedWalk { offset: 0, dims: self.dims.clone(), strides: self.to.strides.clone() };
        let outer = |strides: Option<Vec<isize>>, channels: usize| {
            let expected = StridedWalk::whole(&[of.count, channels, area]).strides;
            let is_free = [of.count, of.channels, area].map(|size| size == 1);
            strides.is_some_and(|strides| {
                strides.iter().zip(expected).zip(is_free).all(|((have, want), free)| free || *have == want)
            })
        };
        sides(of) == sides(image)
            && self.dims.iter().product::<usize>() == of.count * of.channels * area
            && self.from.offset == 0
            && self.to.offset.is_multiple_of(area)
            && self.to.offset / area + of.channels <= image.channels
            && outer(from.along(&of.planes()), of.channels)
            && outer(to.along(&of.planes()), image.channels)
    }
}

/// The part of a join with channels last.
fn joined_part(part: &CopyPart, of: Image, image: Image) -> CopyPart {
    let area = image.height * image.width;
    let dims = [of.count * area, of.channels];
    let strides = vec![signed(&[of.channels, 1]), signed(&[image.channels, 1])];
    let (dims, mut layouts) = collapse(&dims, &strides);
    let to = layouts.pop().unwrap_or_default();
    let from = layouts.pop().unwrap_or_default();
    CopyPart {
        input: part.input,
        dims,
        from: BlockLayout { offset: 0, strides: from },
        to: BlockLayout { offset: part.to.offset / area, strides: to },
    }
}

/// Copy of `count` matrices of `rows` by `columns`, transposed.
fn transposed(count: usize, rows: usize, columns: usize) -> CopyPart {
    let strides = signed(&[rows * columns, 1, columns]);
    StridedWalk { offset: 0, dims: vec![count, columns, rows], strides }.into_part()
}
