//! When a program is captured again after a failure.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Runs of a program that are launched kernel by kernel after a failure, before the next attempt. An attempt takes about as long as a run, so that one in a
/// thousand costs next to nothing; and what was the matter, as want of memory, may have passed by then.
const RUNS_BETWEEN_ATTEMPTS: u32 = 1_000;

/// Whether the runs of a program are to be captured: after a failure not for a while, in whichever slot.
#[derive(Debug, Default)]
pub(in crate::cuda) struct CaptureBackoff {
    runs_left: AtomicU32,
}

impl CaptureBackoff {
    /// Whether this run is to be captured.
    pub(in crate::cuda) fn is_due(&self) -> bool {
        self.runs_left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_err()
    }

    /// An attempt has failed, or the graph that came of one.
    pub(in crate::cuda) fn note_failure(&self) {
        self.runs_left.store(RUNS_BETWEEN_ATTEMPTS, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capture_is_attempted_again_after_some_runs() {
        let backoff = CaptureBackoff::default();
        assert!(backoff.is_due() && backoff.is_due());
        backoff.note_failure();
        let skipped = (0..RUNS_BETWEEN_ATTEMPTS).filter(|_| !backoff.is_due()).count();
        assert_eq!(skipped, RUNS_BETWEEN_ATTEMPTS as usize);
        assert!(backoff.is_due());
    }
}
