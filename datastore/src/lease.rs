//! Leases: entries attached to a lease are deleted when it ends.
//!
//! A lease ends when its holder revokes it, or when it is not kept alive within its time to live. A
//! backend that outlives its process gives every lease a full new time to live on startup, since
//! holders could not keep leases alive in between.

use crate::{Error, Result};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Longest time to live: 30 days. Rejects implausible values.
pub const TIME_TO_LIVE_MAX: Duration = Duration::from_secs(30 * 24 * 3_600);

/// ID of a lease. A store never reuses an ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u64);

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A granted lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// ID.
    pub id: LeaseId,
    /// Time to live without a keep-alive: at least the requested time.
    pub time_to_live: Duration,
}

impl Lease {
    /// Creates a lease, with its time to live rounded up to whole milliseconds.
    pub(crate) fn new(id: LeaseId, time_to_live: Duration) -> Self {
        let time_to_live_ms = time_to_live.as_nanos().div_ceil(1_000_000).max(1);
        Self { id, time_to_live: Duration::from_millis(u64::try_from(time_to_live_ms).unwrap_or(u64::MAX)) }
    }
}

/// Rejects a time to live over the limit.
pub(crate) fn check_time_to_live(time_to_live: Duration) -> Result<()> {
    if time_to_live > TIME_TO_LIVE_MAX { Err(Error::LeaseTooLong(time_to_live)) } else { Ok(()) }
}

/// Deadlines of a store's leases. Uses tokio's clock, so that tests can pause it.
#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    leases: Mutex<HashMap<LeaseId, Deadline>>,
    /// Notified when the next deadline may have moved closer.
    sooner: Notify,
}

#[derive(Debug, Clone, Copy)]
struct Deadline {
    at: Instant,
    time_to_live: Duration,
}

/// Delay between attempts to end an expired lease.
const RETRY_AFTER: Duration = Duration::from_secs(1);

impl Deadlines {
    /// Starts the deadline of a new lease.
    pub(crate) fn insert(&self, lease: Lease) {
        self.insert_after(lease, lease.time_to_live);
    }

    /// Schedules another attempt to end an expired lease.
    pub(crate) fn retry(&self, lease: Lease) {
        self.insert_after(lease, RETRY_AFTER);
    }

    fn insert_after(&self, Lease { id, time_to_live }: Lease, after: Duration) {
        self.leases.lock().insert(id, Deadline { at: Instant::now() + after, time_to_live });
        self.sooner.notify_one();
    }

    /// Restarts a lease's time to live and returns it; `None` if the lease does not exist.
    pub(crate) fn renew(&self, id: LeaseId) -> Option<Duration> {
        let mut leases = self.leases.lock();
        let deadline = leases.get_mut(&id)?;
        // An expired lease stays expired, even if it was not yet removed.
        let now = Instant::now();
        if deadline.at <= now {
            return None;
        }
        deadline.at = now + deadline.time_to_live;
        Some(deadline.time_to_live)
    }

    /// Whether the lease exists, so that keys can be attached to it.
    pub(crate) fn contains(&self, id: LeaseId) -> bool {
        self.leases.lock().contains_key(&id)
    }

    /// Removes a lease; false if it does not exist.
    pub(crate) fn remove(&self, id: LeaseId) -> bool {
        self.leases.lock().remove(&id).is_some()
    }

    /// Forgets leases that are not in `leases`, and starts the deadlines of leases that are new.
    pub(crate) fn adopt(&self, leases: &[Lease]) {
        self.leases.lock().retain(|id, _| leases.iter().any(|lease| lease.id == *id));
        for lease in leases {
            if !self.contains(lease.id) {
                self.insert(*lease);
            }
        }
    }

    /// Waits until leases expire, removes them and returns them. Cancel-safe.
    pub(crate) async fn expired(&self) -> Vec<Lease> {
        loop {
            let sooner = self.sooner.notified();
            let next = {
                let mut leases = self.leases.lock();
                let now = Instant::now();
                let expired: Vec<_> = leases
                    .iter()
                    .filter(|(_, deadline)| deadline.at <= now)
                    .map(|(id, deadline)| Lease { id: *id, time_to_live: deadline.time_to_live })
                    .collect();
                if !expired.is_empty() {
                    leases.retain(|_, deadline| deadline.at > now);
                    return expired;
                }
                leases.values().map(|deadline| deadline.at).min()
            };
            match next {
                None => sooner.await,
                Some(next) => tokio::select! { () = tokio::time::sleep_until(next) => {}, () = sooner => {} },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn lease_expires_unless_renewed() {
        let deadlines = Deadlines::default();
        let lease = Lease { id: LeaseId(1), time_to_live: TTL };
        deadlines.insert(lease);
        tokio::time::advance(TTL - Duration::from_nanos(1)).await;
        assert_eq!(deadlines.renew(lease.id), Some(TTL));
        let renewed_at = Instant::now();
        assert_eq!(deadlines.expired().await, [lease]);
        // Tokio's timers have a granularity of 1 ms.
        assert!(renewed_at.elapsed() >= TTL && renewed_at.elapsed() <= TTL + Duration::from_millis(2));
        assert_eq!(deadlines.renew(lease.id), None);
    }

    #[tokio::test(start_paused = true)]
    async fn expired_lease_cannot_be_renewed_before_removal() {
        let deadlines = Deadlines::default();
        deadlines.insert(Lease { id: LeaseId(1), time_to_live: TTL });
        tokio::time::advance(TTL).await;
        assert_eq!(deadlines.renew(LeaseId(1)), None);
    }

    #[tokio::test(start_paused = true)]
    async fn earlier_deadline_shortens_a_pending_wait() {
        let deadlines = std::sync::Arc::new(Deadlines::default());
        deadlines.insert(Lease { id: LeaseId(1), time_to_live: TTL * 100 });
        let waiting = tokio::spawn({
            let deadlines = deadlines.clone();
            async move { deadlines.expired().await }
        });
        tokio::task::yield_now().await;
        let short = Lease { id: LeaseId(2), time_to_live: TTL };
        deadlines.insert(short);
        let began = Instant::now();
        assert_eq!(waiting.await.unwrap(), [short]);
        assert!(began.elapsed() < TTL * 2);
    }
}
