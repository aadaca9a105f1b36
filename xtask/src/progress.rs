//! Progress of long commands: a numbered line per step, with the elapsed time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Steps of a long command.
pub(crate) struct StepProgress {
    start: Instant,
    steps: usize,
    done: AtomicUsize,
}

impl StepProgress {
    /// Starts a command with `steps` steps.
    pub(crate) fn new(steps: usize) -> Self {
        Self { start: Instant::now(), steps, done: AtomicUsize::new(0) }
    }

    /// Prints the next step.
    pub(crate) fn step(&self, what: &str) {
        let number = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        eprintln!("[{number}/{} {}] {what}", self.steps, elapsed(self.start));
    }

    /// Elapsed time, as `3 min 20 s`.
    pub(crate) fn elapsed(&self) -> String {
        elapsed(self.start)
    }
}

/// Time since `start`, as `3 min 20 s`.
pub(crate) fn elapsed(start: Instant) -> String {
    written(start.elapsed())
}

fn written(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds => format!("{} min {} s", seconds / 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_minutes_and_seconds() {
        assert_eq!(written(Duration::from_millis(59_900)), "59 s");
        assert_eq!(written(Duration::from_secs(205)), "3 min 25 s");
    }
}
