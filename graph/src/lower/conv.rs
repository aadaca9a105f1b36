//! Convolutions and pooling, in one or two dimensions.

mod transpose;
pub(super) use transpose::conv_transpose;

use super::call::LoweringCall;
use super::functions::{X, apply, number, with};
use super::{Lowering, Made};
use crate::GraphError;
use crate::ir::{
    Activation, Binary, Conv, ImageLayout, Instruction, NumberType, Op, PoolKind, Pooling, Unary, ValueId,
    ValueSource,
};

/// A sliding window over an image.
struct Window {
    kernel: [usize; 2],
    strides: [usize; 2],
    dilations: [usize; 2],
    pads_begin: [usize; 2],
    pads_end: [usize; 2],
    out: [usize; 2],
}

pub(super) fn conv(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let w = call.input(1)?;
    let bias = call.optional(2);
    Ok(vec![Some(lowering.conv(call, x, w, bias)?)])
}

/// Lower a convolution with an activation, and optionally a summand before it.
pub(super) fn fused(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let w = call.input(1)?;
    let bias = call.optional(2);
    let mut y = lowering.conv(call, x, w, bias)?;
    let element_type = lowering.element_type(y);
    let mut operands = vec![y];
    let mut code = vec![Instruction::Load(0)];
    if let Some(residual) = call.optional(3) {
        operands.push(residual);
        code.extend([Instruction::Load(1), with(Binary::Add)]);
    }
    let parameter = |index: usize, default| {
        call.floats("activation_params").and_then(|all| all.get(index)).copied().unwrap_or(default)
    };
    let activation = match call.text("activation", "")? {
        "" => None,
        "Relu" => Some(Activation::Relu),
        "Sigmoid" => Some(Activation::Sigmoid),
        "Tanh" => Some(Activation::Tanh),
        "LeakyRelu" => Some(Activation::LeakyRelu(parameter(0, 0.01))),
        "Clip" => {
            Some(Activation::Clip { min: parameter(0, f32::NEG_INFINITY), max: parameter(1, f32::INFINITY) })
        }
        "HardSigmoid" => Some(Activation::HardSigmoid { alpha: parameter(0, 0.2), beta: parameter(1, 0.5) }),
        other => return Err(call.unsupported(format!("the activation {other:?} is"))),
    };
    code.extend(activation.map(|activation| Instruction::Unary(Unary::Activate(activation))));
    if code.len() > 1 {
        y = lowering.elementwise(call, NumberType::Float, code, &operands, element_type)?;
    }
    Ok(vec![Some(y)])
}

pub(super) fn pool(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let kind = match call.node.operator.as_str() {
        "MaxPool" => PoolKind::Max,
        _ => PoolKind::Average { count_padding: call.flag("count_include_pad") },
    };
    let (y, _) = lowering.pooled(call, x, kind)?;
    Ok(vec![Some(y), None])
}

/// Lower `LpPool`: the norm of each window, from the mean of the powers of its elements.
pub(super) fn lp_pool(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    if call.flag("ceil_mode") {
        return Err(call.unsupported("rounding up is"));
    }
    let x = call.input(0)?;
    let element_type = lowering.element_type(x);
    let order = number(call.int("p").unwrap_or(2) as f32);
    let code = vec![X, apply(Unary::Abs), order, with(Binary::Pow)];
    let powers = lowering.elementwise(call, NumberType::Float, code, &[x], element_type)?;
    let (means, area) = lowering.pooled(call, powers, PoolKind::Average { count_padding: true })?;
    let root = [number(1.0), order, with(Binary::Div), with(Binary::Pow)];
    let code = [&[X, number(area as f32), with(Binary::Mul)], &root[..]].concat();
    Ok(vec![Some(lowering.elementwise(call, NumberType::Float, code, &[means], element_type)?)])
}

