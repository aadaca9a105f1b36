//! Backoff between attempts to capture a program.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Number of runs launched kernel by kernel between a failed capture and the next attempt. An
/// attempt takes about as long as a run, so one attempt in a thousand runs costs little, and a
/// temporary cause, such as a lack of memory, may be over by then.
const RUNS_BETWEEN_ATTEMPTS: u32 = 1_000;

/// Backoff for the captures of a program, shared by all slots.
#[derive(Debug, Default)]
pub(crate) struct CaptureBackoff {
    runs_left: AtomicU32,
}

impl CaptureBackoff {
    /// Returns whether this run should be captured.
    pub(crate) fn is_due(&self) -> bool {
        self.runs_left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_err()
    }

    /// Records that a capture failed, or that its graph failed.
    pub(crate) fn note_failure(&self) {
        self.runs_left.store(RUNS_BETWEEN_ATTEMPTS, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capture_is_retried_after_some_runs() {
        let backoff = CaptureBackoff::default();
        assert!(backoff.is_due() && backoff.is_due());
        backoff.note_failure();
        let skipped = (0..RUNS_BETWEEN_ATTEMPTS).filter(|_| !backoff.is_due()).count();
        assert_eq!(skipped, RUNS_BETWEEN_ATTEMPTS as usize);
        assert!(backoff.is_due());
    }
}
