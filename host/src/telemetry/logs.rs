//! What functions write, kept for `GET /v1/functions/{name}/logs`.
//!
//! Each function has a ring of lines; followers get new ones through a bounded channel and are told when they were too slow.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::broadcast;
use weir_types::api::LogLine;

/// The longest line kept; what comes after it starts a new one.
pub(crate) const LINE_BYTES_MAX: usize = 8 << 10;
/// Lines a follower may fall behind.
const FOLLOW_LEN_MAX: usize = 256;

/// The log of one function, over all its versions.
pub(crate) struct FunctionLog {
    lines: Mutex<VecDeque<LogLine>>,
    lines_max: usize,
    follow: broadcast::Sender<LogLine>,
}

impl FunctionLog {
    pub(crate) fn new(lines_max: usize) -> Self {
        Self { lines: Mutex::default(), lines_max, follow: broadcast::Sender::new(FOLLOW_LEN_MAX) }
    }

    pub(crate) fn push(&self, line: LogLine) {
        // Followers first, so that one who reads the ring and then subscribes may miss a line but never see one twice; `tail_and_follow`
        // holds the lock across both, so in fact neither happens.
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() >= self.lines_max {
            lines.pop_front();
        }
        if self.follow.receiver_count() > 0 {
            // An error means that the last follower just left.
            let _ = self.follow.send(line.clone());
        }
        lines.push_back(line);
    }

    /// The last `count` lines, oldest first, and every line that comes after them.
    pub(crate) fn tail_and_follow(&self, count: usize) -> (Vec<LogLine>, broadcast::Receiver<LogLine>) {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let skip = lines.len().saturating_sub(count);
        (lines.iter().skip(skip).cloned().collect(), self.follow.subscribe())
    }
}

/// Milliseconds since the Unix epoch.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_types::Version;

    fn line(text: &str) -> LogLine {
        LogLine {
            at_ms: 0,
            version: Version(1),
            request_id: String::new(),
            stream: "stdout".into(),
            text: text.into(),
        }
    }

    #[test]
    fn the_ring_keeps_the_newest_and_a_follower_continues_where_the_tail_ends() {
        let log = FunctionLog::new(2);
        ["a", "b", "c"].iter().for_each(|text| log.push(line(text)));
        let (tail, mut follow) = log.tail_and_follow(10);
        assert_eq!(tail.iter().map(|l| l.text.as_str()).collect::<Vec<_>>(), ["b", "c"]);
        log.push(line("d"));
        assert_eq!(follow.try_recv().map(|l| l.text), Ok("d".to_owned()));
    }
}
