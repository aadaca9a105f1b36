//! Cost estimates for placements, learned from earlier loads and runs.

mod load;
pub use load::{Bandwidths, LoadTimes, StorageTier};

mod moving;
pub use moving::Network;

mod run;
pub use run::{RunLine, RunTimes};

/// Rounds to the nearest whole nanosecond. The conversion saturates, and maps NaN and negative
/// numbers to 0.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturation is intended")]
pub(crate) fn round_ns(ns: f64) -> u64 {
    ns.round() as u64
}
