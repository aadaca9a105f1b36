//! Short waits without sleeping.

use std::thread::yield_now;
use std::time::{Duration, Instant};

/// The longest such wait: longer than the bus takes for any block.
const WATCH: Duration = Duration::from_micros(200);

/// Waits until `is_over`, or until a sleep is worth its wake-up. Gives way to other threads.
/// Returns whether it is over.
pub(super) fn watch(mut is_over: impl FnMut() -> bool) -> bool {
    if is_over() {
        return true;
    }
    let began = Instant::now();
    loop {
        yield_now();
        if is_over() {
            return true;
        }
        if began.elapsed() >= WATCH {
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watch_ends_with_its_condition_or_its_time() {
        assert!(watch(|| true));
        let mut looks = 0;
        assert!(watch(|| {
            looks += 1;
            looks == 2
        }));
        let began = Instant::now();
        assert!(!watch(|| false));
        assert!(began.elapsed() >= WATCH);
    }
}
