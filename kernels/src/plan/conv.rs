//! Two-dimensional convolutions.

use super::epilogue::{EpilogueOutput, vector_type};
use super::limits::{BLOCKS_MAX, blocks, product, size};
use super::matmul::finish;
use super::tile::{TileChoice, TileProblem, Units};
use super::{LaunchPlan, Operands, float_bytes, float_name, has_elements, same_type};
use crate::fields::Fields;
use crate::launch::{Argument, Kernel, Launch, LaunchCost, OperandBuffer};
use crate::{KernelModule, KernelTarget, Precision};
use weir_graph::{Conv, ImageLayout, TensorType};
use weir_types::ElementType;

/// Largest coordinate in an image, including padding.
const SIDE_MAX: usize = i16::MAX as usize;
/// Smallest number of output channels per group for tiles; with fewer, tiles would be mostly empty.
const GROUP_CHANNELS_MIN: u32 = 8;
/// Threads per block of the direct kernel, which computes each output separately.
const DIRECT_THREADS: u32 = 128;

const OUTPUT: Argument<OperandBuffer> = Argument::Address(OperandBuffer::Output(0));

pub(super) fn plan(
    op: &Conv,
    operands: Operands<'_>,
    precision: Precision,
    target: &KernelTarget,
) -> Result<LaunchPlan, String> {
    let conv = Convolution::new(op, operands)?;
    if operands.output()?.elements() == 0 {
        return Ok(LaunchPlan::default());
    }
    let shape = &conv.shape;
    if op.images == ImageLayout::ChannelsLast {
        return conv.windows(Units::choose(float_bytes(conv.element_type), precision, target), target);
    }
    if shape.groups > 1 && shape.m < GROUP_CHANNELS_MIN {
        conv.direct()
    } else {
        conv.tiled(Units::choose(float_bytes(conv.element_type), precision, target), target)
    }
}

/// Convolution whose operands have matching types and sizes.
struct Convolution<'a> {
    shape: ConvShape<'a>,
    element_type: ElementType,
    /// Part of the kernels' names for the type of the floats.
    type_name: &'static str,
    operands: Operands<'a>,
    cost: LaunchCost,
}

impl<'a> Convolution<'a> {
    fn new(op: &'a Conv, operands: Operands<'a>) -> Result<Self, String> {
        let x = operands.needed(Conv::X)?;
        let w = operands.needed(Conv::W)?;
        let output = operands.output()?;
        let element_type = output.element_type();
        let type_name = float_name(element_type)?;
        let residual = operands.input(Conv::RESIDUAL);
        for (tensor, what) in [(Some(x), "picture"), (Some(w), "filter"), (residual, "residual")] {
            same_type(tensor, element_type, what)?;
        }
        let vectors = [Conv::BIAS, Conv::SCALE, Conv::SHIFT].map(|place| operands.input(place));
        let shape = ConvShape::new(op, x, w, output, vector_type(&vectors)?)?;
        for vector in vectors {
            has_elements(vector, shape.groups as usize * shape.m as usize, "vector")?;
        }
        has_elements(residual, output.elements(), "residual")?;
        let flops = 2 * output.elements() as u64 * u64::from(shape.k);
        let cost = LaunchCost { flops, bytes: operands.bytes() };
        Ok(Self { shape, element_type, type_name, operands, cost })
    }

    /// Plan the kernel that computes each output separately.
    fn direct(&self) -> Result<LaunchPlan, String> {
        let Self { shape, type_name, cost, .. } = self;
        let channels = blocks("output channels", shape.groups as usize * shape.m as usize)?;
        let fields = Argument::Bytes(shape.fields(shape.k, 1, 4).bytes());
        Ok(LaunchPlan::from_launch(Launch {
            kernel: Kernel { module: KernelModule::Conv, name: format!("conv_direct_{type_name}") },
            grid: [shape.out_pixels.div_ceil(DIRECT_THREADS), channels, shape.images.min(BLOCKS_MAX)],
            block: [DIRECT_THREADS, 1, 1],
            shared_bytes: 0,
            arguments: self.buffers().chain([fields]).collect(),
            cost: *cost,
            chain: None,
        }))
    }

