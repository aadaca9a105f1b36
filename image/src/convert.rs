//! Channels and orientation: one pass over the decoded pixels.

use crate::exif::Orientation;
use crate::header::Stored;
use crate::source::Stop;
use crate::{Channels, ImageError};

/// Pixels of 8 bits per channel, in rows from the top.
#[derive(Debug)]
pub(crate) struct Pixels {
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) channels: usize,
    pub(crate) data: Vec<u8>,
}

/// A conversion of decoded pixels.
pub(crate) struct Conversion {
    pub(crate) stored: Stored,
    pub(crate) orientation: Orientation,
    pub(crate) channels: Channels,
    /// The colour behind transparent pixels; `None` drops the alpha channel.
    pub(crate) background: Option<[u8; 3]>,
}

impl Conversion {
    /// Whether the decoded pixels stay as they are.
    pub(crate) fn is_identity(&self) -> bool {
        let is_same = match self.channels {
            Channels::Rgb => self.stored.channels == 3,
            Channels::Grey => self.stored.channels == 1,
            Channels::Bgr => false,
        };
        is_same && self.orientation == Orientation::default()
    }

    pub(crate) fn run(&self, decoded: Vec<u8>, stop: &Stop) -> Result<Pixels, ImageError> {
        let data = if self.is_identity() {
            decoded
        } else {
            match self.stored.channels {
                1 => self.convert::<1>(&decoded, stop)?,
                2 => self.convert::<2>(&decoded, stop)?,
                3 => self.convert::<3>(&decoded, stop)?,
                _ => self.convert::<4>(&decoded, stop)?,
            }
        };
        let [width, height] = self.orientation.displayed(self.stored.width, self.stored.height);
        Ok(Pixels { width, height, channels: self.channels.count(), data })
    }

    fn convert<const STORED: usize>(&self, decoded: &[u8], stop: &Stop) -> Result<Vec<u8>, ImageError> {
        let channels = self.channels.count();
        let mut converted = vec![0; self.stored.width as usize * self.stored.height as usize * channels];
        let (pixels, _) = decoded.as_chunks::<STORED>();
        for (y, row) in pixels.chunks_exact(self.stored.width as usize).enumerate() {
            stop.check()?;
            for (x, pixel) in row.iter().enumerate() {
                let rgb = self.rgb(pixel);
                let to = &mut converted[self.displayed_index(x, y) * channels..][..channels];
                match self.channels {
                    Channels::Rgb => to.copy_from_slice(&rgb),
                    Channels::Bgr => to.copy_from_slice(&[rgb[2], rgb[1], rgb[0]]),
                    Channels::Grey => to[0] = luma(rgb),
                }
            }
        }
        Ok(converted)
    }

    fn rgb<const STORED: usize>(&self, pixel: &[u8; STORED]) -> [u8; 3] {
        let colour = if STORED < 3 { [pixel[0]; 3] } else { [pixel[0], pixel[1], pixel[2]] };
        match self.background {
            Some(background) if STORED.is_multiple_of(2) => blend(colour, background, pixel[STORED - 1]),
            _ => colour,
        }
    }

    /// The position in the displayed image of a stored pixel.
    fn displayed_index(&self, x: usize, y: usize) -> usize {
        let [width, height] =
            self.orientation.displayed(self.stored.width, self.stored.height).map(|side| side as usize);
        let [column, row] = if self.orientation.transposed { [y, x] } else { [x, y] };
        let column = if self.orientation.mirrored_x { width - 1 - column } else { column };
        let row = if self.orientation.mirrored_y { height - 1 - row } else { row };
        row * width + column
    }
}

/// `colour` over `background`.
fn blend(colour: [u8; 3], background: [u8; 3], alpha: u8) -> [u8; 3] {
    let alpha = u32::from(alpha);
    std::array::from_fn(|at| {
        let sum = u32::from(colour[at]) * alpha + u32::from(background[at]) * (255 - alpha);
        ((sum + 127) / 255) as u8
    })
}

/// The weights of ITU-R BT.601 in 16-bit fixed-point arithmetic.
pub(crate) fn luma(rgb: [u8; 3]) -> u8 {
    let [red, green, blue] = rgb.map(u32::from);
    ((red * 19_595 + green * 38_470 + blue * 7_471 + (1 << 15)) >> 16) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(width: u32, height: u32, channels: usize) -> Stored {
        Stored { width, height, channels, decoder_bytes: 0 }
    }

    #[test]
    fn orientations_follow_the_exif_standard() {
        // Two columns and three rows: a b / c d / e f.
        let expected: [(u8, &[u8], [u32; 2]); 8] = [
            (1, b"abcdef", [2, 3]),
            (2, b"badcfe", [2, 3]),
            (3, b"fedcba", [2, 3]),
            (4, b"efcdab", [2, 3]),
            (5, b"acebdf", [3, 2]),
            (6, b"ecafdb", [3, 2]),
            (7, b"fdbeca", [3, 2]),
            (8, b"bdface", [3, 2]),
        ];
        for (tag, pixels, size) in expected {
            let exif = [&b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0"[..], &[tag, 0, 0, 0]].concat();
            let conversion = Conversion {
                stored: stored(2, 3, 1),
                orientation: Orientation::from_exif(&exif),
                channels: Channels::Grey,
                background: None,
            };
            let made = conversion.run(b"abcdef".to_vec(), &Stop::default()).unwrap();
            assert_eq!((&made.data[..], [made.width, made.height]), (pixels, size), "{tag}");
        }
    }

    #[test]
    fn alpha_is_dropped_or_composited() {
        let convert = |channels, background| {
            let conversion = Conversion {
                stored: stored(2, 1, 4),
                orientation: Orientation::default(),
                channels,
                background,
            };
            conversion.run(vec![200, 100, 0, 255, 200, 100, 0, 51], &Stop::default()).unwrap().data
        };
        assert_eq!(convert(Channels::Rgb, None), [200, 100, 0, 200, 100, 0]);
        assert_eq!(convert(Channels::Rgb, Some([255; 3])), [200, 100, 0, 244, 224, 204]);
        assert_eq!(convert(Channels::Bgr, None), [0, 100, 200, 0, 100, 200]);
        assert_eq!(convert(Channels::Grey, None), [118, 118]);
    }
}
