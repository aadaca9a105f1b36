//! The reasons why an image was not decoded.

use crate::Format;
use std::fmt::Display;

/// The reason why an image was not decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// The data has none of the known signatures.
    #[error("the data is no JPEG, PNG or WebP image; convert the image to one of these formats")]
    UnknownFormat,
    /// The image does not conform to its format, ends early, or uses an unsupported feature.
    #[error("the {format} image cannot be decoded: {reason}; check that it is complete, or save it again")]
    Damaged {
        /// The format of the image.
        format: Format,
        /// The finding of the decoder.
        reason: String,
    },
    /// The encoded image exceeds the limit.
    #[error(
        "the encoded image has {bytes} bytes, and the node decodes at most {bytes_max} (sandbox.images.encoded_bytes_max); send a smaller image"
    )]
    EncodedTooLarge {
        /// The size of the encoded image.
        bytes: u64,
        /// The limit.
        bytes_max: u64,
    },
    /// The image has too many pixels, or would have too many after the resize.
    #[error(
        "{width} x {height} pixels are more than the node decodes or produces, at most {pixels_max} in total and {side_max} a side (sandbox.images.pixels_max); make the image smaller"
    )]
    TooManyPixels {
        /// The number of columns.
        width: u64,
        /// The number of rows.
        height: u64,
        /// The limit.
        pixels_max: u64,
        /// The fixed limit of each side.
        side_max: u32,
    },
    /// The options contradict each other or the image.
    #[error("{0}")]
    InvalidOptions(String),
    /// The caller stopped the decoding.
    #[error("the decoding was stopped")]
    Stopped,
}

impl ImageError {
    pub(crate) fn damaged(format: Format, reason: &dyn Display) -> Self {
        // Some decoders end their texts with line breaks.
        Self::Damaged { format, reason: reason.to_string().trim().to_owned() }
    }

    pub(crate) fn options(text: impl Into<String>) -> Self {
        Self::InvalidOptions(text.into())
    }
}