    /// Plan a product of the filters with the windows of the images, in tiles.
    fn tiled(&self, units: Units, target: &KernelTarget) -> Result<LaunchPlan, String> {
        let Self { shape, element_type, type_name, cost, .. } = self;
        let element_bytes = float_bytes(*element_type);
        let problem =
            TileProblem { m: shape.m, n: shape.n, k: shape.k, z: shape.groups, element_bytes, units };
        let choice = problem
            .choose(units.tiles(element_bytes), target)
            .ok_or("on a device with too little shared memory")?;
        let TileChoice { tile, k_part, parts } = choice;
        let module = match units {
            Units::Plain => KernelModule::Conv,
            Units::Tensor => KernelModule::ConvTensor,
        };
        let tiles_m = shape.m.div_ceil(tile.m);
        let grid_x =
            tiles_m.checked_mul(shape.n.div_ceil(tile.n)).ok_or("with too many pixels and channels")?;
        let way = if shape.is_pointwise() { "pointwise" } else { "gathered" };
        let math_name = units.kernel_name(*element_type)?;
        let sums = if parts > 1 { Argument::Address(OperandBuffer::Workspace) } else { Argument::Null };
        let fields = Argument::Bytes(shape.fields(k_part, tiles_m, element_bytes).bytes());
        let mut launches = vec![Launch {
            kernel: Kernel { module, name: format!("conv_{way}_{math_name}_{}", tile.name) },
            grid: [grid_x, parts, shape.groups],
            block: [tile.threads, 1, 1],
            shared_bytes: tile.shared_bytes(element_bytes, false),
            arguments: self.buffers().chain([sums, fields]).collect(),
            cost: *cost,
            chain: None,
        }];
        if parts > 1 {
            let buffers = [OUTPUT].into_iter().chain(self.epilogue_buffers());
            launches.push(finish(type_name, buffers, &problem, &choice, &shape.output(), target));
        }
        Ok(LaunchPlan { launches, workspace_bytes: problem.workspace_bytes(&choice) })
    }

    /// Plan a product of the windows with the filters, whose channels are last, in tiles.
    fn windows(&self, units: Units, target: &KernelTarget) -> Result<LaunchPlan, String> {
        let Self { shape, element_type, type_name, cost, .. } = self;
        let element_bytes = float_bytes(*element_type);
        let problem = TileProblem { m: shape.n, n: shape.m, k: shape.k, z: 1, element_bytes, units };
        let choice = problem
            .choose(units.window_tiles(element_bytes), target)
            .ok_or("on a device with too little shared memory")?;
        let TileChoice { tile, k_part, parts } = choice;
        let module = match units {
            Units::Plain => KernelModule::Conv,
            Units::Tensor => KernelModule::ConvTensor,
        };
        let math_name = units.kernel_name(*element_type)?;
        let tiles_n = blocks("tiles of output channels", shape.m.div_ceil(tile.n) as usize)?;
        let sums = if parts > 1 { Argument::Address(OperandBuffer::Workspace) } else { Argument::Null };
        let output = shape.output_channels_last();
        let fields = Argument::Bytes(shape.window_fields(k_part).fields(&output.fields()).bytes());
        let mut launches = vec![Launch {
            kernel: Kernel { module, name: format!("conv_windows_{math_name}_{}", tile.name) },
            grid: [shape.n.div_ceil(tile.m), tiles_n, parts],
            block: [tile.threads, 1, 1],
            shared_bytes: tile.shared_bytes(element_bytes, true),
            arguments: self.buffers().chain([sums, fields]).collect(),
            cost: *cost,
            chain: None,
        }];
        if parts > 1 {
            let buffers = [OUTPUT].into_iter().chain(self.epilogue_buffers());
            launches.push(finish(type_name, buffers, &problem, &choice, &output, target));
        }
        Ok(LaunchPlan { launches, workspace_bytes: problem.workspace_bytes(&choice) })
    }

