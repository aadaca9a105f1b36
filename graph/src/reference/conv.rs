//! Convolutions and other operations on images.

use super::numbers::activate;
use super::{ReferenceData, ReferenceTensor, floats};
use crate::TensorType;
use crate::ir::{Conv, ImageLayout, Lrn, PoolKind, Pooling};
use std::ops::Range;

pub(super) fn conv<'a>(
    op: &Conv,
    operand: &dyn Fn(usize) -> Option<&'a ReferenceTensor>,
    out: &TensorType,
) -> Option<ReferenceTensor> {
    if (op.images, op.filters) != (ImageLayout::ChannelsFirst, ImageLayout::ChannelsFirst) {
        return conv_channels_last(op, operand, out);
    }
    let x = operand(Conv::X)?;
    let w = operand(Conv::W)?;
    let (&[_, channels, height, width], &[filters, group_channels, kh, kw]) =
        (dims4(x.tensor())?, dims4(w.tensor())?);
    let &[batch, _, out_height, out_width] = dims4(out)?;
    let x = floats(Some(x))?;
    let w = floats(Some(w))?;
    let each = [Conv::BIAS, Conv::SCALE, Conv::SHIFT].map(|place| floats(operand(place)));
    let residual = floats(operand(Conv::RESIDUAL));
    let rows = Steps::new(op, 0, height, out_height);
    let columns = Steps::new(op, 1, width, out_width);
    let plane = out_height * out_width;
    let mut made = Vec::with_capacity(out.elements());
    let mut sums = vec![0.0_f64; plane];
    for image in 0..batch {
        for filter in 0..filters {
            sums.fill(0.0);
            let group = filter / (filters / op.groups.max(1)).max(1);
            for channel in 0..group_channels {
                let x = &x[(image * channels + group * group_channels + channel) * height * width..]
                    [..height * width];
                let w = &w[(filter * group_channels + channel) * kh * kw..][..kh * kw];
                for (tap, weight) in w.iter().enumerate() {
                    let down = tap / kw;
                    let across = tap % kw;
                    add_tap(
                        &mut sums,
                        x,
                        f64::from(*weight),
                        &rows.tap(down),
                        &columns.tap(across),
                        out_width,
                        width,
                    );
                }
            }
            let number = |place: usize, default: f32| match &each[place] {
                Some(numbers) => numbers.get(filter).copied().map(f64::from),
                None => Some(f64::from(default)),
            };
            let bias = number(0, 0.0)?;
            let scale = number(1, 1.0)?;
            let shift = number(2, 0.0)?;
            for sum in &sums {
                let mut y = scale * (sum + bias) + shift;
                if let Some(residual) = &residual {
                    y += f64::from(*residual.get(made.len())?);
                }
                made.push(op.activation.map_or(y as f32, |activation| activate(activation, y as f32)));
            }
        }
    }
    Some(ReferenceTensor::floats(out.clone(), made))
}

/// Run a convolution on operands with channels first, and return its output in the layout of `op`.
fn conv_channels_last<'a>(
    op: &Conv,
    operand: &dyn Fn(usize) -> Option<&'a ReferenceTensor>,
    out: &TensorType,
) -> Option<ReferenceTensor> {
    let first = |place, layout| operand(place).map(|tensor| to_channels_first(tensor, layout));
    let converted = [(Conv::X, op.images), (Conv::W, op.filters), (Conv::RESIDUAL, op.images)];
    let mut tensors = Vec::with_capacity(converted.len());
    for (place, layout) in converted {
        tensors.push((place, first(place, layout).map_or(Some(None), |tensor| tensor.map(Some))?));
    }
    let operand = |place: usize| match tensors.iter().find(|(at, _)| *at == place) {
        Some((_, tensor)) => tensor.as_ref(),
        None => operand(place),
    };
    let plain =
        Conv { images: ImageLayout::ChannelsFirst, filters: ImageLayout::ChannelsFirst, ..op.clone() };
    let made = conv(&plain, &operand, &channels_first_type(out, op.images)?)?;
    from_channels_first(&made, op.images)
}

