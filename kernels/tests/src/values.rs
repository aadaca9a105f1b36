//! Pseudo-random numbers, the same in every run.

use weir_graph::TensorType;
use weir_graph::reference::ReferenceTensor;

/// A pseudo-random number generator.
#[derive(Debug, Clone)]
pub struct Values(u64);

impl Values {
    /// Create a generator from a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed ^ 0x9e37_79b9_7f4a_7c15)
    }

    /// A uniform number of 24 random bits, between 0 and 1.
    pub fn unit(&mut self) -> f32 {
        // SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 40) as f32 / 16_777_216.0
    }

    /// Floats between `low` and `high`.
    pub fn floats(&mut self, tensor: &TensorType, low: f32, high: f32) -> ReferenceTensor {
        let data = (0..tensor.elements()).map(|_| low + self.unit() * (high - low)).collect();
        ReferenceTensor::floats(tensor.clone(), data)
    }

    /// Integers from `low` up to, but not including `high`.
    pub fn integers(&mut self, tensor: &TensorType, low: i64, high: i64) -> ReferenceTensor {
        let span = (high - low) as f32;
        let data = (0..tensor.elements()).map(|_| low + (self.unit() * span) as i64).collect();
        ReferenceTensor::integers(tensor.clone(), data)
    }
}
