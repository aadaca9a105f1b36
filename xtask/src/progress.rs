//! What long commands say while they work: a numbered line for each step, with the time since the start.

use std::time::{Duration, Instant};

/// The steps of a long command.
pub(crate) struct Progress {
    start: Instant,
    steps: usize,
    done: usize,
}

impl Progress {
    /// A command of so many steps that starts now.
    pub(crate) fn new(steps: usize) -> Self {
        Self { start: Instant::now(), steps, done: 0 }
    }

    /// Say which step begins.
    pub(crate) fn step(&mut self, what: &str) {
        self.done += 1;
        eprintln!("[{}/{} {}] {what}", self.done, self.steps, elapsed(self.start));
    }

    /// The time since the start, as `3 min 20 s`.
    pub(crate) fn elapsed(&self) -> String {
        elapsed(self.start)
    }
}

/// The time since `start`, as `3 min 20 s`.
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
    fn times_are_written_in_minutes_and_seconds() {
        assert_eq!(written(Duration::from_millis(59_900)), "59 s");
        assert_eq!(written(Duration::from_secs(205)), "3 min 25 s");
    }
}
