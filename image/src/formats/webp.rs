//! WebP.

use crate::ImageError;
use crate::exif::Orientation;
use crate::header::{Format, Stored};
use crate::source::{Source, Stop};
use image_webp::{DecodingError, WebPDecoder};

/// Largest metadata that is read for the orientation.
const EXIF_BYTES_MAX: usize = 1 << 20;

/// Bytes that the decoder allocates for each pixel, besides the result: planes of the colours, and
/// the alpha channel, which is decoded like an image of four channels.
const BYTES_PER_PIXEL: u64 = 8;
/// The same for an animation, which has a frame and a canvas.
const BYTES_PER_ANIMATED_PIXEL: u64 = 16;

pub(crate) fn header(encoded: &[u8], stop: &Stop) -> Result<(Stored, Orientation), ImageError> {
    let mut decoder = WebPDecoder::new(Source::new(encoded, stop)).map_err(|error| damaged(&error))?;
    let (width, height) = decoder.dimensions();
    let canvas = [width, height];
    // The decoder allocates memory by the size of a frame before it compares that size with the
    // header's.
    if frames(encoded).any(|[width, height]| width > canvas[0] || height > canvas[1]) {
        return Err(ImageError::damaged(Format::Webp, &"a frame is larger than the image"));
    }
    decoder.set_memory_limit(EXIF_BYTES_MAX);
    let exif = decoder.exif_metadata().ok().flatten();
    let orientation = exif.map(|exif| Orientation::from_exif(&exif)).unwrap_or_default();
    let pixels = u64::from(width) * u64::from(height);
    let per_pixel = if decoder.is_animated() { BYTES_PER_ANIMATED_PIXEL } else { BYTES_PER_PIXEL };
    let stored = Stored {
        width,
        height,
        channels: if decoder.has_alpha() { 4 } else { 3 },
        decoder_bytes: pixels * per_pixel + encoded.len() as u64,
    };
    Ok((stored, orientation))
}

pub(crate) fn decode(encoded: &[u8], pixels: &mut [u8], stop: &Stop) -> Result<(), ImageError> {
    let mut decoder = WebPDecoder::new(Source::new(encoded, stop)).map_err(|error| damaged(&error))?;
    decoder.read_image(pixels).map_err(|error| damaged(&error))
}

/// The sizes in the headers of all `VP8 ` and `VP8L` chunks, also within frames of an animation.
fn frames(encoded: &[u8]) -> impl Iterator<Item = [u32; 2]> {
    chunks(encoded.get(12..).unwrap_or(&[])).flat_map(|(name, data)| {
        let of_animation = match name {
            b"ANMF" => data.get(16..).unwrap_or(&[]),
            _ => &[],
        };
        frame_size(name, data)
            .into_iter()
            .chain(chunks(of_animation).filter_map(|(name, data)| frame_size(name, data)))
    })
}

/// The chunks of `data`, each with its name. The last one may be cut off.
fn chunks(mut data: &[u8]) -> impl Iterator<Item = (&[u8; 4], &[u8])> {
    std::iter::from_fn(move || {
        let (name, rest) = data.split_first_chunk::<4>()?;
        let (size, rest) = rest.split_first_chunk::<4>()?;
        let size = usize::try_from(u32::from_le_bytes(*size)).ok()?;
        let chunk = rest.get(..size).unwrap_or(rest);
        data = rest.get(size.saturating_add(size % 2)..).unwrap_or(&[]);
        Some((name, chunk))
    })
}

/// The size in the header of a frame.
fn frame_size(name: &[u8; 4], data: &[u8]) -> Option<[u32; 2]> {
    match name {
        b"VP8 " => {
            let side = |at: usize| {
                Some(u32::from(u16::from_le_bytes(data.get(at..at + 2)?.try_into().ok()?) & 0x3fff))
            };
            Some([side(6)?, side(8)?])
        }
        b"VP8L" => {
            let bits = u32::from_le_bytes(data.get(1..5)?.try_into().ok()?);
            Some([(bits & 0x3fff) + 1, (bits >> 14 & 0x3fff) + 1])
        }
        _ => None,
    }
}

fn damaged(error: &DecodingError) -> ImageError {
    ImageError::damaged(Format::Webp, error)
}
