//! Images: JPEG, PNG and WebP, decoded, resized and normalised on the node, straight into tensors.
//!
//! The function needs no image library, and the pixels do not enter its memory:
//!
//! ```no_run
//! # use weir::{Model, Request, Response, Result, Tensor};
//! use weir::images::{Decode, Fit};
//!
//! fn classify(request: Request) -> Result<Response> {
//!     let photo = weir::take_body::<u8>([weir::OPEN])?;
//!     let image = Decode::new()
//!         .resize(256, 256, Fit::Outside)
//!         .crop(224, 224)
//!         .mean([0.485, 0.456, 0.406])
//!         .std([0.229, 0.224, 0.225])
//!         .decode(&photo)?;
//!     let scores = Model::open("squeezenet")?.infer([("data", &image)])?.only()?;
//!     Response::json(&scores.to_vec::<f32>()?)
//! }
//! ```
//!
//! An image that is damaged or too large is an [`Error::InvalidArgument`](crate::Error), which
//! becomes a response with status 400.

use crate::bindings::imports::weir::inference::image as raw;
pub use crate::bindings::imports::weir::inference::image::{Channels, Filter, Fit, Format, Layout};
use crate::{ElementType, Error, Result, Tensor};

/// Format and size of an encoded image.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Info {
    /// Format.
    pub format: Format,
    /// Columns of the image as it is displayed, with its EXIF orientation applied.
    pub width: u32,
    /// Rows.
    pub height: u32,
}

/// Reads the header of the encoded image in `encoded`, without decoding it.
///
/// Fails with [`Error::InvalidArgument`] for anything but a JPEG, PNG or WebP image.
pub fn inspect(encoded: &Tensor) -> Result<Info> {
    let raw::Info { format, width, height } = raw::inspect(&encoded.0)?;
    Ok(Info { format, width, height })
}

/// Decodes the image in `encoded` without changing its size: the red, green and blue pixels as `f32`
/// from 0 to 1, with the shape `[1, 3, height, width]`. [`Decode`] has options.
pub fn decode(encoded: &Tensor) -> Result<Tensor> {
    Ok(Tensor(raw::decode(&encoded.0, None)?))
}

/// A tensor of the bytes of an encoded image, for [`inspect`] and [`Decode::decode`]. An image in
/// the request body needs no copy through the function: see [`take_body`](crate::take_body).
pub fn encoded(bytes: &[u8]) -> Result<Tensor> {
    Tensor::from_slice(bytes, [bytes.len()])
}

/// Options of a decoding. The node takes the steps in this order: EXIF orientation, background,
/// channels, resize, crop, normalisation.
#[derive(Debug, Clone)]
#[must_use = "nothing is decoded before `decode`"]
pub struct Decode(raw::Options);

impl Default for Decode {
    fn default() -> Self {
        Self::new()
    }
}

impl Decode {
    /// The options of [`decode`].
    pub fn new() -> Self {
        Self(raw::Options {
            resize: None,
            crop: None,
            channels: Channels::Rgb,
            layout: Layout::Nchw,
            element_type: ElementType::Fp32,
            scale: None,
            mean: Vec::new(),
            std: Vec::new(),
            background: None,
            ignore_orientation: false,
        })
    }

    /// Resizes the image, bilinearly and with antialiasing.
    pub fn resize(self, width: u32, height: u32, fit: Fit) -> Self {
        self.resize_with(width, height, fit, Filter::Bilinear)
    }

    /// Resizes the image with a filter. All but [`Filter::Nearest`] give the pixels of Pillow.
    pub fn resize_with(mut self, width: u32, height: u32, fit: Fit, filter: Filter) -> Self {
        self.0.resize = Some(raw::Resize { to: raw::Size { width, height }, fit, filter });
        self
    }

    /// Keeps the centre of the image, after the resize.
    pub fn crop(mut self, width: u32, height: u32) -> Self {
        self.0.crop = Some(raw::Size { width, height });
        self
    }

    /// Sets the channels.
    pub fn channels(mut self, channels: Channels) -> Self {
        self.0.channels = channels;
        self
    }

    /// Sets the order of the dimensions.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.0.layout = layout;
        self
    }

    /// Sets the element type: `Uint8` for the pixels themselves, or `Fp32`, `Fp16` or `Bf16` for
    /// normalised ones, `(pixel * scale - mean) / std`.
    pub fn element_type(mut self, element_type: ElementType) -> Self {
        self.0.element_type = element_type;
        self
    }

    /// Sets the factor of each pixel, from 0 to 255. The default is 1/255.
    pub fn scale(mut self, scale: f32) -> Self {
        self.0.scale = Some(scale);
        self
    }

    /// Sets the values to subtract from the scaled pixels: one per channel, or one for all.
    pub fn mean(mut self, mean: impl Into<Vec<f32>>) -> Self {
        self.0.mean = mean.into();
        self
    }

    /// Sets the values to divide by: one per channel, or one for all.
    pub fn std(mut self, std: impl Into<Vec<f32>>) -> Self {
        self.0.std = std.into();
        self
    }

    /// Sets the colour behind transparent pixels and of the margins of [`Fit::Contain`]. Without it,
    /// transparency is ignored and margins are black.
    pub fn background(mut self, red: u8, green: u8, blue: u8) -> Self {
        self.0.background = Some(raw::Colour { red, green, blue });
        self
    }

    /// Keeps the pixels as stored, whatever the EXIF orientation.
    pub fn ignore_orientation(mut self) -> Self {
        self.0.ignore_orientation = true;
        self
    }

    /// Decodes the image in `encoded`, a tensor of bytes, into a tensor of four dimensions.
    ///
    /// Fails with [`Error::InvalidArgument`] for an image that is damaged or exceeds the node's
    /// limits, and with [`Error::ResourceExhausted`] above the function's limit of tensor bytes.
    pub fn decode(&self, encoded: &Tensor) -> Result<Tensor> {
        raw::decode(&encoded.0, Some(&self.0)).map(Tensor).map_err(Error::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_collected() {
        let Decode(options) = Decode::new()
            .resize(256, 128, Fit::Outside)
            .crop(224, 112)
            .channels(Channels::Bgr)
            .layout(Layout::Nhwc)
            .element_type(ElementType::Fp16)
            .scale(2.0)
            .mean([0.5])
            .std(vec![0.1, 0.2, 0.3])
            .background(1, 2, 3)
            .ignore_orientation();
        let resize = options.resize.unwrap();
        assert_eq!((resize.to.width, resize.to.height, resize.fit), (256, 128, Fit::Outside));
        assert_eq!(resize.filter, Filter::Bilinear);
        assert_eq!(options.crop.map(|size| (size.width, size.height)), Some((224, 112)));
        assert_eq!((options.channels, options.layout), (Channels::Bgr, Layout::Nhwc));
        assert_eq!((options.element_type, options.scale), (ElementType::Fp16, Some(2.0)));
        assert_eq!((&options.mean[..], &options.std[..]), (&[0.5][..], &[0.1, 0.2, 0.3][..]));
        assert_eq!(options.background.map(|colour| (colour.red, colour.green, colour.blue)), Some((1, 2, 3)));
        assert!(options.ignore_orientation);
    }
}
