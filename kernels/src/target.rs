//! Properties of a device that decide how an operation is launched.

/// Properties of a device that launches depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelTarget {
    /// Compute capability: ten times the major version plus the minor version; 90 for an H200.
    pub compute_capability: u32,
    /// Number of multiprocessors.
    pub multiprocessors: u32,
    /// Shared memory of a block whose kernel opts in to more than 48 KiB.
    pub shared_bytes_max: u32,
}

impl KernelTarget {
    /// NVIDIA H200.
    pub const H200: Self = Self { compute_capability: 90, multiprocessors: 132, shared_bytes_max: 232_448 };

    /// Whether the device has tensor cores for tf32, bf16 and f16, as the kernels use them.
    #[must_use]
    pub fn has_tensor_units(&self) -> bool {
        self.compute_capability >= 80
    }
}
