//! Upkeep of the shared store: discards its history and monitors its size.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::MissedTickBehavior;
use weir_datastore::{Datastore, Prefix, Revision, StoreUsage};
use weir_telemetry::Metrics;

/// Interval at which the store's revision and size are read.
const EVERY: Duration = Duration::from_secs(60);
/// Interval of compactions at which a compaction is worth its cost.
const COMPACT_EVERY: Duration = Duration::from_secs(5 * 60);
/// Quota of an etcd server without `--quota-backend-bytes`, assumed for servers that do not report
/// their quota (before etcd 3.6).
const QUOTA_BYTES_DEFAULT: u64 = 2 << 30;
/// Percentage of the quota at which the node warns, and below which it may warn again.
const WARN_PERCENT: u64 = 60;
const CALM_PERCENT: u64 = 50;

/// Keeps the shared store small, on every node, until the task is dropped. The node for which `leads`
/// returns true discards the history that is older than `history`; zero leaves it to etcd.
pub async fn keep_store_small(
    datastore: Arc<dyn Datastore>,
    metrics: Arc<Metrics>,
    history: Duration,
    leads: impl Fn() -> bool + Send + 'static,
) {
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut revisions = Revisions::new(history);
    let mut alarm = Alarm::default();
    loop {
        ticks.tick().await;
        match datastore.usage().await {
            Ok(Some(usage)) => {
                metrics.storage.set_datastore(usage.bytes, quota_bytes(&usage));
                warn_if_full(&mut alarm, usage);
            }
            Ok(None) => {}
            Err(error) => tracing::debug!(%error, "reading the size of the datastore failed"),
        }
        if history.is_zero() {
            continue;
        }
        let Ok(listing) = datastore.list(&Prefix::all(), None, 1).await else { continue };
        let Some(before) = revisions.note(Instant::now(), listing.revision, leads()) else { continue };
        match datastore.discard_history(before).await {
            Ok(()) => tracing::debug!(%before, "history of the datastore discarded"),
            Err(error) => tracing::warn!(%error, %before, "discarding the history of the datastore failed"),
        }
    }
}

fn warn_if_full(alarm: &mut Alarm, usage: StoreUsage) {
    let StoreUsage { bytes, used_bytes, quota_bytes: reported_bytes } = usage;
    let quota_bytes = quota_bytes(&usage);
    if let Some(percent) = alarm.note(bytes, quota_bytes) {
        tracing::warn!(
            percent,
            bytes,
            used_bytes,
            quota_bytes,
            is_quota_assumed = reported_bytes.is_none(),
            "the database of etcd approaches its quota, at which it refuses writes: defragment its servers (etcdctl defrag), or raise --quota-backend-bytes"
        );
    }
}

/// The quota that the server reports, or else etcd's default.
fn quota_bytes(usage: &StoreUsage) -> u64 {
    usage.quota_bytes.filter(|quota| *quota > 0).unwrap_or(QUOTA_BYTES_DEFAULT)
}

/// Whether the store is close to its quota, so that the node warns once.
#[derive(Default)]
struct Alarm {
    is_raised: bool,
}

impl Alarm {
    /// The used percentage of the quota, when it has just become high.
    fn note(&mut self, bytes: u64, quota_bytes: u64) -> Option<u64> {
        let percent = bytes.saturating_mul(100) / quota_bytes.max(1);
        let was_raised = self.is_raised;
        self.is_raised = percent >= WARN_PERCENT || was_raised && percent >= CALM_PERCENT;
        (self.is_raised && !was_raised).then_some(percent)
    }
}

/// Revisions of the store by the time at which they were the newest.
struct Revisions {
    history: Duration,
    seen: VecDeque<(Instant, Revision)>,
    compacted_at: Option<Instant>,
}

impl Revisions {
    fn new(history: Duration) -> Self {
        Self { history, seen: VecDeque::new(), compacted_at: None }
    }

    /// Notes the newest revision. Returns the revision before which the history is to be discarded,
    /// if it is time to do so.
    fn note(&mut self, now: Instant, newest: Revision, leads: bool) -> Option<Revision> {
        if self.seen.back().is_some_and(|(_, last)| *last > newest) {
            // The store was restored from an older copy.
            self.seen.clear();
        }
        self.seen.push_back((now, newest));
        let is_old = |seen: &(Instant, Revision)| now.saturating_duration_since(seen.0) >= self.history;
        // The last revision that is old enough is enough.
        while self.seen.get(1).is_some_and(is_old) {
            self.seen.pop_front();
        }
        let (_, before) = *self.seen.front().filter(|seen| is_old(seen))?;
        let is_due = |at: Instant| now.saturating_duration_since(at) >= COMPACT_EVERY;
        if !leads || !self.compacted_at.is_none_or(is_due) {
            return None;
        }
        self.compacted_at = Some(now);
        Some(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn only_history_older_than_the_bound_is_discarded() {
        let start = Instant::now();
        let mut revisions = Revisions::new(10 * MINUTE);
        let discarded: Vec<_> = (0..30)
            .filter_map(|minute| {
                let before =
                    revisions.note(start + minute * MINUTE, Revision(100 + u64::from(minute)), true)?;
                Some((minute, before.0 - 100))
            })
            .collect();
        assert_eq!(discarded, [(10, 0), (15, 5), (20, 10), (25, 15)]);
        assert!(revisions.seen.len() <= 12, "{} revisions are kept", revisions.seen.len());
    }

    #[test]
    fn node_that_starts_to_lead_knows_the_history() {
        let start = Instant::now();
        let mut revisions = Revisions::new(10 * MINUTE);
        for minute in 0..30 {
            assert_eq!(revisions.note(start + minute * MINUTE, Revision(u64::from(minute)), false), None);
        }
        assert_eq!(revisions.note(start + 30 * MINUTE, Revision(30), true), Some(Revision(20)));
    }

    #[test]
    fn revisions_of_a_restored_store_start_over() {
        let start = Instant::now();
        let mut revisions = Revisions::new(10 * MINUTE);
        assert_eq!(revisions.note(start, Revision(1_000), true), None);
        assert_eq!(revisions.note(start + 11 * MINUTE, Revision(50), true), None);
        assert_eq!(revisions.note(start + 22 * MINUTE, Revision(60), true), Some(Revision(50)));
    }

    #[test]
    fn alarm_is_raised_once_until_the_store_is_smaller() {
        let mut alarm = Alarm::default();
        assert_eq!(alarm.note(59, 100), None);
        assert_eq!(alarm.note(60, 100), Some(60));
        assert_eq!(alarm.note(70, 100), None);
        assert_eq!(alarm.note(55, 100), None);
        assert_eq!(alarm.note(61, 100), None, "it was not below 50 %");
        assert_eq!(alarm.note(49, 100), None);
        assert_eq!(alarm.note(90, 100), Some(90));
    }

    #[test]
    fn server_without_a_reported_quota_has_the_default_of_etcd() {
        let usage = |bytes, quota_bytes| StoreUsage { bytes, used_bytes: bytes, quota_bytes };
        let raises = |usage: &StoreUsage| Alarm::default().note(usage.bytes, quota_bytes(usage)).is_some();
        let is_raised =
            [None, Some(0), Some(8 << 30)].map(|quota_bytes| raises(&usage(3 << 29, quota_bytes)));
        assert_eq!(is_raised, [true, true, false]);
        assert!(!raises(&usage(1 << 30, None)));
    }
}