    /// The output, images and filters, and the operands of the epilogue.
    fn buffers(&self) -> impl Iterator<Item = Argument<OperandBuffer>> {
        [OUTPUT, self.buffer(Conv::X), self.buffer(Conv::W)].into_iter().chain(self.epilogue_buffers())
    }

    fn epilogue_buffers(&self) -> [Argument<OperandBuffer>; 4] {
        [Conv::BIAS, Conv::SCALE, Conv::SHIFT, Conv::RESIDUAL].map(|place| self.buffer(place))
    }

    fn buffer(&self, place: usize) -> Argument<OperandBuffer> {
        match self.operands.input(place) {
            Some(_) => Argument::Address(OperandBuffer::Input(place)),
            None => Argument::Null,
        }
    }
}

/// `ConvShape` in `conv.cuh`, and `WindowShape` in `windows.cuh`.
#[derive(Debug)]
struct ConvShape<'a> {
    op: &'a Conv,
    images: u32,
    channels: u32,
    groups: u32,
    /// Output channels of a group, output pixels of all images, and elements of a filter.
    m: u32,
    n: u32,
    k: u32,
    height: u32,
    width: u32,
    out_width: u32,
    out_pixels: u32,
    kernel: [u32; 2],
    image_stride: u64,
    group_stride: u64,
    vector_type: u32,
}

impl<'a> ConvShape<'a> {
    fn new(
        op: &'a Conv,
        x: &TensorType,
        w: &TensorType,
        output: &TensorType,
        vector_type: u32,
    ) -> Result<Self, String> {
        let four = |tensor: &TensorType, layout: ImageLayout| {
            <[usize; 4]>::try_from(tensor.dims()).ok().map(|dims| layout.channels_first(dims))
        };
        let (
            Some([images, channels, height, width]),
            Some([filters, depth, kernel_h, kernel_w]),
            Some([out_images, out_channels, out_height, out_width]),
        ) = (four(x, op.images), four(w, op.filters), four(output, op.images))
        else {
            return Err(format!("of {x} with {w} to {output}, which are not all of four dimensions"));
        };
        if op.images != op.filters {
            return Err("of images and filters in different layouts".to_owned());
        }
        let is_last = op.images == ImageLayout::ChannelsLast;
        let pack = 16 / float_bytes(output.element_type()) as usize;
        if is_last && (op.groups != 1 || !channels.is_multiple_of(pack)) {
            return Err(format!("of {x} with {w} in {} groups, with channels last", op.groups));
        }
        let fits = op.groups > 0
            && filters % op.groups == 0
            && depth.checked_mul(op.groups) == Some(channels)
            && (out_images, out_channels) == (images, filters)
            && out_side(op, 0, height, kernel_h) == Some(out_height)
            && out_side(op, 1, width, kernel_w) == Some(out_width);
        if !fits {
            return Err(format!(
                "of {x} with {w} in {} groups to {output}, which do not fit together",
                op.groups
            ));
        }
        let pads = op.pads_begin.iter().chain(&op.pads_end).max().copied().unwrap_or(0);
        if height.max(width).saturating_add(2 * pads.min(SIDE_MAX)) > SIDE_MAX {
            return Err(format!("of {x} with its padding, a side of which is over {SIDE_MAX}"));
        }
        product("elements of a group's picture", &[depth, height, width])?;
        Ok(Self {
            op,
            images: size("batch", images)?,
            channels: size("channel count", channels)?,
            groups: blocks("groups", op.groups)?,
            m: size("filter count", filters / op.groups)?,
            n: size("pixel count", product("pixels", &[images, out_height, out_width])?)?,
            k: size("filter", product("elements of a filter", &[depth, kernel_h, kernel_w])?)?,
            height: size("height", height)?,
            width: size("width", width)?,
            out_width: size("width", out_width)?,
            out_pixels: size("picture", out_height * out_width)?,
            kernel: [size("kernel", kernel_h)?, size("kernel", kernel_w)?],
            image_stride: (channels * height * width) as u64,
            group_stride: (depth * height * width) as u64,
            vector_type,
        })
    }

