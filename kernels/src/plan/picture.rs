//! Image operations: pooling, local response normalisation, resizing.

use super::limits::{product, size, walk};
use super::{LaunchPlan, Operands, float_bytes, float_name, has_elements, same_type};
use crate::fields::Fields;
use crate::launch::{Argument, Kernel, Launch, LaunchCost, OperandBuffer};
use crate::{KernelModule, KernelTarget};
use weir_graph::{Coordinates, ImageLayout, Lrn, Nearest, PoolKind, Pooling, Resize, ResizeMode, TensorType};

/// Threads per block.
const THREADS: u32 = 256;

pub(super) fn pool(
    op: &Pooling,
    operands: Operands<'_>,
    target: &KernelTarget,
) -> Result<LaunchPlan, String> {
    let pictures = Pictures::from_operands(operands, op.layout)?;
    let kind = match op.kind {
        PoolKind::Max => 0,
        PoolKind::Average { count_padding: false } => 1,
        PoolKind::Average { count_padding: true } => 2,
    };
    // Coordinates in an image, including padding, must fit 31 bits.
    let reach = |along: usize, side: u32, out: u32| {
        let window = op.kernel[along].saturating_mul(op.dilations[along]);
        let steps = (out as usize).saturating_mul(op.strides[along]);
        let all = [op.pads_begin[along], op.pads_end[along], side as usize, window];
        size("window", all.into_iter().fold(steps, usize::saturating_add))
    };
    reach(0, pictures.height, pictures.out_height)?;
    reach(1, pictures.width, pictures.out_width)?;
    let pair =
        |fields: Fields, pair: [usize; 2]| pair.into_iter().fold(fields, |fields, at| fields.u32(at as u32));
    let fields = [op.kernel, op.strides, op.pads_begin, op.pads_end, op.dilations]
        .into_iter()
        .fold(pictures.fields(), pair)
        .u32(kind)
        .u32(pictures.channels);
    let flops = pictures.count * (op.kernel[0] * op.kernel[1]) as u64;
    let pack = 16 / float_bytes(operands.output()?.element_type());
    let is_packed = pictures.channels.is_multiple_of(pack);
    pictures.launch(
        if is_packed { "pool_packed" } else { "pool" },
        vec![Argument::Bytes(fields.bytes())],
        LaunchCost { flops, bytes: operands.bytes() },
        target,
    )
}

pub(super) fn resize(
    op: &Resize,
    operands: Operands<'_>,
    target: &KernelTarget,
) -> Result<LaunchPlan, String> {
    let pictures = Pictures::from_operands(operands, ImageLayout::ChannelsFirst)?;
    if pictures.count > 0 && (pictures.height == 0 || pictures.width == 0) {
        return Err("of pictures without pixels".to_owned());
    }
    let coordinates = match op.coordinates {
        Coordinates::HalfPixel => 0,
        Coordinates::HalfPixelSymmetric => 1,
        Coordinates::PytorchHalfPixel => 2,
        Coordinates::AlignCorners => 3,
        Coordinates::Asymmetric => 4,
        Coordinates::TfHalfPixelForNearest => 5,
    };
    let (nearest, linear) = match op.mode {
        ResizeMode::Nearest(Nearest::RoundPreferFloor) => (0, 0),
        ResizeMode::Nearest(Nearest::RoundPreferCeil) => (1, 0),
        ResizeMode::Nearest(Nearest::Floor) => (2, 0),
        ResizeMode::Nearest(Nearest::Ceil) => (3, 0),
        ResizeMode::Linear => (0, 1),
    };
    let [scale_h, scale_w] = op.scales;
    let fields = pictures.fields().f32(scale_h).f32(scale_w).u32(coordinates).u32(nearest).u32(linear);
    let cost =
        LaunchCost { flops: pictures.count * if linear == 1 { 16 } else { 4 }, bytes: operands.bytes() };
    pictures.launch("resize", vec![Argument::Bytes(fields.bytes())], cost, target)
}

