//! Greyscale pictures from PNGs or from numbers.

use std::io::Cursor;

/// Largest number of pixels of a picture: 2048 x 2048.
pub const PIXELS_MAX: usize = 1 << 22;

/// Greyscale pixels from 0 to 1, row by row; at least one pixel.
#[derive(Debug)]
pub struct Picture {
    width: usize,
    grey: Vec<f32>,
}

/// Reason why the input is not a picture. The text is for the client.
#[derive(Debug, thiserror::Error)]
pub enum PictureError {
    /// The data is damaged, or not a PNG.
    #[error("this is not a PNG that can be read: {0}")]
    Png(#[from] png::DecodingError),
    /// The picture has more pixels than [`PIXELS_MAX`].
    #[error("the picture has {width} x {height} pixels; at most {PIXELS_MAX} in all are taken")]
    TooLarge {
        /// Pixels across.
        width: usize,
        /// Pixels down.
        height: usize,
    },
    /// There are no rows, or the rows have no pixels.
    #[error("`pixels` is empty")]
    Empty,
    /// A row differs in length from the first.
    #[error("row {row} of `pixels` has {found} numbers and the first row has {expected}")]
    Ragged {
        /// Index of the row, from 0.
        row: usize,
        /// Length of the row.
        found: usize,
        /// Length of the first row.
        expected: usize,
    },
    /// A number is not a valid grey value.
    #[error("row {row} of `pixels` has a number that is negative or not finite")]
    NotGrey {
        /// Index of the row, from 0.
        row: usize,
    },
}

impl Picture {
    /// Decodes a PNG of any colour type. Transparent pictures get a background that contrasts with
    /// the drawing.
    pub fn from_png(bytes: &[u8]) -> Result<Self, PictureError> {
        let mut decoder = png::Decoder::new(Cursor::new(bytes));
        decoder.set_transformations(png::Transformations::normalize_to_color8());
        decoder.set_ignore_text_chunk(true);
        decoder.set_ignore_iccp_chunk(true);
        let header = decoder.read_header_info()?;
        let width = header.width as usize;
        let height = header.height as usize;
        if width.saturating_mul(height) > PIXELS_MAX {
            return Err(PictureError::TooLarge { width, height });
        }
        let mut reader = decoder.read_info()?;
        let (colour, _) = reader.output_color_type();
        let mut pixels = vec![0; width * height * colour.samples()];
        reader.next_frame(&mut pixels)?;
        let grey = match colour {
            png::ColorType::Grayscale | png::ColorType::Indexed => pixels.iter().map(|&g| unit(g)).collect(),
            png::ColorType::Rgb => pixels.chunks_exact(3).map(|p| luma(p[0], p[1], p[2])).collect(),
            png::ColorType::GrayscaleAlpha => {
                on_paper(pixels.chunks_exact(2).map(|p| (unit(p[0]), unit(p[1]))))
            }
            png::ColorType::Rgba => {
                on_paper(pixels.chunks_exact(4).map(|p| (luma(p[0], p[1], p[2]), unit(p[3]))))
            }
        };
        Ok(Self { width, grey })
    }

    /// Creates a picture from rows of grey. Values up to 1 are used unchanged; if there are larger
    /// values (up to 16, up to 255), the largest counts as 1.
    pub fn from_rows(rows: &[Vec<f32>]) -> Result<Self, PictureError> {
        let width = rows.first().map_or(0, Vec::len);
        if width == 0 {
            return Err(PictureError::Empty);
        }
        if width.saturating_mul(rows.len()) > PIXELS_MAX {
            return Err(PictureError::TooLarge { width, height: rows.len() });
        }
        for (row, pixels) in rows.iter().enumerate() {
            if pixels.len() != width {
                return Err(PictureError::Ragged { row, found: pixels.len(), expected: width });
            }
            if pixels.iter().any(|pixel| !pixel.is_finite() || *pixel < 0.0) {
                return Err(PictureError::NotGrey { row });
            }
        }
        let mut grey = rows.concat();
        let largest = grey.iter().copied().fold(1.0, f32::max);
        grey.iter_mut().for_each(|pixel| *pixel /= largest);
        Ok(Self { width, grey })
    }

    /// Width in pixels; at least 1.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Height in pixels; at least 1.
    #[must_use]
    pub fn height(&self) -> usize {
        self.grey.len() / self.width
    }

    /// All pixels, row by row.
    #[must_use]
    pub fn grey(&self) -> &[f32] {
        &self.grey
    }

