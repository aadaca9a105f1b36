//! Function logs, for `GET /v1/functions/{name}/logs`.
//!
//! Each function has a ring of lines, bounded in lines and bytes. All rings share a budget; when it
//! is used up, the largest ring of the tenant with the most bytes drops its older half, so that no
//! tenant displaces the lines of tenants that log less. Followers get new lines through a bounded
//! channel, and learn how many lines they missed if they are too slow.

use super::{AuditConfig, FunctionMetrics};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::broadcast;
use weir_types::api::LogLine;

/// Length limit of a line; the text after it starts a new line.
pub const LINE_BYTES_MAX: usize = 8 << 10;
/// Lines that are buffered for a follower.
const FOLLOW_LEN_MAX: usize = 256;
/// Half of the capacity, in lines, below which a ring does not shrink.
const ROOM_LEN_MIN: usize = 8;

/// Logs of functions: the lines that the node keeps in memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogsConfig {
    /// Log lines kept per function.
    pub function_lines_max: usize,
    /// Memory for the log lines kept per function.
    pub function_bytes_max: u64,
    /// Memory for the log lines kept of all functions. When it is full, the largest log of the
    /// tenant with the most log bytes drops its older half.
    pub bytes_max: u64,
    /// The audit log: who changed what, and with which outcome.
    pub audit: AuditConfig,
}

impl Default for LogsConfig {
    fn default() -> Self {
        Self {
            function_lines_max: 1_000,
            function_bytes_max: 1 << 20,
            bytes_max: 64 << 20,
            audit: AuditConfig::default(),
        }
    }
}

/// Logs of all functions of a node.
pub struct Logs {
    config: LogsConfig,
    used_bytes: AtomicU64,
    all: Mutex<Vec<Weak<FunctionLog>>>,
}

impl Logs {
    /// Creates the logs of a node, empty.
    pub fn new(config: LogsConfig) -> Arc<Self> {
        Arc::new(Self { config, used_bytes: AtomicU64::new(0), all: Mutex::default() })
    }

    /// Opens an empty log for a function that is counted in `metrics`. Dropping the log returns its
    /// memory to the budget.
    pub fn open(self: &Arc<Self>, metrics: FunctionMetrics) -> Arc<FunctionLog> {
        let log = Arc::new(FunctionLog {
            state: Mutex::default(),
            bytes: AtomicU64::new(0),
            logs: self.clone(),
            metrics,
        });
        let mut all = self.all.lock();
        all.retain(|log| log.strong_count() > 0);
        all.push(Arc::downgrade(&log));
        log
    }

    /// Enforces the shared budget. Drops half of a log, so that this is rarely needed.
    fn make_room(&self) {
        while self.used_bytes.load(Ordering::Relaxed) > self.config.bytes_max {
            let Some(largest) = self.largest_of_largest_tenant() else { return };
            let mut state = largest.state.lock();
            largest.trim(&mut state, usize::MAX, largest.bytes() / 2);
        }
    }

    /// The largest log of the tenant whose logs take the most memory; `None` if all logs are empty.
    fn largest_of_largest_tenant(&self) -> Option<Arc<FunctionLog>> {
        let logs: Vec<_> = self.all.lock().iter().filter_map(Weak::upgrade).collect();
        let mut tenants: HashMap<&str, TenantLogs<'_>> = HashMap::new();
        for log in &logs {
            let bytes = log.bytes();
            let tenant = tenants.entry(log.metrics.tenant()).or_default();
            tenant.bytes += bytes;
            if bytes > tenant.largest_bytes {
                tenant.largest_bytes = bytes;
                tenant.largest = Some(log);
            }
        }
        tenants.into_values().max_by_key(|tenant| tenant.bytes)?.largest.cloned()
    }
}

/// Memory of one tenant's logs.
#[derive(Default)]
struct TenantLogs<'a> {
    bytes: u64,
    /// The largest log; `None` if all are empty.
    largest: Option<&'a Arc<FunctionLog>>,
    largest_bytes: u64,
}

/// Log of one function, over all its versions.
pub struct FunctionLog {
    state: Mutex<LogState>,
    /// Size of `state`; changes only under its lock.
    bytes: AtomicU64,
    logs: Arc<Logs>,
    metrics: FunctionMetrics,
}

#[derive(Default)]
struct LogState {
    lines: VecDeque<LogLine>,
    /// Present while the log has followers.
    follow: Option<broadcast::Sender<LogLine>>,
}

impl FunctionLog {
    /// Appends a line, sends it to followers, and drops the oldest lines above the limits.
    pub fn push(&self, line: LogLine) {
        let mut state = self.state.lock();
        // An error means that the last follower has left.
        if state.follow.as_ref().is_some_and(|follow| follow.send(line.clone()).is_err()) {
            state.follow = None;
        }
        let bytes = bytes_of(&line);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let used_bytes = self.logs.used_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        state.lines.push_back(line);
        let config = &self.logs.config;
        self.trim(&mut state, config.function_lines_max, config.function_bytes_max);
        drop(state);
        if used_bytes > config.bytes_max {
            self.logs.make_room();
        }
    }

    /// Counts bytes that the log limit did not let through.
    pub fn dropped(&self, bytes: u64) {
        self.metrics.log_dropped(bytes);
    }

    /// Returns the last `count` lines, oldest first.
    pub fn tail(&self, count: usize) -> Vec<LogLine> {
        self.state.lock().tail(count)
    }

