//! Epilogue of a product, applied before its sums are stored: `EpilogueOutput` and `Activation` in
//! the kernels.

use super::type_code;
use crate::fields::Fields;
use weir_graph::{Activation, TensorType};
use weir_types::ElementType;

/// Destination and epilogue of the sums: `EpilogueOutput` in `epilogue.cuh`.
#[derive(Debug, Clone)]
pub(super) struct EpilogueOutput {
    pub(super) z_stride: u64,
    pub(super) image_stride: u64,
    pub(super) m: u32,
    pub(super) n: u32,
    pub(super) image_columns: u32,
    pub(super) vectors_along_n: bool,
    pub(super) vector_z_stride: u32,
    pub(super) vector_type: u32,
    pub(super) alpha: f32,
    pub(super) activation: Option<Activation>,
}

impl EpilogueOutput {
    pub(super) fn fields(&self) -> Fields {
        let (kind, alpha, beta) = activation_code(self.activation);
        Fields::default()
            .u64(self.z_stride)
            .u64(self.image_stride)
            .u32(self.m)
            .u32(self.n)
            .u32(self.image_columns)
            .u32(u32::from(self.vectors_along_n))
            .u32(self.vector_z_stride)
            .u32(self.vector_type)
            .f32(self.alpha)
            .u32(kind)
            .f32(alpha)
            .f32(beta)
    }
}

/// Code of an activation in kernels, `ActivationKind` in `prelude.cuh`, and its two parameters.
pub(super) fn activation_code(activation: Option<Activation>) -> (u32, f32, f32) {
    let Some(activation) = activation else { return (0, 0.0, 0.0) };
    match activation {
        Activation::Relu => (1, 0.0, 0.0),
        Activation::LeakyRelu(slope) => (2, slope, 0.0),
        Activation::Clip { min, max } => (3, min, max),
        Activation::Sigmoid => (4, 0.0, 0.0),
        Activation::Tanh => (5, 0.0, 0.0),
        Activation::Silu => (6, 0.0, 0.0),
        Activation::HardSigmoid { alpha, beta } => (7, alpha, beta),
        Activation::HardSwish => (8, 0.0, 0.0),
        Activation::Gelu => (9, 0.0, 0.0),
        Activation::GeluTanh => (10, 0.0, 0.0),
        Activation::Softplus => (11, 0.0, 0.0),
    }
}

/// Type code that all vectors of an epilogue share.
pub(super) fn vector_type(vectors: &[Option<&TensorType>]) -> Result<u32, String> {
    let mut types = vectors.iter().flatten().map(|vector| vector.element_type());
    let first = types.next().unwrap_or(ElementType::Fp32);
    match types.find(|other| *other != first) {
        Some(other) => Err(format!("with vectors of both {first} and {other}")),
        None => type_code(first),
    }
}
