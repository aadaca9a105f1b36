//! Resizing: separable convolution in fixed-point arithmetic, first along rows and then along
//! columns. The filters, the sampling positions and the rounding are those of Pillow, so that a model
//! sees the pixels that it was trained with.

use crate::convert::Pixels;
use crate::geometry::Rect;
use crate::source::Stop;
use crate::{Filter, ImageError};
use std::f64::consts::PI;
use std::ops::Range;

/// Fractional bits of a weight. Sums of weighted pixels fit 32 bits with one bit left for negative
/// weights.
const WEIGHT_BITS: u32 = 22;

/// The part `taken` of `source`, resized to `scaled` as a whole.
pub(crate) fn resample(
    source: &Pixels,
    scaled: [u32; 2],
    taken: Rect,
    filter: Filter,
    stop: &Stop,
) -> Result<Pixels, ImageError> {
    let columns = Axis::new(source.width, scaled[0], taken.x..taken.x + taken.width, filter);
    let rows = Axis::new(source.height, scaled[1], taken.y..taken.y + taken.height, filter);
    match source.channels {
        1 => passes::<1>(source, &columns, &rows, stop),
        _ => passes::<3>(source, &columns, &rows, stop),
    }
}

fn passes<const CHANNELS: usize>(
    source: &Pixels,
    columns: &Axis,
    rows: &Axis,
    stop: &Stop,
) -> Result<Pixels, ImageError> {
    let source_len = source.width as usize * CHANNELS;
    let row_len = columns.windows.len() * CHANNELS;
    let needed = rows.needed();
    let mut narrowed = vec![0; needed.len() * row_len];
    if row_len > 0 {
        let rows = source.data.chunks_exact(source_len).skip(needed.start);
        for (from, to) in rows.zip(narrowed.chunks_exact_mut(row_len)) {
            stop.check()?;
            resize_row::<CHANNELS>(from, to, columns);
        }
    }
    let mut data = vec![0; rows.windows.len() * row_len];
    let mut sums = vec![0_i32; row_len];
    if row_len > 0 {
        for (window, to) in rows.windows.iter().zip(data.chunks_exact_mut(row_len)) {
            stop.check()?;
            sums.fill(1 << (WEIGHT_BITS - 1));
            let from = &narrowed[(window.start - needed.start) * row_len..];
            for (weight, row) in rows.weights(window).iter().zip(from.chunks_exact(row_len)) {
                for (sum, pixel) in sums.iter_mut().zip(row) {
                    *sum += i32::from(*pixel) * weight;
                }
            }
            for (sum, pixel) in sums.iter().zip(to) {
                *pixel = rounded(*sum);
            }
        }
    }
    Ok(Pixels {
        width: columns.windows.len() as u32,
        height: rows.windows.len() as u32,
        channels: CHANNELS,
        data,
    })
}

fn resize_row<const CHANNELS: usize>(from: &[u8], to: &mut [u8], columns: &Axis) {
    let (from, _) = from.as_chunks::<CHANNELS>();
    let (to, _) = to.as_chunks_mut::<CHANNELS>();
    for (window, to) in columns.windows.iter().zip(to) {
        let mut sums = [1 << (WEIGHT_BITS - 1); CHANNELS];
        for (weight, pixel) in columns.weights(window).iter().zip(&from[window.start..]) {
            for (sum, value) in sums.iter_mut().zip(pixel) {
                *sum += i32::from(*value) * weight;
            }
        }
        *to = sums.map(rounded);
    }
}

/// The pixel of a sum that began with one half.
fn rounded(sum: i32) -> u8 {
    (sum >> WEIGHT_BITS).clamp(0, 255) as u8
}

/// The weights along one dimension.
struct Axis {
    windows: Vec<Window>,
    weights: Vec<i32>,
}

/// The weights of one row or column of the result.
struct Window {
    /// The first row or column of the source.
    start: usize,
    weights: Range<usize>,
}

impl Axis {
    /// The weights for the part `shown` of a dimension that is resized from `source` to `scaled`.
    fn new(source: u32, scaled: u32, shown: Range<u32>, filter: Filter) -> Self {
        let scale = f64::from(source) / f64::from(scaled);
        let (support, kernel): (f64, fn(f64) -> f64) = match filter {
            Filter::Nearest => return Self::nearest(source, scale, shown),
            Filter::Bilinear => (1.0, triangle),
            Filter::Bicubic => (2.0, cubic),
            Filter::Lanczos => (3.0, lanczos),
        };
        // A filter that shrinks the image covers as many pixels as one pixel of the result.
        let stretch = scale.max(1.0);
        let reach = support * stretch;
        let mut axis = Self { windows: Vec::with_capacity(shown.len()), weights: Vec::new() };
        let mut exact = Vec::new();
        for index in shown {
            let centre = (f64::from(index) + 0.5) * scale;
            let start = (centre - reach + 0.5).max(0.0) as usize;
            let end = ((centre + reach + 0.5) as usize).min(source as usize);
            exact.clear();
            exact.extend((start..end).map(|at| kernel((at as f64 - centre + 0.5) / stretch)));
            let total: f64 = exact.iter().sum();
            let first = axis.weights.len();
            axis.weights.extend(exact.iter().map(|weight| fixed(weight / total)));
            axis.windows.push(Window { start, weights: first..axis.weights.len() });
        }
        axis
    }