/// The same images or filters, whose layout is `layout`, with channels first.
fn to_channels_first(tensor: &ReferenceTensor, layout: ImageLayout) -> Option<ReferenceTensor> {
    let made = channels_first_type(tensor.tensor(), layout)?;
    let [n, h, w, c] = *dims4(tensor.tensor())?;
    match layout {
        ImageLayout::ChannelsFirst => Some(tensor.clone()),
        ImageLayout::ChannelsLast => Some(with_rows_as_columns(tensor, made, [n, h * w, c])),
    }
}

/// The same images, whose channels are first, in `layout`.
fn from_channels_first(tensor: &ReferenceTensor, layout: ImageLayout) -> Option<ReferenceTensor> {
    let [n, c, h, w] = *dims4(tensor.tensor())?;
    let made = TensorType::new(tensor.tensor().element_type(), layout.with_dims([n, c, h, w])).ok()?;
    match layout {
        ImageLayout::ChannelsFirst => Some(tensor.clone()),
        ImageLayout::ChannelsLast => Some(with_rows_as_columns(tensor, made, [n, c, h * w])),
    }
}

fn channels_first_type(tensor: &TensorType, layout: ImageLayout) -> Option<TensorType> {
    TensorType::new(tensor.element_type(), layout.channels_first(*dims4(tensor)?)).ok()
}

/// The elements of `count` matrices of `rows` by `columns`, transposed, as a tensor of type `made`.
fn with_rows_as_columns(
    tensor: &ReferenceTensor,
    made: TensorType,
    [count, rows, columns]: [usize; 3],
) -> ReferenceTensor {
    let places = (0..count).flat_map(move |matrix| {
        (0..columns)
            .flat_map(move |column| (0..rows).map(move |row| (matrix * rows + row) * columns + column))
    });
    match tensor.data() {
        ReferenceData::Floats(from) => {
            ReferenceTensor::floats(made, places.map(|place| from[place]).collect())
        }
        ReferenceData::Integers(from) => {
            ReferenceTensor::integers(made, places.map(|place| from[place]).collect())
        }
    }
}

/// Add the contribution of one filter element to a plane of the output.
fn add_tap(
    sums: &mut [f64],
    x: &[f32],
    weight: f64,
    rows: &Tap,
    columns: &Tap,
    out_width: usize,
    width: usize,
) {
    for out_row in rows.inside.clone() {
        let sums = &mut sums[out_row * out_width..][columns.inside.clone()];
        let x = &x[rows.at(out_row) * width..][..width];
        if sums.is_empty() {
            continue;
        }
        let first = columns.at(columns.inside.start);
        if columns.stride == 1 {
            sums.iter_mut().zip(&x[first..]).for_each(|(sum, x)| *sum += weight * f64::from(*x));
        } else {
            let x = x[first..].iter().step_by(columns.stride);
            sums.iter_mut().zip(x).for_each(|(sum, x)| *sum += weight * f64::from(*x));
        }
    }
}

/// Steps of windows along one direction.
struct Steps {
    size: usize,
    out: usize,
    stride: usize,
    pad: usize,
    dilation: usize,
}

/// One element of a window, and the range of output positions at which it is inside the image.
struct Tap {
    inside: Range<usize>,
    stride: usize,
    /// Position for the first output, counted from `pad` before the image.
    from: usize,
    pad: usize,
}

impl Steps {
    fn new(op: &Conv, axis: usize, size: usize, out: usize) -> Self {
        Self {
            size,
            out,
            stride: op.strides[axis].max(1),
            pad: op.pads_begin[axis],
            dilation: op.dilations[axis],
        }
    }

    fn tap(&self, index: usize) -> Tap {
        let from = index * self.dilation;
        let start = self.pad.saturating_sub(from).div_ceil(self.stride).min(self.out);
        let end = (self.size + self.pad).saturating_sub(from).div_ceil(self.stride).min(self.out);
        Tap { inside: start..end.max(start), stride: self.stride, from, pad: self.pad }
    }
}

impl Tap {
    fn at(&self, out: usize) -> usize {
        out * self.stride + self.from - self.pad
    }
}