impl Lowering<'_> {
    /// Pool windows; also returns the number of elements in a window.
    fn pooled(
        &mut self,
        call: &LoweringCall<'_>,
        x: ValueId,
        kind: PoolKind,
    ) -> Result<(ValueId, usize), GraphError> {
        let dims = self.dims(x);
        let (picture, spatial) = self.as_picture(call, x)?;
        let &[batch, channels, height, width]: &[usize; 4] =
            picture.1.as_slice().try_into().map_err(|_| call.invalid("its input is not an image"))?;
        let kernel = call.sizes("kernel_shape", spatial, 1)?;
        let window = Window::new(call, kernel, [height, width], spatial, call.flag("ceil_mode"))?;
        let element_type = self.element_type(x);
        if NumberType::for_element_type(element_type) == NumberType::Integer && kind != PoolKind::Max {
            return Err(call.invalid(format!("elements of type {element_type} have no mean")));
        }
        let output = call.tensor(element_type, [batch, channels, window.out[0], window.out[1]])?;
        let Window { kernel, strides, dilations, pads_begin, pads_end, out } = window;
        let layout = ImageLayout::ChannelsFirst;
        let op = Pooling { kind, kernel, strides, pads_begin, pads_end, dilations, layout };
        let y = self.emit(Op::Pool(op), vec![Some(picture.0)], output);
        Ok((self.view(call, y, with_picture(&dims, channels, out))?, kernel[0] * kernel[1]))
    }
}

impl Lowering<'_> {
    pub(super) fn conv(
        &mut self,
        call: &LoweringCall<'_>,
        x: ValueId,
        w: ValueId,
        bias: Option<ValueId>,
    ) -> Result<ValueId, GraphError> {
        let element_type = self.element_type(x);
        let all_alike = [Some(w), bias].into_iter().flatten().all(|id| self.element_type(id) == element_type);
        if !all_alike || NumberType::for_element_type(element_type) == NumberType::Integer {
            return Err(
                call.unsupported(format!("elements of type {element_type}, or of several types, are"))
            );
        }
        let dims = self.dims(x);
        let ((x, x_dims), spatial) = self.as_picture(call, x)?;
        let ((w, w_dims), _) = self.as_picture(call, w)?;
        let filter_layout = self.filter_layout(w);
        let &[batch, channels, height, width] = four(call, &x_dims)?;
        let [filters, group_channels, kh, kw] = filter_layout.channels_first(*four(call, &w_dims)?);
        let groups = usize::try_from(call.int("group").unwrap_or(1)).unwrap_or(0);
        if groups == 0 || filters % groups != 0 || group_channels.checked_mul(groups) != Some(channels) {
            let why = format!(
                "{filters} filters of {group_channels} channels do not fit {channels} channels in {groups} groups"
            );
            return Err(call.invalid(why));
        }
        if bias.is_some_and(|bias| self.tensor(bias).dims() != [filters]) {
            return Err(call.invalid(format!("the bias is not one number for each of {filters} filters")));
        }
        if call.ints("kernel_shape").is_some() && call.sizes("kernel_shape", spatial, kh)? != [kh, kw] {
            return Err(call.invalid(format!("its filters are not of the size {kh} by {kw}")));
        }
        let window = Window::new(call, [kh, kw], [height, width], spatial, false)?;
        let output = call.tensor(element_type, [batch, filters, window.out[0], window.out[1]])?;
        let Window { strides, dilations, pads_begin, pads_end, out, .. } = window;
        let op = Conv {
            groups,
            strides,
            pads_begin,
            pads_end,
            dilations,
            activation: None,
            images: ImageLayout::ChannelsFirst,
            filters: filter_layout,
        };
        let y = self.emit(Op::Conv(op), vec![Some(x), Some(w), bias, None, None, None], output);
        self.view(call, y, with_picture(&dims, filters, out))
    }

    /// Layout in which the model stores the filters `w`.
    fn filter_layout(&self, w: ValueId) -> ImageLayout {
        match self.graph.value(w).source {
            ValueSource::Weight(index) => {
                self.model.weights().get(index as usize).map(|weight| weight.layout).unwrap_or_default()
            }
            _ => ImageLayout::ChannelsFirst,
        }
    }

    /// View a value of three or four dimensions as four; returns the value, its four dimensions,
    /// and the number of spatial dimensions.
    fn as_picture(
        &mut self,
        call: &LoweringCall<'_>,
        id: ValueId,
    ) -> Result<((ValueId, Vec<usize>), usize), GraphError> {
        let dims = self.dims(id);
        match dims.as_slice() {
            [_, _, _, _] => Ok(((id, dims), 2)),
            &[batch, channels, width] => {
                let dims = vec![batch, channels, 1, width];
                Ok(((self.view(call, id, dims.clone())?, dims), 1))
            }
            _ => Err(call.unsupported(format!("{} dimensions are", dims.len()))),
        }
    }
}

