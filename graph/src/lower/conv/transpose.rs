//! Transposed convolutions, as convolutions of smaller images.
//!
//! With a stride `s`, a transposed convolution has `s * s` phases: the output elements at `s * q + r`
//! depend only on the filter's elements at `s * a + r`. Each phase is a convolution of the input
//! with these elements, reversed. All phases are computed by one convolution with `s * s` times as
//! many filters, whose channels become pixels afterwards.
//!
//! Dilated filters do not split into phases. The input is then spread out with zeroes in between.

use super::{four, pads, with_picture};
use crate::GraphError;
use crate::ir::{BlockLayout, Conv, Copy, CopyPart, ImageLayout, NumberType, Op, Scalar, ValueId};
use crate::lower::call::LoweringCall;
use crate::lower::{Lowering, Made};
use crate::tensor_type::row_major;

pub(in crate::lower) fn conv_transpose(lowering: &mut Lowering<'_>, call: &LoweringCall<'_>) -> Made {
    let x = call.input(0)?;
    let w = call.input(1)?;
    let bias = call.optional(2);
    let element_type = lowering.element_type(x);
    let all_alike = [Some(w), bias].into_iter().flatten().all(|id| lowering.element_type(id) == element_type);
    if !all_alike || NumberType::for_element_type(element_type) == NumberType::Integer {
        return Err(call.unsupported(format!("elements of type {element_type}, or of several types, are")));
    }
    let dims = lowering.dims(x);
    let ((x, x_dims), spatial) = lowering.as_picture(call, x)?;
    let ((w, w_dims), _) = lowering.as_picture(call, w)?;
    let &[batch, channels, height, width] = four(call, &x_dims)?;
    let &[w_channels, group_filters, kh, kw] = four(call, &w_dims)?;
    let groups = usize::try_from(call.int("group").unwrap_or(1)).unwrap_or(0);
    if groups == 0
        || w_channels != channels
        || channels % groups != 0
        || [batch, channels, group_filters].contains(&0)
    {
        let why = format!("filters of {w_dims:?} in {groups} groups do not fit an image of {x_dims:?}");
        return Err(call.invalid(why));
    }
    let filters = group_filters.checked_mul(groups).ok_or_else(|| call.invalid("too many filters"))?;
    if bias.is_some_and(|bias| lowering.tensor(bias).dims() != [filters]) {
        return Err(call.invalid(format!("the bias is not one number for each of {filters} filters")));
    }
    if call.ints("kernel_shape").is_some() && call.sizes("kernel_shape", spatial, kh)? != [kh, kw] {
        return Err(call.invalid(format!("its filters are not of the size {kh} by {kw}")));
    }
    let window = TransposedWindow::new(call, [kh, kw], [height, width], spatial)?;
    let problem = Problem { x, w, bias, groups, filters, size: [height, width] };
    let y = if window.dilations == [1, 1] {
        lowering.in_phases(call, &problem, &window)?
    } else {
        lowering.spread_out(call, &problem, &window)?
    };
    let y = lowering.cropped_picture(call, y, window.pads_begin, window.out)?;
    Ok(vec![Some(lowering.view(call, y, with_picture(&dims, filters, window.out))?)])
}

/// Operands of a transposed convolution, as images.
struct Problem {
    x: ValueId,
    /// Filters of `[channels, filters / groups, height, width]`.
    w: ValueId,
    bias: Option<ValueId>,
    groups: usize,
    filters: usize,
    /// Height and width of the images.
    size: [usize; 2],
}

struct TransposedWindow {
    kernel: [usize; 2],
    strides: [usize; 2],
    dilations: [usize; 2],
    /// Elements cut off above and left of the output.
    pads_begin: [usize; 2],
    out: [usize; 2],
}