pub(super) fn lrn(op: &Lrn, operands: Operands<'_>, target: &KernelTarget) -> Result<LaunchPlan, String> {
    let x = operands.needed(0)?;
    let output = operands.output()?;
    same_type(Some(x), output.element_type(), "picture")?;
    has_elements(Some(x), output.elements(), "picture")?;
    let [_, channels, pixels @ ..] = x.dims() else { return Err(format!("of {x}, which has no channels")) };
    let count = product("elements", x.dims())? as u64;
    if count == 0 {
        return Ok(LaunchPlan::default());
    }
    if op.size == 0 {
        return Err("over no channels".to_owned());
    }
    Ok(LaunchPlan::from_launch(Launch {
        kernel: Kernel {
            module: KernelModule::Picture,
            name: format!("lrn_{}", float_name(x.element_type())?),
        },
        grid: walk(count, THREADS, target),
        block: [THREADS, 1, 1],
        shared_bytes: 0,
        arguments: vec![
            Argument::Address(OperandBuffer::Output(0)),
            Argument::Address(OperandBuffer::Input(0)),
            Argument::U64(count),
            Argument::U32(size("channel count", *channels)?),
            Argument::U32(size("picture", product("pixels", pixels)?)?),
            Argument::U32(size("sum", op.size)?),
            Argument::F32(op.alpha),
            Argument::F32(op.beta),
            Argument::F32(op.bias),
        ],
        cost: LaunchCost { flops: count * (2 * op.size as u64 + 8), bytes: operands.bytes() },
        chain: None,
    }))
}

/// Sizes shared by pooling and resizing: the first fields of `PoolShape` and `ResizeShape`.
struct Pictures {
    name: &'static str,
    count: u64,
    /// Number of channels between neighbours of a line.
    channels: u32,
    height: u32,
    width: u32,
    out_height: u32,
    out_width: u32,
}

impl Pictures {
    fn from_operands(operands: Operands<'_>, layout: ImageLayout) -> Result<Self, String> {
        let x = operands.needed(0)?;
        let output = operands.output()?;
        same_type(Some(x), output.element_type(), "picture")?;
        let sides = |tensor: &TensorType| match <[usize; 4]>::try_from(tensor.dims()) {
            Ok(dims) => Ok(layout.channels_first(dims)),
            Err(_) => Err(format!("of {tensor}, which is not of four dimensions")),
        };
        let ([images, channels, height, width], [out_images, out_channels, out_height, out_width]) =
            (sides(x)?, sides(output)?);
        if (images, channels) != (out_images, out_channels) {
            return Err(format!("from {x} to {output}"));
        }
        Ok(Self {
            name: float_name(x.element_type())?,
            count: product("elements", output.dims())? as u64,
            channels: match layout {
                ImageLayout::ChannelsFirst => 1,
                ImageLayout::ChannelsLast => size("channel count", channels)?,
            },
            height: size("height", height)?,
            width: size("width", width)?,
            out_height: size("height", out_height)?,
            out_width: size("width", out_width)?,
        })
        .and_then(|pictures| {
            product("elements of a picture", &[height, width, pictures.channels as usize]).map(|_| pictures)
        })
    }

    fn fields(&self) -> Fields {
        Fields::default()
            .u64(self.count)
            .u32(self.height)
            .u32(self.width)
            .u32(self.out_height)
            .u32(self.out_width)
    }

    fn launch(
        &self,
        what: &str,
        rest: Vec<Argument<OperandBuffer>>,
        cost: LaunchCost,
        target: &KernelTarget,
    ) -> Result<LaunchPlan, String> {
        if self.count == 0 {
            return Ok(LaunchPlan::default());
        }
        let buffers =
            [Argument::Address(OperandBuffer::Output(0)), Argument::Address(OperandBuffer::Input(0))];
        Ok(LaunchPlan::from_launch(Launch {
            kernel: Kernel { module: KernelModule::Picture, name: format!("{what}_{}", self.name) },
            grid: walk(self.count, THREADS, target),
            block: [THREADS, 1, 1],
            shared_bytes: 0,
            arguments: buffers.into_iter().chain(rest).collect(),
            cost,
            chain: None,
        }))
    }
}
