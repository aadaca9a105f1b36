//! Limits of kernel graphs and their runs.

/// Maximum size of an upload, including sources and constants.
pub const UPLOAD_BYTES_MAX: usize = 16 << 20;
/// Alignment of every buffer in bytes.
pub const ALIGNMENT_BYTES: u64 = weir_graph::ALIGNMENT_BYTES as u64;
/// Maximum number of launches and fills of a run.
pub const STEPS_MAX: usize = 4_096;

/// Description of a block's thread count in error messages.
pub(crate) const THREADS: &str = "the number of threads in a block";
/// Maximum number of blocks along each dimension, from the CUDA programming guide.
pub(crate) const GRID_MAX: [i128; 3] = [i32::MAX as i128, 65_535, 65_535];
/// Maximum number of threads per block along each dimension. The first number is also the maximum
/// per block.
pub(crate) const BLOCK_MAX: [i128; 3] = [1_024, 1_024, 64];
/// Maximum shared memory per block on any device, in bytes.
pub(crate) const SHARED_BYTES_MAX: i128 = 227 << 10;
/// Maximum memory of a run in bytes: more than any device has, and small enough that sums of sizes
/// cannot overflow.
pub(crate) const MEMORY_BYTES_MAX: u64 = 1 << 46;