impl TransposedWindow {
    fn new(
        call: &LoweringCall<'_>,
        kernel: [usize; 2],
        size: [usize; 2],
        spatial: usize,
    ) -> Result<Self, GraphError> {
        let strides = call.sizes("strides", spatial, 1)?;
        let dilations = call.sizes("dilations", spatial, 1)?;
        let mut more = call.sizes("output_padding", spatial, 0)?;
        if [kernel, strides, dilations, size].iter().any(|sizes| sizes.contains(&0)) {
            return Err(call.invalid("a window, step or picture of size 0"));
        }
        if spatial == 1 {
            more[0] = 0;
        }
        let wanted = match call.ints("output_shape") {
            // Some models also state the batch and the channels.
            Some(shape) if shape.len() >= spatial => {
                let sizes = shape.iter().rev().take(spatial).map(|size| usize::try_from(*size).ok());
                let mut sizes = sizes.collect::<Option<Vec<_>>>().unwrap_or_default().into_iter();
                let width = sizes.next();
                let height = sizes.next().unwrap_or(1);
                Some([height, width.ok_or_else(|| call.invalid(format!("an output of {shape:?}")))?])
            }
            Some(shape) => return Err(call.invalid(format!("an output of {shape:?}"))),
            None => None,
        };
        let auto = call.text("auto_pad", "NOTSET")?;
        let (mut pads_begin, pads_end) = match (wanted, auto) {
            (None, "NOTSET") => pads(call, spatial)?,
            _ => ([0; 2], [0; 2]),
        };
        let mut out = [0; 2];
        for axis in 0..2 {
            let whole = (|| {
                let reach = (kernel[axis] - 1).checked_mul(dilations[axis])?.checked_add(1)?;
                (size[axis] - 1).checked_mul(strides[axis])?.checked_add(reach)?.checked_add(more[axis])
            })();
            let whole = whole.ok_or_else(|| call.invalid("its output is larger than can be"))?;
            let target = match (wanted, auto) {
                (Some(wanted), _) => Some(wanted[axis]),
                (None, "SAME_UPPER" | "SAME_LOWER") => Some(size[axis] * strides[axis]),
                _ => None,
            };
            let cut = match target {
                Some(target) => {
                    let total = whole.saturating_sub(target);
                    let less = total / 2;
                    pads_begin[axis] = if auto == "SAME_UPPER" { less } else { total - less };
                    total
                }
                None => pads_begin[axis] + pads_end[axis],
            };
            out[axis] = match wanted {
                Some(wanted) => wanted[axis],
                None => whole.saturating_sub(cut),
            };
            if out[axis] == 0 {
                return Err(call.invalid(format!("{cut} elements are cut off an output of {whole}")));
            }
        }
        Ok(Self { kernel, strides, dilations, pads_begin, out })
    }

    /// Index behind the last element that is kept of the output before cutting.
    fn end(&self, axis: usize) -> usize {
        self.pads_begin[axis] + self.out[axis]
    }
}

/// A convolution with a step of 1, whose output begins with the first element that a filter reaches.
struct PlainConv {
    groups: usize,
    kernel: [usize; 2],
    dilations: [usize; 2],
    /// Height and width of the input.
    size: [usize; 2],
    /// Smallest height and width of the output.
    steps: [usize; 2],
}