    /// The pixel at (`x`, `y`).
    #[must_use]
    pub fn at(&self, x: usize, y: usize) -> f32 {
        self.grey[y * self.width + x]
    }
}

/// Composes `(grey, opacity)` pixels on a white background if the drawing is dark, and on black if
/// it is light.
fn on_paper(pixels: impl Iterator<Item = (f32, f32)> + Clone) -> Vec<f32> {
    let (drawn, opaque) = pixels.clone().fold((0.0_f64, 0.0_f64), |(drawn, opaque), (grey, alpha)| {
        (drawn + f64::from(grey * alpha), opaque + f64::from(alpha))
    });
    let paper = if drawn < opaque * 0.5 { 1.0 } else { 0.0 };
    pixels.map(|(grey, alpha)| grey * alpha + paper * (1.0 - alpha)).collect()
}

fn unit(byte: u8) -> f32 {
    f32::from(byte) / 255.0
}

/// Perceived brightness of a colour (ITU-R BT.601).
fn luma(red: u8, green: u8, blue: u8) -> f32 {
    0.299 * unit(red) + 0.587 * unit(green) + 0.114 * unit(blue)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn png(colour: png::ColorType, depth: png::BitDepth, width: u32, height: u32, data: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut encoder = png::Encoder::new(&mut out, width, height);
        encoder.set_color(colour);
        encoder.set_depth(depth);
        let mut writer = encoder.write_header().unwrap();
        writer.write_image_data(data).unwrap();
        writer.finish().unwrap();
        out
    }

    #[test]
    fn every_colour_type_converts_to_grey() {
        let of =
            |colour, depth, data: &[u8]| Picture::from_png(&png(colour, depth, 2, 1, data)).unwrap().grey;
        use png::{BitDepth, ColorType};
        assert_eq!(of(ColorType::Grayscale, BitDepth::Eight, &[0, 255]), [0.0, 1.0]);
        assert_eq!(of(ColorType::Grayscale, BitDepth::One, &[0b0100_0000]), [0.0, 1.0]);
        assert_eq!(of(ColorType::Grayscale, BitDepth::Sixteen, &[0, 0, 255, 255]), [0.0, 1.0]);
        let rgb = of(ColorType::Rgb, BitDepth::Eight, &[255, 255, 255, 0, 255, 0]);
        assert!((rgb[0] - 1.0).abs() < 1e-6 && (rgb[1] - 0.587).abs() < 1e-6, "{rgb:?}");
    }

    #[test]
    fn transparent_pictures_get_a_contrasting_background() {
        let of = |data: &[u8]| {
            Picture::from_png(&png(png::ColorType::GrayscaleAlpha, png::BitDepth::Eight, 2, 1, data))
                .unwrap()
                .grey
        };
        assert_eq!(of(&[0, 0, 0, 255]), [1.0, 0.0], "black ink lies on white");
        assert_eq!(of(&[0, 0, 255, 255]), [0.0, 1.0], "white ink lies on black");
    }

    #[test]
    fn damaged_and_oversized_pngs_are_rejected() {
        let good = png(png::ColorType::Grayscale, png::BitDepth::Eight, 16, 16, &[7; 256]);
        for end in 0..good.len() - 12 {
            assert!(
                Picture::from_png(&good[..end]).is_err(),
                "the first {end} bytes were taken for a picture"
            );
        }
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0xff;
            // Some damage is undetected by design (text, the end mark); no damage may cause a
            // panic.
            let _ = Picture::from_png(&bad);
        }
        // A header may claim any size: 60000 x 60000 with a valid checksum, and no data.
        let mut out = Vec::new();
        drop(png::Encoder::new(&mut out, 60_000, 60_000).write_header().unwrap());
        assert!(matches!(Picture::from_png(&out), Err(PictureError::TooLarge { width: 60_000, .. })));
    }

    #[test]
    fn rows_of_any_scale_are_accepted_and_invalid_numbers_reported() {
        let of = |rows: &[Vec<f32>]| Picture::from_rows(rows);
        assert_eq!(of(&[vec![0.0, 0.5]]).unwrap().grey, [0.0, 0.5]);
        assert_eq!(of(&[vec![0.0], vec![16.0]]).unwrap().grey, [0.0, 1.0]);
        assert_eq!(of(&[vec![0.0], vec![16.0]]).unwrap().height(), 2);
        let why = |rows: &[Vec<f32>]| of(rows).unwrap_err().to_string();
        assert_eq!(why(&[]), "`pixels` is empty");
        assert_eq!(why(&[vec![]]), "`pixels` is empty");
        assert_eq!(
            why(&[vec![0.0, 1.0], vec![0.0]]),
            "row 1 of `pixels` has 1 numbers and the first row has 2"
        );
        assert!(why(&[vec![0.0, -1.0]]).starts_with("row 0"));
        assert!(why(&[vec![0.0, f32::NAN]]).starts_with("row 0"));
        assert!(why(&vec![vec![0.0; 3000]; 3000]).starts_with("the picture has 3000 x 3000"));
    }
}
