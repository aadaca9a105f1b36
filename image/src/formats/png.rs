//! PNG.

use crate::exif::Orientation;
use crate::header::{Format, Stored};
use crate::options::SIDE_MAX;
use crate::source::{Source, Stop};
use crate::{ImageError, ImageLimits};
use ::png::{ColorType, Decoder, DecodingError, Limits, Reader, Transformations};

/// Memory of the decoder besides the pixels: rows, chunks and the decompressor's window.
const DECODER_BYTES: usize = 16 << 20;

pub(crate) fn header(encoded: &[u8], stop: &Stop) -> Result<(Stored, Orientation), ImageError> {
    let mut decoder = decoder(encoded, stop);
    let info = decoder.read_header_info().map_err(|error| damaged(&error))?;
    let width = info.width;
    let height = info.height;
    // Before the decoder allocates a row.
    if width.max(height) > SIDE_MAX {
        ImageLimits { encoded_bytes_max: 0, pixels_max: u64::MAX }.check(width.into(), height.into())?;
    }
    let reader = decoder.read_info().map_err(|error| damaged(&error))?;
    let exif = reader.info().exif_metadata.as_deref();
    let orientation = exif.map(Orientation::from_exif).unwrap_or_default();
    let stored = Stored { width, height, channels: channels(&reader), decoder_bytes: DECODER_BYTES as u64 };
    Ok((stored, orientation))
}

pub(crate) fn decode(encoded: &[u8], pixels: &mut [u8], stop: &Stop) -> Result<(), ImageError> {
    let mut reader = decoder(encoded, stop).read_info().map_err(|error| damaged(&error))?;
    reader.next_frame(pixels).map_err(|error| damaged(&error))?;
    Ok(())
}

/// A decoder that converts all pixels to 8 bits per channel, without palettes.
fn decoder<'a>(encoded: &'a [u8], stop: &'a Stop) -> Decoder<Source<'a>> {
    let mut decoder = Decoder::new_with_limits(Source::new(encoded, stop), Limits { bytes: DECODER_BYTES });
    decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    decoder
}

fn channels(reader: &Reader<Source<'_>>) -> usize {
    match reader.output_color_type().0 {
        ColorType::Grayscale => 1,
        ColorType::GrayscaleAlpha => 2,
        ColorType::Rgb | ColorType::Indexed => 3,
        ColorType::Rgba => 4,
    }
}

fn damaged(error: &DecodingError) -> ImageError {
    ImageError::damaged(Format::Png, error)
}
