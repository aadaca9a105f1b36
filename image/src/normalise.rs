//! Pixels as elements of a tensor.

use crate::convert::Pixels;
use crate::geometry::Rect;
use crate::{Channels, Layout, Options};
use half::{bf16, f16};
use weir_types::ElementType;

/// Writes the part `taken` of `pixels` to `output`, at the position `at` of a result of `canvas`.
/// The rest of the result gets the background.
pub(crate) fn write(
    pixels: &Pixels,
    taken: Rect,
    canvas: [u32; 2],
    at: [u32; 2],
    options: &Options,
    output: &mut [u8],
) {
    let canvas = Canvas { pixels, taken, canvas, at, options };
    let value = |channel, pixel| normalised(options, channel, pixel);
    match options.element_type {
        ElementType::Uint8 => canvas.write(|_, pixel| [pixel], output),
        ElementType::Fp16 => canvas.write(|at, pixel| f16::from_f32(value(at, pixel)).to_le_bytes(), output),
        ElementType::Bf16 => canvas.write(|at, pixel| bf16::from_f32(value(at, pixel)).to_le_bytes(), output),
        _ => canvas.write(|at, pixel| value(at, pixel).to_le_bytes(), output),
    }
}

fn normalised(options: &Options, channel: usize, pixel: u8) -> f32 {
    let pixel = f32::from(pixel);
    let scaled = options.scale.map_or(pixel / 255.0, |scale| pixel * scale);
    let value = |values: &[f32], default| values.get(channel).or(values.first()).copied().unwrap_or(default);
    (scaled - value(&options.mean, 0.0)) / value(&options.std, 1.0)
}

struct Canvas<'a> {
    pixels: &'a Pixels,
    taken: Rect,
    canvas: [u32; 2],
    at: [u32; 2],
    options: &'a Options,
}

impl Canvas<'_> {
    /// Writes all elements, of `BYTES` bytes. `element` maps the value of a pixel in a channel.
    fn write<const BYTES: usize>(&self, element: impl Fn(usize, u8) -> [u8; BYTES], output: &mut [u8]) {
        let (output, _) = output.as_chunks_mut::<BYTES>();
        let [width, height] = self.canvas.map(|side| side as usize);
        let channels = self.pixels.channels;
        for channel in 0..channels {
            let elements: [[u8; BYTES]; 256] = std::array::from_fn(|pixel| element(channel, pixel as u8));
            let background = elements[usize::from(self.background()[channel])];
            let (first, step) = match self.options.layout {
                Layout::Nchw => (channel * width * height, 1),
                Layout::Nhwc => (channel, channels),
            };
            for y in 0..height {
                let row = output[first + y * width * step..].iter_mut().step_by(step).take(width);
                match self.row(y, channel) {
                    Some(mut pixels) => {
                        let left = self.at[0] as usize;
                        let shown = left..left + self.taken.width as usize;
                        for (x, to) in row.enumerate() {
                            let pixel = if shown.contains(&x) { pixels.next() } else { None };
                            *to = pixel.map_or(background, |pixel| elements[usize::from(*pixel)]);
                        }
                    }
                    None => row.for_each(|to| *to = background),
                }
            }
        }
    }

    /// The shown pixels of a channel in a row of the result; `None` in a margin.
    fn row(&self, y: usize, channel: usize) -> Option<impl Iterator<Item = &u8>> {
        let shown = y.checked_sub(self.at[1] as usize).filter(|row| *row < self.taken.height as usize)?;
        let row = (self.taken.y as usize + shown) * self.pixels.width as usize + self.taken.x as usize;
        let channels = self.pixels.channels;
        let pixels = &self.pixels.data[row * channels..][..self.taken.width as usize * channels];
        Some(pixels.iter().skip(channel).step_by(channels))
    }

    /// The colour of margins, in the order of the channels.
    fn background(&self) -> [u8; 3] {
        let [red, green, blue] = self.options.background.unwrap_or_default();
        match self.options.channels {
            Channels::Rgb => [red, green, blue],
            Channels::Bgr => [blue, green, red],
            Channels::Grey => [crate::convert::luma([red, green, blue]); 3],
        }
    }
}
