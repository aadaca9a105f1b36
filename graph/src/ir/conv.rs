//! Operations on pictures: values of four dimensions, batch N, channels C, height H and width W.

use super::Activation;

/// A convolution in two dimensions with what follows it: `y = activation(scale[c] * (conv(x, w) + bias[c]) + shift[c] + residual)`.
/// What is left out of the sum is 0, and `scale` is 1.
///
/// Operands: `x[N,C,H,W]`, `w[M,C/groups,KH,KW]`, then optionally `bias[M]`, `scale[M]`, `shift[M]`, `residual[N,M,OH,OW]`. Output:
/// `y[N,M,OH,OW]`. A convolution in one dimension has a height of 1.
#[derive(Debug, Clone, PartialEq)]
pub struct Conv {
    /// Groups of channels that do not see each other; divides C and M.
    pub groups: usize,
    /// Steps from window to window, down and across.
    pub strides: [usize; 2],
    /// Zeros above and left of the picture.
    pub pads_begin: [usize; 2],
    /// Zeros below and right of it.
    pub pads_end: [usize; 2],
    /// Steps from one element of a window to the next.
    pub dilations: [usize; 2],
    /// What is done to each element at the end.
    pub activation: Option<Activation>,
}

impl Conv {
    /// Operand: the pictures.
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
    /// How many operands there are, with those left out.
    pub const OPERANDS: usize = 6;
}

/// The largest element or the mean of each window. Operand: `x[N,C,H,W]`; output: `y[N,C,OH,OW]`.
///
/// Elements of a window outside the picture are left out of both. Rounding up has been seen to in OH and OW, so a window may begin inside the
/// padded picture and end beyond it. Every window has at least one element inside the picture, or else gives 0 for a mean and negative infinity (for
/// integers the smallest number) for the largest.
#[derive(Debug, Clone, PartialEq)]
pub struct Pool {
    /// What is taken of each window.
    pub kind: PoolKind,
    /// Height and width of the window.
    pub kernel: [usize; 2],
    /// Steps from window to window, down and across.
    pub strides: [usize; 2],
    /// Padding above and left of the picture.
    pub pads_begin: [usize; 2],
    /// Padding below and right of it.
    pub pads_end: [usize; 2],
    /// Steps from one element of a window to the next.
    pub dilations: [usize; 2],
}

/// What is taken of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolKind {
    /// The largest element.
    Max,
    /// The mean.
    Average {
        /// Whether the padding counts as elements that are 0: what is divided by is the number of the window's elements inside the padded picture,
        /// `[-pads_begin, size + pads_end)`, not only of those inside the picture itself.
        count_padding: bool,
    },
}

/// Local response normalisation: `y = x / (bias + alpha / size * sum(x^2))^beta`, the sum over channels `c - (size-1)/2 ..= c + size/2`
/// (both rounded down) as far as they exist.
///
/// Operand: `x[N,C,..]`; output of the same dimensions.
#[derive(Debug, Clone, PartialEq)]
pub struct Lrn {
    /// How many channels are summed.
    pub size: usize,
    /// The factor.
    pub alpha: f32,
    /// The power.
    pub beta: f32,
    /// What is added.
    pub bias: f32,
}

/// Pictures of another size. Operand: `x[N,C,H,W]`; output: `y[N,C,OH,OW]`. Both directions are independent.
#[derive(Debug, Clone, PartialEq)]
pub struct Resize {
    /// How an element is made of those around the place where it comes from.
    pub mode: ResizeMode,
    /// Where in the picture an element comes from.
    pub coordinates: Coordinates,
    /// Output size by input size as the model says it, down and across; need not be the exact quotient of the sizes.
    pub scales: [f32; 2],
}

/// How an element of a resized picture is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResizeMode {
    /// The nearest one, the place being clamped to the picture.
    Nearest(Nearest),
    /// Of the two nearest in each direction by distance, the place being clamped to the picture.
    Linear,
}

/// Which integer is nearest to a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nearest {
    /// Halves go down: `ceil(x - 0.5)`.
    RoundPreferFloor,
    /// Halves go up: `floor(x + 0.5)`.
    RoundPreferCeil,
    /// The one below.
    Floor,
    /// The one above.
    Ceil,
}

/// Where element `i` of `o` along a direction comes from in a picture of `n`, the scale being `s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coordinates {
    /// `(i + 0.5) / s - 0.5`.
    HalfPixel,
    /// The same, with an `s` whose rounding is made up for at both ends alike: with `a = o / (s * n)`, plus `n / 2 * (1 - a)`.
    HalfPixelSymmetric,
    /// The same as [`Coordinates::HalfPixel`], but 0 if `o` is 1.
    PytorchHalfPixel,
    /// `i * (n - 1) / (o - 1)`, but 0 if `o` is 1.
    AlignCorners,
    /// `i / s`.
    Asymmetric,
    /// `(i + 0.5) / s`: nearest neighbours as the oldest TensorFlow has them.
    TfHalfPixelForNearest,
}