impl Lowering<'_> {
    /// Compute the output before cutting as one convolution per phase; it may be larger than needed.
    fn in_phases(
        &mut self,
        call: &LoweringCall<'_>,
        problem: &Problem,
        window: &TransposedWindow,
    ) -> Result<ValueId, GraphError> {
        let [sh, sw] = window.strides;
        // Number of the filter's elements in a phase; missing elements are 0.
        let taps = [0, 1].map(|axis| window.kernel[axis].div_ceil(window.strides[axis]));
        let steps = [0, 1].map(|axis| window.end(axis).div_ceil(window.strides[axis]));
        let w = self.phases_of_filters(call, problem, window, taps)?;
        let phases = sh * sw;
        let bias = match problem.bias {
            Some(bias) if phases > 1 => {
                let column = self.view(call, bias, [problem.filters, 1])?;
                let all = self.strided(call, column, &[problem.filters, phases], 0, &[1, 0])?;
                Some(self.view(call, all, [problem.filters * phases])?)
            }
            bias => bias,
        };
        let Problem { x, groups, size, .. } = *problem;
        let plain = PlainConv { groups, kernel: taps, dilations: [1, 1], size, steps };
        let made = self.convolved(call, [x, w], bias, &plain)?;
        if phases == 1 {
            return Ok(made);
        }
        let dims = self.dims(made);
        let &[batch, _, rows, columns] = four(call, &dims)?;
        let split = self.view(call, made, [batch, problem.filters, sh, sw, rows, columns])?;
        let moved = self.transposed(call, split, &[0, 1, 4, 2, 5, 3])?;
        self.view(call, moved, [batch, problem.filters, rows * sh, columns * sw])
    }

    /// Rearrange filters to `[filters * phases, channels / groups, taps, taps]`, with the taps of
    /// each phase reversed.
    fn phases_of_filters(
        &mut self,
        call: &LoweringCall<'_>,
        problem: &Problem,
        window: &TransposedWindow,
        [th, tw]: [usize; 2],
    ) -> Result<ValueId, GraphError> {
        let [sh, sw] = window.strides;
        let [kh, kw] = window.kernel;
        let &[channels, group_filters, _, _] = four(call, &self.dims(problem.w))?;
        let groups = problem.groups;
        let pads = [[0, 0], [0, 0], [0, (th * sh - kh) as i64], [0, (tw * sw - kw) as i64]];
        let w = self.padded(call, problem.w, &pads, Scalar::Float(0.0))?;
        let pairs = channels * group_filters;
        let split = [pairs, th, sh, tw, sw];
        let w = self.view(call, w, split)?;
        // The taps are read backwards.
        let steps = row_major(&split).into_iter().map(|step| isize::try_from(step).unwrap_or(0));
        let steps: Vec<isize> = steps.collect();
        let &[pair, tap_h, phase_h, tap_w, phase_w] = steps.as_slice() else {
            return Err(call.invalid("its filters are not images"));
        };
        let offset = (th - 1) * sh * tw * sw + (tw - 1) * sw;
        let strides = [pair, phase_h, phase_w, -tap_h, -tap_w];
        let w = self.strided(call, w, &[pairs, sh, sw, th, tw], offset, &strides)?;
        let w = self.view(call, w, [groups, channels / groups, group_filters, sh * sw, th * tw])?;
        let w = self.transposed(call, w, &[0, 2, 3, 1, 4])?;
        self.view(call, w, [problem.filters * sh * sw, channels / groups, th, tw])
    }

    /// Compute the output before cutting as a convolution of the input with zeroes in between.
    fn spread_out(
        &mut self,
        call: &LoweringCall<'_>,
        problem: &Problem,
        window: &TransposedWindow,
    ) -> Result<ValueId, GraphError> {
        let dims = self.dims(problem.x);
        let &[batch, channels, height, width] = four(call, &dims)?;
        let size = [0, 1].map(|axis| (problem.size[axis] - 1) * window.strides[axis] + 1);
        let output = call.tensor(self.element_type(problem.x), [batch, channels, size[0], size[1]])?;
        let signed = |stride: usize| isize::try_from(stride).unwrap_or(isize::MAX);
        let part = CopyPart {
            input: 0,
            dims: vec![batch * channels, height, width],
            from: BlockLayout { offset: 0, strides: vec![signed(height * width), signed(width), 1] },
            to: BlockLayout {
                offset: 0,
                strides: vec![
                    signed(size[0] * size[1]),
                    signed(window.strides[0] * size[1]),
                    signed(window.strides[1]),
                ],
            },
        };
        let copy = Copy { fill: Some(Scalar::Float(0.0)), parts: vec![part] };
        let x = self.emit(Op::Copy(copy), vec![Some(problem.x)], output);
        let whole = TransposedWindow { strides: [1, 1], ..*window };
        let w = self.phases_of_filters(call, problem, &whole, window.kernel)?;
        let steps = [window.end(0), window.end(1)];
        let TransposedWindow { kernel, dilations, .. } = *window;
        let plain = PlainConv { groups: problem.groups, kernel, dilations, size, steps };
        self.convolved(call, [x, w], problem.bias, &plain)
    }

    /// Add a convolution, with as much padding as its output needs.
    fn convolved(
        &mut self,
        call: &LoweringCall<'_>,
        [x, w]: [ValueId; 2],
        bias: Option<ValueId>,
        plain: &PlainConv,
    ) -> Result<ValueId, GraphError> {
        let PlainConv { groups, kernel, dilations, size, steps } = *plain;
        let pads_begin = [0, 1].map(|axis| (kernel[axis] - 1) * dilations[axis]);
        let pads_end = [0, 1].map(|axis| steps[axis].saturating_sub(size[axis]));
        let out = [0, 1].map(|axis| size[axis] + pads_end[axis]);
        let batch = self.dims(x).first().copied().unwrap_or(0);
        let filters = self.dims(w).first().copied().unwrap_or(0);
        let output = call.tensor(self.element_type(x), [batch, filters, out[0], out[1]])?;
        let op = Conv {
            groups,
            strides: [1, 1],
            pads_begin,
            pads_end,
            dilations,
            activation: None,
            images: ImageLayout::ChannelsFirst,
            filters: ImageLayout::ChannelsFirst,
        };
        Ok(self.emit(Op::Conv(op), vec![Some(x), Some(w), bias, None, None, None], output))
    }

    /// Cut an image to `size`, from `start` on.
    fn cropped_picture(
        &mut self,
        call: &LoweringCall<'_>,
        y: ValueId,
        start: [usize; 2],
        size: [usize; 2],
    ) -> Result<ValueId, GraphError> {
        let dims = self.dims(y);
        let &[batch, channels, _, width] = four(call, &dims)?;
        let strides: Vec<isize> = row_major(&dims)
            .into_iter()
            .map(|stride| isize::try_from(stride).unwrap_or(isize::MAX))
            .collect();
        let offset = start[0] * width + start[1];
        self.strided(call, y, &[batch, channels, size[0], size[1]], offset, &strides)
    }
}