    /// Whether the images in memory already have the layout of the matrix.
    fn is_pointwise(&self) -> bool {
        let one = [1, 1];
        let none = [0, 0];
        self.kernel == [1, 1]
            && self.op.strides == one
            && self.op.pads_begin == none
            && self.op.pads_end == none
    }

    fn fields(&self, k_part: u32, tiles_m: u32, element_bytes: u32) -> Fields {
        let pack = 16 / element_bytes;
        let pair = |pair: [usize; 2]| pair.map(|value| value as u32);
        let ([stride_h, stride_w], [dilation_h, dilation_w]) =
            (pair(self.op.strides), pair(self.op.dilations));
        let [pad_h, pad_w] = pair(self.op.pads_begin).map(u32::cast_signed);
        let [kernel_h, kernel_w] = self.kernel;
        Fields::default()
            .u64(self.image_stride)
            .u64(self.group_stride)
            .u32(self.height)
            .u32(self.width)
            .u32(self.out_width)
            .u32(self.out_pixels)
            .u32(stride_h)
            .u32(stride_w)
            .i32(pad_h)
            .i32(pad_w)
            .u32(dilation_h)
            .u32(dilation_w)
            .u32(kernel_w)
            .u32(kernel_h * kernel_w)
            .u32(self.k)
            .u32(k_part)
            .u32(tiles_m)
            .u32(u32::from(self.k.is_multiple_of(pack)))
            .u32(u32::from(self.out_pixels.is_multiple_of(pack)))
            .u32(self.images)
            .fields(&self.output().fields())
    }

    /// The fields of `WindowShape` before its output.
    fn window_fields(&self, k_part: u32) -> Fields {
        let pair = |pair: [usize; 2]| pair.map(|value| value as u32);
        let ([stride_h, stride_w], [dilation_h, dilation_w]) =
            (pair(self.op.strides), pair(self.op.dilations));
        let [pad_h, pad_w] = pair(self.op.pads_begin).map(u32::cast_signed);
        let [_, kernel_w] = self.kernel;
        Fields::default()
            .u64(self.image_stride)
            .u32(self.height)
            .u32(self.width)
            .u32(self.channels)
            .u32(self.out_width)
            .u32(self.out_pixels)
            .u32(stride_h)
            .u32(stride_w)
            .i32(pad_h)
            .i32(pad_w)
            .u32(dilation_h)
            .u32(dilation_w)
            .u32(kernel_w)
            .u32(self.k)
            .u32(k_part)
    }

    /// The output with channels last: a matrix with a row for each pixel.
    fn output_channels_last(&self) -> EpilogueOutput {
        EpilogueOutput {
            z_stride: 0,
            image_stride: 0,
            m: self.n,
            n: self.m,
            image_columns: self.m,
            vectors_along_n: true,
            vector_z_stride: 0,
            vector_type: self.vector_type,
            alpha: 1.0,
            activation: self.op.activation,
        }
    }

    fn output(&self) -> EpilogueOutput {
        let group_outputs = u64::from(self.m) * u64::from(self.out_pixels);
        EpilogueOutput {
            z_stride: group_outputs,
            image_stride: group_outputs * u64::from(self.groups),
            m: self.m,
            n: self.n,
            image_columns: self.out_pixels,
            vectors_along_n: false,
            vector_z_stride: self.m,
            vector_type: self.vector_type,
            alpha: 1.0,
            activation: self.op.activation,
        }
    }
}

/// Number of windows along a direction.
fn out_side(op: &Conv, along: usize, side: usize, kernel: usize) -> Option<usize> {
    let window = kernel.checked_sub(1)?.checked_mul(op.dilations[along])?.checked_add(1)?;
    let padded = side.checked_add(op.pads_begin[along])?.checked_add(op.pads_end[along])?;
    padded.checked_sub(window)?.checked_div(op.strides[along]).map(|steps| steps + 1)
}
