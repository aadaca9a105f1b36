//! What of a device, and of a model's settings, decides how an operation is launched.

/// A device, as far as launches depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// Ten times the major number of its compute capability, plus the minor one: 90 for an H200.
    pub compute_capability: u32,
    /// How many multiprocessors it has.
    pub multiprocessors: u32,
    /// Shared memory that a block may have if its kernel opts in to more than 48 KiB.
    pub shared_bytes_max: u32,
}

impl Target {
    /// NVIDIA's H200.
    pub const H200: Self = Self { compute_capability: 90, multiprocessors: 132, shared_bytes_max: 232_448 };

    /// Whether it has units for matrices of tf32, bf16 and f16 as the kernels use them.
    #[must_use]
    pub fn has_tensor_units(&self) -> bool {
        self.compute_capability >= 80
    }
}
