//! Errors of device operations.

/// Why a device operation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// The device, or a limit on its use, has no room. The context is intact: release memory, or
    /// request less.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    /// A fault has ended the context: a kernel accessed memory out of bounds or hung, or the device
    /// failed. Every later call fails and the context's objects are lost. The process must exit
    /// too, since it cannot create a new context.
    #[error(
        "the device is lost to this process: {call} reports {name} ({what}); the process must be restarted"
    )]
    ContextLost {
        /// The driver function that reported the fault; the fault happened earlier.
        call: &'static str,
        /// The driver's name of the fault.
        name: String,
        /// The driver's description of the fault.
        what: String,
    },
    /// A call was refused, by the driver or by a library above it.
    #[error("{call} failed: {name} ({what})")]
    Failed {
        /// The function.
        call: &'static str,
        /// The returned code.
        code: u32,
        /// Name of the code.
        name: String,
        /// Description of the code, with the compiler's log where there is one.
        what: String,
    },
    /// The request is invalid on any device.
    #[error("{0}")]
    Invalid(String),
}

/// A device has no room for some bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "no room for {asked_bytes} bytes on the device, {missing_bytes} too many: {used_bytes} of {capacity_bytes} bytes are in use"
)]
pub struct OutOfMemory {
    /// The requested bytes.
    pub asked_bytes: u64,
    /// The part of the request that does not fit.
    pub missing_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Bytes that may be used.
    pub capacity_bytes: u64,
}

/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub(super) const OUT_OF_MEMORY: u32 = 2;

/// `CUDA_ERROR_NO_DEVICE`.
pub(super) const NO_DEVICE: u32 = 100;

/// `CUDA_ERROR_NOT_READY`: the queried work has not finished.
pub(super) const NOT_READY: u32 = 600;

impl CudaError {
    /// Whether the context is lost, with everything in it.
    #[must_use]
    pub fn is_context_lost(&self) -> bool {
        matches!(self, Self::ContextLost { .. })
    }

    /// Whether the device has no room, for blocks of a pool or for an object that the driver
    /// creates.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::OutOfMemory(_)) || self.is(OUT_OF_MEMORY)
    }

    /// Classifies an error by the driver's code.
    pub(super) fn from_code(call: &'static str, code: u32, name: String, what: String) -> Self {
        if is_sticky(code) {
            Self::ContextLost { call, name, what }
        } else {
            Self::Failed { call, code, name, what }
        }
    }

    /// Whether the driver refused the call with this code.
    pub(super) fn is(&self, wanted: u32) -> bool {
        matches!(self, Self::Failed { code, .. } if *code == wanted)
    }
}

/// Whether every later call in the context fails too, according to the driver's documentation of
/// its results.
fn is_sticky(code: u32) -> bool {
    matches!(
        code,
        // The driver is shutting down; the context is invalid or destroyed.
        4 | 201 | 709
        // Uncorrectable memory or link errors; the device must be reset.
        | 214 | 220 | 226
        // Illegal address, launch timeout, device-side assertion, faults of a kernel's
        // instructions.
        | 700 | 702 | 710 | 714
            ..=719 | 721
        // Unknown error: later results cannot be trusted.
        | 999
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_distinct_from_refused_calls() {
        let of = |code| CudaError::from_code("cuLaunchKernel", code, String::new(), String::new());
        for sticky in [700, 702, 710, 715, 719, 214, 999] {
            assert!(of(sticky).is_context_lost(), "{sticky}");
        }
        // Invalid value, not ready, too many resources requested, not found.
        for plain in [1, 600, 701, 720, 500] {
            assert!(!of(plain).is_context_lost(), "{plain}");
        }
    }
}