    fn nearest(source: u32, scale: f64, shown: Range<u32>) -> Self {
        let start = |index| (((f64::from(index) + 0.5) * scale) as usize).min(source as usize - 1);
        let windows = shown.map(|index| Window { start: start(index), weights: 0..1 }).collect();
        Self { windows, weights: vec![1 << WEIGHT_BITS] }
    }

    fn weights(&self, window: &Window) -> &[i32] {
        &self.weights[window.weights.clone()]
    }

    /// The rows or columns of the source that have weights.
    fn needed(&self) -> Range<usize> {
        let start = self.windows.first().map_or(0, |window| window.start);
        let end = self.windows.last().map_or(0, |window| window.start + window.weights.len());
        start..end
    }
}

/// A weight in fixed-point arithmetic, rounded half away from zero.
fn fixed(weight: f64) -> i32 {
    (weight * f64::from(1_u32 << WEIGHT_BITS)).round() as i32
}

fn triangle(x: f64) -> f64 {
    (1.0 - x.abs()).max(0.0)
}

fn cubic(x: f64) -> f64 {
    const A: f64 = -0.5;
    let x = x.abs();
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * A
    } else {
        0.0
    }
}

fn lanczos(x: f64) -> f64 {
    if x.abs() < 3.0 { sinc(x) * sinc(x / 3.0) } else { 0.0 }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 { 1.0 } else { (PI * x).sin() / (PI * x) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn grey(width: u32, height: u32, data: Vec<u8>) -> Pixels {
        Pixels { width, height, channels: 1, data }
    }

    fn whole(scaled: [u32; 2]) -> Rect {
        Rect { x: 0, y: 0, width: scaled[0], height: scaled[1] }
    }

    #[test]
    fn halving_averages_and_doubling_interpolates() {
        let image = grey(4, 1, vec![0, 0, 200, 200]);
        let halved = resample(&image, [2, 1], whole([2, 1]), Filter::Bilinear, &Stop::default()).unwrap();
        // Three pixels with the weights 3, 3 and 1: the filter reaches half a pixel further.
        assert_eq!(halved.data, [29, 171]);
        let image = grey(2, 1, vec![0, 100]);
        let doubled = resample(&image, [4, 1], whole([4, 1]), Filter::Bilinear, &Stop::default()).unwrap();
        assert_eq!(doubled.data, [0, 25, 75, 100]);
        let nearest = resample(&image, [4, 1], whole([4, 1]), Filter::Nearest, &Stop::default()).unwrap();
        assert_eq!(nearest.data, [0, 0, 100, 100]);
    }

    #[test]
    fn stopped_resize_is_an_error() {
        let stop = Stop::default();
        stop.set();
        let image = grey(2, 2, vec![0; 4]);
        let resized = resample(&image, [1, 1], whole([1, 1]), Filter::Bilinear, &stop);
        assert_eq!(resized.unwrap_err(), ImageError::Stopped);
    }

    fn filters() -> impl Strategy<Value = Filter> {
        prop::sample::select(vec![Filter::Nearest, Filter::Bilinear, Filter::Bicubic, Filter::Lanczos])
    }

    proptest! {
        #[test]
        fn part_of_a_resize_equals_the_part_of_the_whole(
            width in 1_u32..40, height in 1_u32..40, seed: u64,
            scaled in [1_u32..60, 1_u32..60], cut in [0_u32..60, 0_u32..60], filter in filters(),
        ) {
            let noise = |at: u32| (seed.wrapping_mul(u64::from(at) * 2 + 1) >> 24) as u8;
            let image = grey(width, height, (0..width * height).map(noise).collect());
            let full = resample(&image, scaled, whole(scaled), filter, &Stop::default()).unwrap();
            let x = cut[0] % scaled[0];
            let y = cut[1] % scaled[1];
            let taken = Rect { x, y, width: scaled[0] - x, height: scaled[1] - y };
            let part = resample(&image, scaled, taken, filter, &Stop::default()).unwrap();
            let rows = full.data.chunks_exact(scaled[0] as usize).skip(y as usize);
            let expected: Vec<u8> = rows.flat_map(|row| row[x as usize..].to_vec()).collect();
            prop_assert_eq!(part.data, expected);
        }

        #[test]
        fn flat_images_stay_flat(value: u8, side in 1_u32..50, scaled in 1_u32..90, filter in filters()) {
            let image = grey(side, side, vec![value; (side * side) as usize]);
            let made = resample(&image, [scaled, scaled], whole([scaled, scaled]), filter, &Stop::default()).unwrap();
            prop_assert!(made.data.iter().all(|pixel| *pixel == value));
        }
    }
}
