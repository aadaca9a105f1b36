//! Operations on images: values of four dimensions, batch N, channels C, height H and width W.

use super::Activation;

/// Order of the dimensions of images and filters in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ImageLayout {
    /// Images are `[N,C,H,W]`, filters `[M,C,KH,KW]`, as in ONNX.
    #[default]
    ChannelsFirst,
    /// Images are `[N,H,W,C]`, filters `[M,KH,KW,C]`, as tensor cores read them.
    ChannelsLast,
}

/// Divisor of the number of channels of filters that a model stores with channels last: the elements
/// of a read of 16 bytes in the smallest type.
pub const CHANNELS_MULTIPLE: usize = 8;

/// Two-dimensional convolution with an epilogue:
/// `y = activation(scale[c] * (conv(x, w) + bias[c]) + shift[c] + residual)`. An omitted summand is
/// 0, and an omitted `scale` is 1.
///
/// Operands: `x[N,C,H,W]`, `w[M,C/groups,KH,KW]`, then optionally `bias[M]`, `scale[M]`,
/// `shift[M]`, `residual[N,M,OH,OW]`. Output: `y[N,M,OH,OW]`. A one-dimensional convolution has a
/// height of 1. The layouts may put the channels last.
#[derive(Debug, Clone, PartialEq)]
pub struct Conv {
    /// Number of independent groups of channels; divides C and M.
    pub groups: usize,
    /// Vertical and horizontal step between windows.
    pub strides: [usize; 2],
    /// Zeros above and left of the image.
    pub pads_begin: [usize; 2],
    /// Zeros below and right of the image.
    pub pads_end: [usize; 2],
    /// Vertical and horizontal step between elements of a window.
    pub dilations: [usize; 2],
    /// Activation of each element, applied last.
    pub activation: Option<Activation>,
    /// Layout of `x`, the residual and `y`. Only the filters of one group can have channels last.
    pub images: ImageLayout,
    /// Layout of `w`.
    pub filters: ImageLayout,
}

impl ImageLayout {
    /// The dimensions `[N,C,H,W]` of images, or `[M,C,KH,KW]` of filters, that have `dims` in this
    /// layout.
    #[must_use]
    pub fn channels_first(self, dims: [usize; 4]) -> [usize; 4] {
        let [n, a, b, c] = dims;
        match self {
            Self::ChannelsFirst => dims,
            Self::ChannelsLast => [n, c, a, b],
        }
    }

    /// The dimensions in this layout of images `[N,C,H,W]`, or filters `[M,C,KH,KW]`.
    #[must_use]
    pub fn with_dims(self, dims: [usize; 4]) -> [usize; 4] {
        let [n, c, h, w] = dims;
        match self {
            Self::ChannelsFirst => dims,
            Self::ChannelsLast => [n, h, w, c],
        }
    }
}

impl Conv {
    /// Operand: the images.
    pub const X: usize = 0;
    /// Operand: the filters.
    pub const W: usize = 1;
    /// Operand, optional: added to each channel of the convolution.
    pub const BIAS: usize = 2;
    /// Operand, optional: multiplied to each channel, after the bias.
    pub const SCALE: usize = 3;
    /// Operand, optional: added to each channel, after the scale.
    pub const SHIFT: usize = 4;
    /// Operand, optional: added element by element, before the activation.
    pub const RESIDUAL: usize = 5;
    /// Number of operands, including omitted ones.
    pub const OPERANDS: usize = 6;
}

/// Maximum or mean of each window. Operand: `x[N,C,H,W]`; output: `y[N,C,OH,OW]`. The layout may put
/// the channels last.
///
/// Elements of a window outside the image count neither for the maximum nor for the mean. OH and OW
/// already include rounding up, so a window may begin inside the padded image and end beyond it. A
/// window without an element inside the image gives 0 as its mean, and negative infinity (for
/// integers the smallest number) as its maximum.
#[derive(Debug, Clone, PartialEq)]
pub struct Pooling {
    /// Number computed from each window.
    pub kind: PoolKind,
    /// Height and width of the window.
    pub kernel: [usize; 2],
    /// Vertical and horizontal step between windows.
    pub strides: [usize; 2],
    /// Padding above and left of the image.
    pub pads_begin: [usize; 2],
    /// Padding below and right of the image.
    pub pads_end: [usize; 2],
    /// Vertical and horizontal step between elements of a window.
    pub dilations: [usize; 2],
    /// Layout of `x` and `y`.
    pub layout: ImageLayout,
}

/// Number computed from a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolKind {
    /// The maximum.
    Max,
    /// The mean.
    Average {
        /// Whether padding counts as elements of value 0. If so, the divisor is the number of the
        /// window's elements inside the padded image, `[-pads_begin, size + pads_end)`; otherwise,
        /// the number of its elements inside the image.
        count_padding: bool,
    },
}

/// Local response normalisation: `y = x / (bias + alpha / size * sum(x^2))^beta`, the sum over the
/// existing channels of `c - (size-1)/2 ..= c + size/2` (both rounded down).
///
/// Operand: `x[N,C,..]`; output of the same dimensions.
#[derive(Debug, Clone, PartialEq)]
pub struct Lrn {
    /// Number of channels in a sum.
    pub size: usize,
    /// Factor of the sum.
    pub alpha: f32,
    /// Exponent of the divisor.
    pub beta: f32,
    /// Summand of the divisor.
    pub bias: f32,
}

/// Image resizing. Operand: `x[N,C,H,W]`; output: `y[N,C,OH,OW]`. The two directions are
/// independent.
#[derive(Debug, Clone, PartialEq)]
pub struct Resize {
    /// Interpolation between source elements.
    pub mode: ResizeMode,
    /// Mapping from output coordinates to source coordinates.
    pub coordinates: Coordinates,
    /// Vertical and horizontal ratio of output size to input size, as the model states it; may
    /// differ from the exact quotient of the sizes.
    pub scales: [f32; 2],
}

/// Interpolation mode of a resized image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResizeMode {
    /// Nearest source element, with the coordinate clamped to the image.
    Nearest(Nearest),
    /// Linear interpolation between the two nearest elements in each direction, with the coordinate
    /// clamped to the image.
    Linear,
}

/// Rounding of a coordinate to the nearest integer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nearest {
    /// Round halves down: `ceil(x - 0.5)`.
    RoundPreferFloor,
    /// Round halves up: `floor(x + 0.5)`.
    RoundPreferCeil,
    /// Round down.
    Floor,
    /// Round up.
    Ceil,
}

/// Source coordinate of element `i` of `o` along a direction, in an image of `n` elements and with
/// the scale `s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coordinates {
    /// `(i + 0.5) / s - 0.5`.
    HalfPixel,
    /// Half pixel, with the rounding of `s` compensated equally at both ends: with
    /// `a = o / (s * n)`, plus `n / 2 * (1 - a)`.
    HalfPixelSymmetric,
    /// The same as [`Coordinates::HalfPixel`], but 0 if `o` is 1.
    PytorchHalfPixel,
    /// `i * (n - 1) / (o - 1)`, but 0 if `o` is 1.
    AlignCorners,
    /// `i / s`.
    Asymmetric,
    /// `(i + 0.5) / s`: nearest neighbours as in the oldest version of TensorFlow.
    TfHalfPixelForNearest,
}