    /// Returns the last `count` lines, oldest first, and a receiver for all later lines.
    pub fn tail_and_follow(&self, count: usize) -> (Vec<LogLine>, broadcast::Receiver<LogLine>) {
        // One lock for both, so that each line is either in the tail or sent to the receiver.
        let mut state = self.state.lock();
        (
            state.tail(count),
            state.follow.get_or_insert_with(|| broadcast::Sender::new(FOLLOW_LEN_MAX)).subscribe(),
        )
    }

    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Drops the oldest lines until the log is within these limits.
    fn trim(&self, state: &mut LogState, lines_max: usize, bytes_max: u64) {
        while state.lines.len() > lines_max || self.bytes() > bytes_max {
            let Some(oldest) = state.lines.pop_front() else { return };
            let bytes = bytes_of(&oldest);
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.logs.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        // Shrink the capacity too, but keep room for as many lines again.
        let room = 2 * state.lines.len().max(ROOM_LEN_MIN);
        state.lines.shrink_to(room);
    }
}

impl LogState {
    fn tail(&self, count: usize) -> Vec<LogLine> {
        self.lines.iter().skip(self.lines.len().saturating_sub(count)).cloned().collect()
    }
}

impl Drop for FunctionLog {
    fn drop(&mut self) {
        self.logs.used_bytes.fetch_sub(self.bytes(), Ordering::Relaxed);
    }
}

/// Returns the memory that `line` takes in a log.
fn bytes_of(line: &LogLine) -> u64 {
    (size_of::<LogLine>() + line.text.len() + line.request_id.len() + line.stream.len()) as u64
}

/// Milliseconds since the Unix epoch.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Metrics;
    use weir_types::{Name, TenantId, Version};

    const CONFIG: LogsConfig =
        LogsConfig { function_lines_max: 100, function_bytes_max: 1 << 20, bytes_max: 1 << 20, audit: AUDIT };
    const AUDIT: AuditConfig = AuditConfig { file: None, file_bytes_max: 0, files_max: 0 };

    fn open(logs: &Arc<Logs>) -> Arc<FunctionLog> {
        open_for(logs, &TenantId::default())
    }

    fn open_for(logs: &Arc<Logs>, tenant: &TenantId) -> Arc<FunctionLog> {
        logs.open(Metrics::new().function(tenant, &Name::new("f").unwrap()))
    }

    fn line(text: &str) -> LogLine {
        LogLine {
            at_ms: 0,
            version: Version(1),
            request_id: String::new(),
            stream: "stdout".into(),
            text: text.into(),
        }
    }

    fn texts(log: &FunctionLog) -> Vec<String> {
        log.tail(usize::MAX).into_iter().map(|line| line.text).collect()
    }

    #[test]
    fn ring_keeps_the_newest_lines_and_followers_continue_after_the_tail() {
        let log = open(&Logs::new(LogsConfig { function_lines_max: 2, ..CONFIG }));
        ["a", "b", "c"].iter().for_each(|text| log.push(line(text)));
        let (tail, mut follow) = log.tail_and_follow(10);
        assert_eq!(tail.iter().map(|l| l.text.as_str()).collect::<Vec<_>>(), ["b", "c"]);
        log.push(line("d"));
        assert_eq!(follow.try_recv().map(|l| l.text), Ok("d".to_owned()));
        drop(follow);
        log.push(line("e"));
        let (_, mut later) = log.tail_and_follow(0);
        log.push(line("f"));
        assert_eq!(later.try_recv().map(|l| l.text), Ok("f".to_owned()));
    }

    #[test]
    fn long_lines_count_by_their_length() {
        let log = open(&Logs::new(LogsConfig { function_bytes_max: 25_000, ..CONFIG }));
        for start in 0..10 {
            log.push(line(&format!("{start}{}", "x".repeat(8_000))));
        }
        assert_eq!(texts(&log).iter().map(|text| &text[..1]).collect::<Vec<_>>(), ["7", "8", "9"]);
        assert!(log.bytes() <= 25_000);
    }

    #[test]
    fn all_logs_share_a_budget_and_the_largest_makes_room() {
        let logs = Logs::new(LogsConfig { bytes_max: 100_000, ..CONFIG });
        let small = open(&logs);
        let large = open(&logs);
        small.push(line("kept"));
        for number in 0..50 {
            large.push(line(&format!("{number}{}", "x".repeat(8_000))));
            assert!(logs.used_bytes.load(Ordering::Relaxed) <= 100_000);
        }
        assert_eq!(texts(&small), ["kept"]);
        assert!(texts(&large).last().unwrap().starts_with("49x"), "the newest are kept");
        drop(large);
        assert_eq!(logs.used_bytes.load(Ordering::Relaxed), small.bytes());
    }

    #[test]
    fn tenant_with_many_small_logs_displaces_no_lines_of_other_tenants() {
        let logs = Logs::new(LogsConfig { bytes_max: 100_000, ..CONFIG });
        let quiet = open_for(&logs, &TenantId::new("quiet").unwrap());
        let many: Vec<_> = (0..200).map(|_| open_for(&logs, &TenantId::new("many").unwrap())).collect();
        // The largest log, of the smaller tenant.
        (0..4).for_each(|number| quiet.push(line(&format!("{number}{}", "x".repeat(8_000)))));
        for log in &many {
            log.push(line(&"y".repeat(1_000)));
            assert!(logs.used_bytes.load(Ordering::Relaxed) <= 100_000);
        }
        assert_eq!(texts(&quiet).len(), 4);
        assert!(many.iter().any(|log| texts(log).is_empty()));
    }
}
