//! Times that are learned as loads end and invocations finish.

use crate::estimate::{Bandwidths, RunTimes};

/// Times of all models and functions, by kind of device.
#[derive(Debug, Default)]
pub(super) struct AllTimes {
    /// Load times of models by size.
    pub(super) loads: Bandwidths,
    /// Times of transfers between tiers by size.
    pub(super) transfers: Bandwidths,
    pub(super) runs: RunTimes,
}

/// Times of one function by kind of device, with all models in memory.
#[derive(Debug, Clone, Default)]
pub(super) struct FunctionTimes {
    /// Device time of an invocation. Where the driver does not measure it, the time from start to
    /// end.
    pub(super) run: RunTimes,
    /// Time of an invocation off the device, without waits: wall time is both together.
    pub(super) off_device: RunTimes,
}
