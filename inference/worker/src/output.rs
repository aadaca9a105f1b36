//! Lines that workers write to standard error. They end in the node's log as fields of structured
//! lines, within bounds: native code in a worker can write anything, at any rate.

use std::io::{self, Read};
use std::process::ChildStderr;
use std::time::{Duration, Instant};
use tracing::warn;

/// Longest logged line, in bytes. The rest of a longer line is dropped.
const LINE_BYTES_MAX: usize = 1_000;
/// Logged bytes per second, over time.
const BYTES_PER_S_MAX: u64 = 2_000;
/// Logged bytes after a quiet time.
const BURST_BYTES_MAX: u64 = 20_000;
/// Bytes that a line counts in addition to its text.
const LINE_BYTES_BESIDE: u64 = 100;

/// Pause between two reads while lines are dropped, and bytes per read: a worker that floods its
/// output waits for the node.
const PAUSE: Duration = Duration::from_millis(10);
const READ_BYTES: usize = 16 << 10;

/// Logs the lines of a worker until it ends.
pub(crate) fn start(worker: String, output: ChildStderr) -> io::Result<()> {
    let log = move || log(&worker, output);
    std::thread::Builder::new().name("weir-worker-log".to_owned()).stack_size(256 << 10).spawn(log)?;
    Ok(())
}

fn log(worker: &str, mut output: impl Read) {
    let mut lines = Lines::new(Instant::now());
    let mut buffer = vec![0; READ_BYTES];
    let log = |line: Line| {
        warn!(worker, line = &*line.text, dropped = line.dropped, "worker output");
    };
    loop {
        match output.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(0) | Err(_) => break lines.end(log),
            Ok(count) => lines.push(buffer.get(..count).unwrap_or_default(), Instant::now(), log),
        }
        if lines.is_dropping() {
            std::thread::sleep(PAUSE);
        }
    }
}

/// Line for the log.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    text: String,
    /// Lines before this one that were dropped.
    dropped: u64,
}

/// Splits output into lines, and drops what exceeds the bounds.
struct Lines {
    /// The unfinished line, at most [`LINE_BYTES_MAX`] bytes of it.
    line: Vec<u8>,
    /// Bytes that may be logged now.
    left_bytes: u64,
    refilled: Instant,
    dropped: u64,
}

impl Lines {
    fn new(now: Instant) -> Self {
        Self { line: Vec::new(), left_bytes: BURST_BYTES_MAX, refilled: now, dropped: 0 }
    }

    /// Whether the last finished line was dropped.
    fn is_dropping(&self) -> bool {
        self.dropped > 0
    }

    fn push(&mut self, bytes: &[u8], now: Instant, mut log: impl FnMut(Line)) {
        self.refill(now);
        let mut pieces = bytes.split(|byte| *byte == b'\n');
        self.extend(pieces.next().unwrap_or_default());
        for piece in pieces {
            self.finish(&mut log);
            self.extend(piece);
        }
    }

    /// Logs the unfinished line, and the number of dropped lines.
    fn end(&mut self, mut log: impl FnMut(Line)) {
        self.finish(&mut log);
        if self.dropped > 0 {
            log(Line { text: String::new(), dropped: self.dropped });
        }
    }

    fn refill(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.refilled);
        let bytes =
            u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX).saturating_mul(BYTES_PER_S_MAX) / 1_000;
        if bytes > 0 {
            self.left_bytes = self.left_bytes.saturating_add(bytes).min(BURST_BYTES_MAX);
            self.refilled = now;
        }
    }

    fn extend(&mut self, piece: &[u8]) {
        let room = LINE_BYTES_MAX.saturating_sub(self.line.len());
        self.line.extend_from_slice(piece.get(..room).unwrap_or(piece));
    }

    fn finish(&mut self, log: &mut impl FnMut(Line)) {
        let line = std::mem::take(&mut self.line);
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        if text.is_empty() {
            return;
        }
        let bytes = text.len() as u64 + LINE_BYTES_BESIDE;
        match self.left_bytes.checked_sub(bytes) {
            Some(left) => {
                self.left_bytes = left;
                log(Line { text: text.to_owned(), dropped: std::mem::take(&mut self.dropped) });
            }
            None => self.dropped += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pushed(lines: &mut Lines, bytes: &[u8], now: Instant) -> Vec<Line> {
        let mut logged = Vec::new();
        lines.push(bytes, now, |line| logged.push(line));
        logged
    }

    fn line(text: &str, dropped: u64) -> Line {
        Line { text: text.to_owned(), dropped }
    }

    #[test]
    fn output_is_split_into_lines_across_reads() {
        let now = Instant::now();
        let mut lines = Lines::new(now);
        assert_eq!(pushed(&mut lines, b"one\ntw", now), [line("one", 0)]);
        assert_eq!(pushed(&mut lines, b"o\r\n\n\xff\n", now), [line("two", 0), line("\u{fffd}", 0)]);
        assert_eq!(pushed(&mut lines, b"last", now), []);
        let mut last = Vec::new();
        lines.end(|line| last.push(line));
        assert_eq!(last, [line("last", 0)]);
    }

    #[test]
    fn long_lines_are_cut() {
        let now = Instant::now();
        let mut lines = Lines::new(now);
        for _ in 0..1_000 {
            assert_eq!(pushed(&mut lines, &[b'x'; 1_000], now), []);
            assert!(lines.line.len() <= LINE_BYTES_MAX);
        }
        assert_eq!(pushed(&mut lines, b"\nnext\n", now), [line(&"x".repeat(1_000), 0), line("next", 0)]);
    }

    #[test]
    fn flood_is_dropped_counted_and_over_once_it_ends() {
        let start = Instant::now();
        let mut lines = Lines::new(start);
        let flood = b"forged\n".repeat(1_000);
        let logged = pushed(&mut lines, &flood, start);
        let bytes = |lines: &[Line]| lines.iter().map(|line| line.text.len() as u64 + 100).sum::<u64>();
        assert!(bytes(&logged) <= BURST_BYTES_MAX && lines.is_dropping());
        // A second of flood, in pieces.
        let mut during = Vec::new();
        for ms in 1..=1_000 {
            during.extend(pushed(&mut lines, &flood, start + Duration::from_millis(ms)));
        }
        // The rest of the burst, which was too little for a line, counts too.
        assert!(!during.is_empty() && bytes(&during) <= BYTES_PER_S_MAX + 106);
        let dropped: u64 = during.iter().map(|line| line.dropped).sum();
        let all = 1_000 * 1_001;
        assert_eq!(logged.len() as u64 + during.len() as u64 + dropped + lines.dropped, all);
        let rest = lines.dropped;
        let later = start + Duration::from_secs(60);
        assert_eq!(pushed(&mut lines, b"honest\n", later), [line("honest", rest)]);
        assert!(!lines.is_dropping());
    }

    #[test]
    fn number_of_dropped_lines_is_logged_at_the_end() {
        let now = Instant::now();
        let mut lines = Lines::new(now);
        lines.left_bytes = 0;
        assert_eq!(pushed(&mut lines, b"one\ntwo\n", now), []);
        let mut last = Vec::new();
        lines.end(|line| last.push(line));
        assert_eq!(last, [line("", 2)]);
    }
}
