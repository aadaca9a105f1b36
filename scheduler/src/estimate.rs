//! What placements cost, as learned from those before.

mod load;
pub use load::{LoadTimes, Tier};

mod moving;
pub use moving::Network;

mod run;
pub use run::{RunLine, RunTimes};

/// The nearest whole number of nanoseconds; the conversion saturates, and takes NaN and negative numbers for 0.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturating is what is wanted")]
pub(crate) fn round_ns(ns: f64) -> u64 {
    ns.round() as u64
}
