//! Options of a decoding: size, channels, layout and element type of the tensor.

use crate::ImageError;
use weir_types::ElementType;

/// Largest width and height of an image: the limit of JPEG's common encoder.
pub(crate) const SIDE_MAX: u32 = 65_500;

/// Limits of a decoding. Exceeding one is an error before memory is allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageLimits {
    /// Size of an encoded image.
    pub encoded_bytes_max: u64,
    /// Pixels of an image, as encoded and as a result.
    pub pixels_max: u64,
}

impl Default for ImageLimits {
    fn default() -> Self {
        Self { encoded_bytes_max: 32 << 20, pixels_max: 64_000_000 }
    }
}

impl ImageLimits {
    /// Checks the size of an image.
    pub(crate) fn check(&self, width: u64, height: u64) -> Result<(), ImageError> {
        let is_within =
            width.max(height) <= SIDE_MAX.into() && width.saturating_mul(height) <= self.pixels_max;
        if is_within {
            return Ok(());
        }
        Err(ImageError::TooManyPixels { width, height, pixels_max: self.pixels_max, side_max: SIDE_MAX })
    }
}

/// How to make a tensor from an image. The steps, in this order: EXIF orientation, channels, resize,
/// crop, normalisation.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// The size of the result; `None` keeps the size of the image.
    pub resize: Option<Resize>,
    /// The width and height of the centre to keep of the resized image.
    pub crop: Option<[u32; 2]>,
    /// The channels of the result.
    pub channels: Channels,
    /// The order of the dimensions.
    pub layout: Layout,
    /// `Uint8` for the pixels themselves, or `Fp16`, `Bf16` or `Fp32` for normalised ones.
    pub element_type: ElementType,
    /// The factor of each pixel, from 0 to 255, before `mean` and `std` apply; `None`: 1/255.
    pub scale: Option<f32>,
    /// Subtracted from each scaled pixel: one value per channel, one value for all, or none for 0.
    pub mean: Vec<f32>,
    /// Divides the difference: one value per channel, one value for all, or none for 1.
    pub std: Vec<f32>,
    /// The red, green and blue of the colour that shows through transparent pixels and fills the
    /// margins of [`Fit::Contain`]. `None`: the alpha channel is dropped, and margins are black.
    pub background: Option<[u8; 3]>,
    /// Keeps the pixels as stored, whatever the EXIF orientation.
    pub ignore_orientation: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
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
        }
    }
}

/// A size, and the way to reach it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resize {
    /// Columns.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// The treatment of the aspect ratio.
    pub fit: Fit,
    /// The resampling filter.
    pub filter: Filter,
}

/// The treatment of the aspect ratio.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// Exactly the size; the aspect ratio changes.
    Fill,
    /// The smallest image that covers the size, then the centre of it.
    Cover,
    /// The largest image within the size, centred, with margins.
    Contain,
    /// The largest image within the size, without margins: one side may be shorter.
    Inside,
    /// The smallest image that covers the size, uncropped: one side may be longer.
    Outside,
}

/// A resampling filter. All but `Nearest` average over the covered area when they shrink an image
/// (antialiasing).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filter {
    /// The nearest pixel.
    Nearest,
    /// Linear interpolation.
    Bilinear,
    /// Cubic convolution with a = -0.5.
    Bicubic,
    /// Lanczos with three lobes.
    Lanczos,
}

/// The channels of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channels {
    /// Red, green, blue.
    Rgb,
    /// Blue, green, red.
    Bgr,
    /// Luma as in ITU-R BT.601: 0.299 R + 0.587 G + 0.114 B.
    Grey,
}

impl Channels {
    pub(crate) fn count(self) -> usize {
        match self {
            Self::Rgb | Self::Bgr => 3,
            Self::Grey => 1,
        }
    }
}

/// The order of the dimensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Batch, channel, row, column.
    Nchw,
    /// Batch, row, column, channel.
    Nhwc,
}

impl Options {
    /// Checks the options that do not depend on the image.
    pub(crate) fn check(&self) -> Result<(), ImageError> {
        match self.element_type {
            ElementType::Fp16 | ElementType::Bf16 | ElementType::Fp32 => {}
            ElementType::Uint8 if self.scale.is_none() && self.mean.is_empty() && self.std.is_empty() => {}
            ElementType::Uint8 => {
                let text = "scale, mean and std apply to floats only: leave them out, or set the element type to fp32, fp16 or bf16";
                return Err(ImageError::options(text));
            }
            other => {
                let text = format!(
                    "an image cannot become {}: set the element type to uint8, fp16, bf16 or fp32",
                    other.as_str().to_lowercase()
                );
                return Err(ImageError::options(text));
            }
        }
        let sizes = self.resize.map(|resize| [resize.width, resize.height]).into_iter().chain(self.crop);
        for [width, height] in sizes {
            if width == 0 || height == 0 || width.max(height) > SIDE_MAX {
                let text = format!("a size of {width} x {height}: each side must be from 1 to {SIDE_MAX}");
                return Err(ImageError::options(text));
            }
        }
        self.check_values("mean", &self.mean, f32::is_finite)?;
        self.check_values("std", &self.std, |value| value.is_finite() && value != 0.0)?;
        if self.scale.is_some_and(|scale| !scale.is_finite()) {
            return Err(ImageError::options("scale must be finite"));
        }
        Ok(())
    }

    fn check_values(
        &self,
        name: &str,
        values: &[f32],
        is_valid: impl Fn(f32) -> bool,
    ) -> Result<(), ImageError> {
        let channels = self.channels.count();
        if !values.is_empty() && values.len() != 1 && values.len() != channels {
            let text = format!(
                "{name} has {} values; give one for each of the {channels} channels, or one for all",
                values.len()
            );
            return Err(ImageError::options(text));
        }
        match values.iter().find(|value| !is_valid(**value)) {
            Some(value) => Err(ImageError::options(format!(
                "{name} has the value {value}; give finite numbers, and no 0 in std"
            ))),
            None => Ok(()),
        }
    }
}
