//! What may go wrong on a device.

/// Why the device did not do as asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// The device, or what of it may be used, has no room. Nothing is broken: let go of something, or ask for less.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    /// A fault has ended the context: a kernel reached beyond its memory, hung, or the device failed. Every call fails from now on; what the context
    /// held is gone, and so must be the process, since a new context cannot be had in it.
    #[error("the device is lost to this process: {call} reports {name} ({what}); it has to be started anew")]
    ContextLost {
        /// The driver's function that told of it; the fault came earlier.
        call: &'static str,
        /// The driver's name for it.
        name: String,
        /// The driver's words for it.
        what: String,
    },
    /// A call was refused, by the driver or a library above it.
    #[error("{call} failed: {name} ({what})")]
    Failed {
        /// The function.
        call: &'static str,
        /// The number that it has returned.
        code: u32,
        /// Its own name for that.
        name: String,
        /// Its own words for it, and those of its compiler where it has had any.
        what: String,
    },
    /// What was asked for cannot be right, whatever the device.
    #[error("{0}")]
    Invalid(String),
}

/// There is no room for some bytes on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "no room for {asked_bytes} bytes on the device, {missing_bytes} too many: {used_bytes} of {capacity_bytes} bytes are in use"
)]
pub struct OutOfMemory {
    /// What was asked for.
    pub asked_bytes: u64,
    /// How much of it does not fit.
    pub missing_bytes: u64,
    /// What is in use.
    pub used_bytes: u64,
    /// What may be used.
    pub capacity_bytes: u64,
}

/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub(super) const OUT_OF_MEMORY: u32 = 2;

/// `CUDA_ERROR_NO_DEVICE`.
pub(super) const NO_DEVICE: u32 = 100;

/// `CUDA_ERROR_NOT_READY`: asked whether something is over, the driver says that it is not.
pub(super) const NOT_READY: u32 = 600;

impl CudaError {
    /// Whether the context is gone, and everything in it.
    #[must_use]
    pub fn is_context_lost(&self) -> bool {
        matches!(self, Self::ContextLost { .. })
    }

    /// Whether the device has no room, for blocks of a pool or for something that the driver makes.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::OutOfMemory(_)) || self.is(OUT_OF_MEMORY)
    }

    /// Tell the kinds of error apart by the driver's number.
    pub(super) fn of(call: &'static str, code: u32, name: String, what: String) -> Self {
        if is_sticky(code) {
            Self::ContextLost { call, name, what }
        } else {
            Self::Failed { call, code, name, what }
        }
    }

    /// Whether it is this refusal of the driver.
    pub(super) fn is(&self, wanted: u32) -> bool {
        matches!(self, Self::Failed { code, .. } if *code == wanted)
    }
}

/// Whether every later call in the context fails too, by the driver's documentation of its results.
fn is_sticky(code: u32) -> bool {
    matches!(
        code,
        // The driver is shutting down; the context is not valid, or destroyed.
        4 | 201 | 709
        // Uncorrectable errors of memory and links; the device has to be reset.
        | 214 | 220 | 226
        // Illegal address, launch timed out, device-side assertion, faults of a kernel's instructions.
        | 700 | 702 | 710 | 714
            ..=719 | 721
        // Nobody knows: nothing after it can be trusted.
        | 999
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_not_a_refusal() {
        let of = |code| CudaError::of("cuLaunchKernel", code, String::new(), String::new());
        for sticky in [700, 702, 710, 715, 719, 214, 999] {
            assert!(of(sticky).is_context_lost(), "{sticky}");
        }
        // Invalid value, not ready, too many resources asked for, not found.
        for plain in [1, 600, 701, 720, 500] {
            assert!(!of(plain).is_context_lost(), "{plain}");
        }
    }
}
