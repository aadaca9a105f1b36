//! The choice of the traced calls.

use std::sync::atomic::{AtomicU64, Ordering};

/// Samples the last of every n calls. The ratio holds without random numbers, and a few calls made
/// by hand are not traced.
#[derive(Debug)]
pub struct Sampler {
    /// None: samples nothing.
    every: Option<u64>,
    seen: AtomicU64,
}

impl Sampler {
    /// Creates a sampler; `ratio` is from 0 (never) to 1 (always).
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a ratio in (0, 1] has a reciprocal of at least 1"
    )]
    pub fn new(ratio: f64) -> Self {
        let every = (ratio > 0.0).then(|| (1.0 / ratio.min(1.0)).round() as u64);
        Self { every, seen: AtomicU64::new(0) }
    }

    pub(super) fn sample(&self) -> bool {
        self.every.is_some_and(|every| (self.seen.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(every))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampler_keeps_its_ratio() {
        let count = |ratio| {
            let sampler = Sampler::new(ratio);
            (0..1_000).filter(|_| sampler.sample()).count()
        };
        assert_eq!((count(0.0), count(0.01), count(1.0)), (0, 10, 1_000));
    }
}
