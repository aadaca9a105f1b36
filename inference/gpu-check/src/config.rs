//! Configuration of the checks, and the errors that end them.

use crate::stage::CaseSelection;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use weir_cuda::executor::RunFailure;
use weir_device::cuda::{CudaError, Devices, Library, Search, Unavailable, locate_library};
use weir_inference::InferenceError;

/// Warm-up time before each measurement, in milliseconds, after which a device runs at full clocks.
pub const WARM_UP_MS: u64 = 300;

/// Configuration of the checks.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CheckConfig {
    /// Ordinal of the device.
    pub ordinal: u32,
    /// Device memory that the checks may use, in bytes.
    pub memory_bytes_max: u64,
    /// ONNX models for `Stage::Networks`, `Stage::Functions` and `Stage::Worker`.
    pub models: Vec<PathBuf>,
    /// Batch sizes of `Stage::Networks`, for models with a variable batch size.
    pub batches: Vec<u32>,
    /// Repeats of each measurement.
    pub repeats: u32,
    /// Warm-up time before each measurement, in milliseconds: [`WARM_UP_MS`], or less on the fake
    /// driver.
    pub warm_up_ms: u64,
    /// Minimum number of floating-point operations of a matrix product for cuBLASLt, where the
    /// stages do not compare it with Weir's own kernels.
    pub library_flops_min: u64,
    /// Selection of the cases.
    pub selection: CaseSelection,
    /// Search paths of NVIDIA's libraries. Not serialised: each process has its own.
    #[serde(skip)]
    pub search: Search,
}

/// Reason for the early end of a stage.
#[derive(Debug, thiserror::Error)]
pub enum CheckFailure {
    /// The device rejected a call, or is lost.
    #[error(transparent)]
    Device(#[from] CudaError),
    /// A model failed to load or run.
    #[error(transparent)]
    Model(#[from] InferenceError),
}

impl From<RunFailure> for CheckFailure {
    fn from(failure: RunFailure) -> Self {
        match failure {
            RunFailure::Device(error) => Self::Device(error),
            RunFailure::Model(error) => Self::Model(error),
        }
    }
}

impl CheckConfig {
    /// Finds one of NVIDIA's libraries.
    pub(crate) fn library(&self, library: Library, devices: &Devices) -> Result<PathBuf, Unavailable> {
        locate_library(library, &self.search, devices.driver_major())
    }
}

impl CheckFailure {
    /// Returns whether this process has lost the device, so that no later case can run in the
    /// process.
    #[must_use]
    pub fn is_device_lost(&self) -> bool {
        match self {
            Self::Device(error) => error.is_context_lost(),
            Self::Model(error) => error.is_device_loss(),
        }
    }
}
