//! JPEG.

use crate::ImageError;
use crate::exif::Orientation;
use crate::header::{Format, Stored};
use crate::options::SIDE_MAX;
use crate::source::{JpegSource, Stop};
use std::cell::Cell;
use std::fmt::Display;
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

/// Scans of a progressive image. Encoders write at most some twenty; each one passes over the whole
/// image, however few bytes it has.
const SCANS_MAX: usize = 64;

/// A block of samples can extend this far beyond the image: eight samples, subsampled by four.
const PADDING: u64 = 31;

pub(crate) fn header(encoded: &[u8], stop: &Stop) -> Result<(Stored, Orientation), ImageError> {
    let overran = Cell::new(false);
    let mut decoder = decoder(encoded, stop, &overran, ColorSpace::RGB);
    decoder.decode_headers().map_err(|error| damaged(&error))?;
    let info = decoder.info().ok_or_else(|| damaged(&"it has no header"))?;
    let channels = match info.components {
        1 => 1,
        3 | 4 => 3,
        other => return Err(damaged(&format_args!("it has {other} channels"))),
    };
    let padded = (u64::from(info.width) + PADDING) * (u64::from(info.height) + PADDING);
    let stored = Stored {
        width: info.width.into(),
        height: info.height.into(),
        channels,
        // Images with several scans keep all coefficients, of two bytes. Others keep a row of
        // blocks.
        decoder_bytes: padded * u64::from(info.components) * 2,
    };
    let orientation = decoder.exif().map(|exif| Orientation::from_exif(exif)).unwrap_or_default();
    Ok((stored, orientation))
}

pub(crate) fn decode(
    encoded: &[u8],
    stored: &Stored,
    pixels: &mut [u8],
    stop: &Stop,
) -> Result<(), ImageError> {
    let overran = Cell::new(false);
    let color_space = if stored.channels == 1 { ColorSpace::Luma } else { ColorSpace::RGB };
    decoder(encoded, stop, &overran, color_space).decode_into(pixels).map_err(|error| damaged(&error))?;
    // The decoder itself completes such an image with grey.
    if overran.get() { Err(damaged(&"it ends early")) } else { Ok(()) }
}

fn decoder<'a>(
    encoded: &'a [u8],
    stop: &'a Stop,
    overran: &'a Cell<bool>,
    color_space: ColorSpace,
) -> JpegDecoder<JpegSource<'a>> {
    let options = DecoderOptions::default()
        .set_max_width(SIDE_MAX as usize)
        .set_max_height(SIDE_MAX as usize)
        .jpeg_set_max_scans(SCANS_MAX)
        .jpeg_set_out_colorspace(color_space)
        .set_strict_mode(false);
    JpegDecoder::new_with_options(JpegSource::new(encoded, stop, overran), options)
}

fn damaged(reason: &dyn Display) -> ImageError {
    ImageError::damaged(Format::Jpeg, reason)
}
