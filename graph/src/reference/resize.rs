//! Image resizing.

use super::{ReferenceTensor, floats};
use crate::TensorType;
use crate::ir::{Coordinates, Nearest, Resize, ResizeMode};

pub(super) fn resize(op: &Resize, x: &ReferenceTensor, out: &TensorType) -> Option<ReferenceTensor> {
    let &[_, _, height, width]: &[usize; 4] = x.tensor().dims().try_into().ok()?;
    let &[images, channels, out_height, out_width]: &[usize; 4] = out.dims().try_into().ok()?;
    let x = floats(Some(x))?;
    let rows: Vec<_> = (0..out_height).map(|at| op.sources(0, at, height, out_height)).collect();
    let columns: Vec<_> = (0..out_width).map(|at| op.sources(1, at, width, out_width)).collect();
    let mut made = Vec::with_capacity(out.elements());
    for plane in 0..images * channels {
        let x = &x[plane * height * width..][..height * width];
        for row in &rows {
            for column in &columns {
                let pairs = row.iter().flat_map(|row| column.iter().map(move |column| (row, column)));
                let sum: f64 = pairs
                    .map(|((row, by_row), (column, by_column))| {
                        by_row * by_column * f64::from(x[row * width + column])
                    })
                    .sum();
                made.push(sum as f32);
            }
        }
    }
    Some(ReferenceTensor::floats(out.clone(), made))
}

impl Resize {
    /// Source elements, along one direction, of the output's element `at`, with their weights. The
    /// coordinate is computed in `f32`, as on a device, since its rounding decides which neighbour
    /// is nearest.
    fn sources(&self, axis: usize, at: usize, size: usize, out: usize) -> Vec<(usize, f64)> {
        let place = self.coordinates.place(at as f32, self.scales[axis], size as f32, out as f32);
        let last = (size.max(1) - 1) as f32;
        match self.mode {
            ResizeMode::Nearest(nearest) => vec![(nearest.round(place).clamp(0.0, last) as usize, 1.0)],
            ResizeMode::Linear => {
                let place = place.clamp(0.0, last);
                let below = place.floor();
                let part = f64::from(place - below);
                vec![(below as usize, 1.0 - part), ((below + 1.0).min(last) as usize, part)]
            }
        }
    }
}

impl Coordinates {
    fn place(self, i: f32, s: f32, n: f32, o: f32) -> f32 {
        match self {
            Self::HalfPixel => (i + 0.5) / s - 0.5,
            Self::HalfPixelSymmetric => {
                let adjusted = o / (s * n);
                n / 2.0 * (1.0 - adjusted) + (i + 0.5) / s - 0.5
            }
            Self::PytorchHalfPixel => {
                if o > 1.0 {
                    (i + 0.5) / s - 0.5
                } else {
                    0.0
                }
            }
            Self::AlignCorners => {
                if o > 1.0 {
                    i * (n - 1.0) / (o - 1.0)
                } else {
                    0.0
                }
            }
            Self::Asymmetric => i / s,
            Self::TfHalfPixelForNearest => (i + 0.5) / s,
        }
    }
}

impl Nearest {
    fn round(self, place: f32) -> f32 {
        match self {
            Self::RoundPreferFloor => (place - 0.5).ceil(),
            Self::RoundPreferCeil => (place + 0.5).floor(),
            Self::Floor => place.floor(),
            Self::Ceil => place.ceil(),
        }
    }
}
