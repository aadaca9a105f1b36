//! The files of kernels, and what they were compiled to.

/// A file of kernels: one `.cu` file in `cuda/`, and its PTX for each family of devices in `ptx/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Module {
    /// Moving elements.
    Copy,
    /// Fused elementwise expressions.
    Elementwise,
    /// Products of matrices on any device.
    Gemm,
    /// Products of matrices by the units for matrices.
    GemmTensor,
    /// Convolution on any device.
    Conv,
    /// Convolution by the units for matrices.
    ConvTensor,
    /// Pooling, local response normalisation, other sizes.
    Picture,
    /// One number of each row; selection; running sums.
    Reduce,
    /// Softmax and layer normalisation.
    Normalise,
    /// Attention.
    Attention,
    /// Elements picked by index.
    Gather,
}

impl Module {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Copy,
        Self::Elementwise,
        Self::Gemm,
        Self::GemmTensor,
        Self::Conv,
        Self::ConvTensor,
        Self::Picture,
        Self::Reduce,
        Self::Normalise,
        Self::Attention,
        Self::Gather,
    ];

    /// The name of its file, without the ending.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Elementwise => "elementwise",
            Self::Gemm => "gemm",
            Self::GemmTensor => "gemm_tensor",
            Self::Conv => "conv",
            Self::ConvTensor => "conv_tensor",
            Self::Picture => "picture",
            Self::Reduce => "reduce",
            Self::Normalise => "normalise",
            Self::Attention => "attention",
            Self::Gather => "gather",
        }
    }

    /// The least compute capability that it is compiled for.
    #[must_use]
    pub fn compute_capability_min(self) -> u32 {
        if matches!(self, Self::GemmTensor | Self::ConvTensor) { 80 } else { 75 }
    }
}
