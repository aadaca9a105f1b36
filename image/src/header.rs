//! The format, the size and the kind of pixels of an image, from its first bytes.

use crate::exif::Orientation;
use crate::{ImageError, Stop, formats};
use std::fmt;

/// The format of an encoded image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// JPEG, baseline or progressive.
    Jpeg,
    /// PNG; of an animation, its default image.
    Png,
    /// WebP, lossy or lossless; of an animation, its first frame.
    Webp,
}

impl Format {
    /// The format whose signature `encoded` begins with.
    fn detect(encoded: &[u8]) -> Result<Self, ImageError> {
        match encoded {
            [0xff, 0xd8, 0xff, ..] => Ok(Self::Jpeg),
            [0x89, b'P', b'N', b'G', ..] => Ok(Self::Png),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Ok(Self::Webp),
            _ => Err(ImageError::UnknownFormat),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Jpeg => "JPEG",
            Self::Png => "PNG",
            Self::Webp => "WebP",
        })
    }
}

/// The header of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The format.
    pub format: Format,
    /// The columns of the displayed image: EXIF orientation applied.
    pub width: u32,
    /// The rows of the displayed image.
    pub height: u32,
    pub(crate) stored: Stored,
    pub(crate) orientation: Orientation,
}

/// The pixels that a decoder produces, and the memory that it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) width: u32,
    pub(crate) height: u32,
    /// 1: grey; 2: grey and alpha; 3: RGB; 4: RGB and alpha.
    pub(crate) channels: usize,
    /// Bytes that the decoder allocates besides the pixels.
    pub(crate) decoder_bytes: u64,
}

impl Stored {
    pub(crate) fn pixels(&self) -> u64 {
        u64::from(self.width) * u64::from(self.height)
    }
}

/// Reads the header of an image, without decoding it. A header can be long: `stop` ends the reading.
///
/// # Errors
/// [`ImageError::UnknownFormat`], [`ImageError::Damaged`], [`ImageError::Stopped`], or
/// [`ImageError::TooManyPixels`] for a side that no decoder accepts.
pub fn inspect(encoded: &[u8], stop: &Stop) -> Result<Header, ImageError> {
    let format = Format::detect(encoded)?;
    let read = match format {
        Format::Jpeg => formats::jpeg::header(encoded, stop),
        Format::Png => formats::png::header(encoded, stop),
        Format::Webp => formats::webp::header(encoded, stop),
    };
    stop.check()?;
    let (stored, orientation) = read?;
    let [width, height] = orientation.displayed(stored.width, stored.height);
    Ok(Header { format, width, height, stored, orientation })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_data_is_named() {
        for data in [&b""[..], b"GIF89a", b"\xff\xd8", b"RIFF1234WAVE", b"<svg/>"] {
            assert_eq!(inspect(data, &Stop::default()), Err(ImageError::UnknownFormat));
        }
    }
}