pub(super) fn pool(op: &Pooling, x: &ReferenceTensor, out: &TensorType) -> Option<ReferenceTensor> {
    if op.layout == ImageLayout::ChannelsLast {
        let first = Pooling { layout: ImageLayout::ChannelsFirst, ..op.clone() };
        let x = to_channels_first(x, op.layout)?;
        let made = pool(&first, &x, &channels_first_type(out, op.layout)?)?;
        return from_channels_first(&made, op.layout);
    }
    let (&[_, _, height, width], &[images, channels, out_height, out_width]) =
        (dims4(x.tensor())?, dims4(out)?);
    let windows = Windows { op, height, width, out_height, out_width };
    let planes = images * channels;
    match x.data() {
        ReferenceData::Floats(x) => {
            let mut made = Vec::with_capacity(out.elements());
            for plane in 0..planes {
                let x = &x[plane * height * width..][..height * width];
                windows.each(|at, places| {
                    let inside = at.iter().map(|at| x[*at]);
                    made.push(match op.kind {
                        PoolKind::Max => inside
                            .fold(f32::NEG_INFINITY, |max, x| if x > max || x.is_nan() { x } else { max }),
                        PoolKind::Average { count_padding } => {
                            let count = if count_padding { places } else { at.len() };
                            let sum: f64 = inside.map(f64::from).sum();
                            if count == 0 { 0.0 } else { (sum / count as f64) as f32 }
                        }
                    });
                });
            }
            Some(ReferenceTensor::floats(out.clone(), made))
        }
        ReferenceData::Integers(x) => {
            let mut made = Vec::with_capacity(out.elements());
            for plane in 0..planes {
                let x = &x[plane * height * width..][..height * width];
                windows.each(|at, _| made.push(at.iter().map(|at| x[*at]).max().unwrap_or(i64::MIN)));
            }
            Some(ReferenceTensor::integers(out.clone(), made))
        }
    }
}

struct Windows<'a> {
    op: &'a Pooling,
    height: usize,
    width: usize,
    out_height: usize,
    out_width: usize,
}

impl Windows<'_> {
    /// Call `of` for each window with the indices of its elements inside the image, and the number
    /// of its elements inside the padded image.
    fn each(&self, mut of: impl FnMut(&[usize], usize)) {
        let mut at = Vec::new();
        for row in 0..self.out_height {
            for column in 0..self.out_width {
                at.clear();
                let (rows, padded_rows) = self.along(0, row, self.height);
                let (columns, padded_columns) = self.along(1, column, self.width);
                for row in &rows {
                    at.extend(columns.iter().map(|column| row * self.width + column));
                }
                of(&at, padded_rows * padded_columns);
            }
        }
    }

    /// Positions of the window's elements along one direction, and the number of them inside the
    /// padded image.
    fn along(&self, axis: usize, out: usize, size: usize) -> (Vec<usize>, usize) {
        let begin = self.op.pads_begin[axis];
        let end = self.op.pads_end[axis];
        let places =
            (0..self.op.kernel[axis]).map(|tap| out * self.op.strides[axis] + tap * self.op.dilations[axis]);
        let padded: Vec<usize> = places.filter(|place| *place < begin + size + end).collect();
        let inside = padded.iter().filter(|place| (begin..begin + size).contains(place));
        (inside.map(|place| place - begin).collect(), padded.len())
    }
}

pub(super) fn lrn(op: &Lrn, x: &ReferenceTensor, out: &TensorType) -> Option<ReferenceTensor> {
    let [images, channels, rest @ ..] = out.dims() else { return None };
    let plane: usize = rest.iter().product();
    let x = floats(Some(x))?;
    let mut made = Vec::with_capacity(out.elements());
    for image in 0..*images {
        for channel in 0..*channels {
            let first = channel.saturating_sub(op.size.saturating_sub(1) / 2);
            let last = (channel + op.size / 2).min(channels - 1);
            for place in 0..plane {
                let at = |channel: usize| f64::from(x[(image * channels + channel) * plane + place]);
                let squares: f64 = (first..=last).map(|channel| at(channel).powi(2)).sum();
                let by = f64::from(op.bias) + f64::from(op.alpha) / op.size as f64 * squares;
                made.push((at(channel) / by.powf(f64::from(op.beta))) as f32);
            }
        }
    }
    Some(ReferenceTensor::floats(out.clone(), made))
}

fn dims4(tensor: &TensorType) -> Option<&[usize; 4]> {
    tensor.dims().try_into().ok()
}