/// Dimensions of the output, in the rank of the input.
fn with_picture(dims: &[usize], channels: usize, out: [usize; 2]) -> Vec<usize> {
    let batch = dims.first().copied().unwrap_or(1);
    if dims.len() == 3 { vec![batch, channels, out[1]] } else { vec![batch, channels, out[0], out[1]] }
}

fn four<'a>(call: &LoweringCall<'_>, dims: &'a [usize]) -> Result<&'a [usize; 4], GraphError> {
    dims.try_into().map_err(|_| call.invalid("its input is not an image"))
}

impl Window {
    fn new(
        call: &LoweringCall<'_>,
        kernel: [usize; 2],
        size: [usize; 2],
        spatial: usize,
        ceil: bool,
    ) -> Result<Self, GraphError> {
        let strides = call.sizes("strides", spatial, 1)?;
        let dilations = call.sizes("dilations", spatial, 1)?;
        if kernel.contains(&0) || strides.contains(&0) || dilations.contains(&0) || size.contains(&0) {
            return Err(call.invalid("a window, step or picture of size 0"));
        }
        let (mut pads_begin, mut pads_end) = pads(call, spatial)?;
        let mut out = [0; 2];
        for axis in 0..2 {
            let reach =
                (kernel[axis] - 1).checked_mul(dilations[axis]).and_then(|reach| reach.checked_add(1));
            let reach = reach.ok_or_else(|| call.invalid("its window is larger than can be"))?;
            match call.text("auto_pad", "NOTSET")? {
                "NOTSET" | "VALID" => {}
                same => {
                    let count = size[axis].div_ceil(strides[axis]);
                    let total = ((count - 1) * strides[axis] + reach).saturating_sub(size[axis]);
                    let less = total / 2;
                    let more = total - total / 2;
                    (pads_begin[axis], pads_end[axis]) =
                        if same == "SAME_LOWER" { (more, less) } else { (less, more) };
                }
            }
            let padded = size[axis] + pads_begin[axis] + pads_end[axis];
            let room = padded.checked_sub(reach).ok_or_else(|| {
                call.invalid(format!("a window of {reach} does not fit a picture of {padded}"))
            })?;
            out[axis] = 1 + if ceil { room.div_ceil(strides[axis]) } else { room / strides[axis] };
            // A window must not begin beyond the image and its leading padding.
            if ceil && (out[axis] - 1) * strides[axis] >= size[axis] + pads_begin[axis] {
                out[axis] -= 1;
            }
        }
        Ok(Self { kernel, strides, dilations, pads_begin, pads_end, out })
    }
}

/// Padding before and after the image.
fn pads(call: &LoweringCall<'_>, spatial: usize) -> Result<([usize; 2], [usize; 2]), GraphError> {
    let given = call.ints("pads").unwrap_or(&[]);
    let sizes: Vec<usize> = given
        .iter()
        .map(|pad| usize::try_from(*pad).ok().filter(|pad| *pad <= super::call::SIZE_MAX))
        .collect::<Option<_>>()
        .ok_or_else(|| call.unsupported(format!("the padding {given:?} is")))?;
    match (sizes.as_slice(), spatial) {
        ([], _) => Ok(([0; 2], [0; 2])),
        (&[left, right], 1) => Ok(([0, left], [0, right])),
        (&[top, left, bottom, right], 2) => Ok(([top, left], [bottom, right])),
        _ => Err(call.invalid(format!("the padding {given:?} is for another number of dimensions"))),
    }
}
