//! Turns of guests at normal priority: how long a guest, and all guests of a tenant, may compute
//! before they have a lower priority.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_types::{TenantActivity, TenantId};

/// The longest turn of a guest, in CPU time. Most functions need less for a call, even those of
/// interpreted languages.
pub(super) const LENGTH: Duration = Duration::from_millis(4);
/// The share of the guest threads' time that each tenant has at normal priority, while several
/// tenants call functions.
const SHARE: f64 = 0.1;
/// The CPU time by which a tenant may exceed its share for a moment.
const BURST: Duration = Duration::from_millis(100);
/// The number of tenants from which on those without an excess are forgotten.
const TENANTS_KEPT: usize = 1_000;

/// The time at normal priority that tenants have used.
#[derive(Debug)]
pub(super) struct Turns {
    /// CPU seconds per second that each tenant has at normal priority.
    rate: f64,
    state: Mutex<TurnsState>,
}

#[derive(Debug, Default)]
struct TurnsState {
    activity: TenantActivity,
    /// Without tenants that used no time lately.
    excess: HashMap<TenantId, Excess>,
}

/// Leaky bucket of a tenant: the CPU time that it has used at normal priority, draining at the rate
/// of its share.
#[derive(Debug, Clone, Copy)]
struct Excess {
    cpu_time: Duration,
    at: Instant,
}

impl Excess {
    fn now(&self, rate: f64, now: Instant) -> Duration {
        self.cpu_time.saturating_sub(now.saturating_duration_since(self.at).mul_f64(rate))
    }
}

/// The turn of a guest at normal priority. When it is dropped, its CPU time counts for the tenant.
pub(in super::super) struct Turn {
    /// `None`: the turn was over from the start.
    charged: Option<(Arc<Turns>, TenantId)>,
    cpu_time: Box<dyn Fn() -> Duration + Send + Sync>,
}

impl Turns {
    pub(super) fn new(threads: usize) -> Self {
        Self { rate: SHARE * threads.max(1) as f64, state: Mutex::default() }
    }

    /// Begins the turn of a guest whose CPU time is `cpu_time`. The turn is over at once if the
    /// tenant has used its share, and other tenants call functions.
    pub(super) fn begin(
        self: Arc<Self>,
        tenant: &TenantId,
        cpu_time: impl Fn() -> Duration + Send + Sync + 'static,
    ) -> Turn {
        let has_time = self.take(tenant, Instant::now());
        Turn { charged: has_time.then(|| (self, tenant.clone())), cpu_time: Box::new(cpu_time) }
    }

    /// Notes a call of the tenant. Returns whether its guest may run at normal priority; then the
    /// time of a whole turn counts at once, so that turns that begin together do not exceed the share.
    fn take(&self, tenant: &TenantId, now: Instant) -> bool {
        let mut state = self.state.lock();
        state.activity.arrives(tenant, now);
        let excess = state.excess.get(tenant);
        let has_time = excess.is_none_or(|excess| excess.now(self.rate, now) < BURST)
            || !state.activity.is_used_by_others(tenant, now);
        if has_time {
            self.charge(&mut state, tenant, LENGTH, now);
        }
        has_time
    }

    /// Ends a turn that took this CPU time.
    fn end(&self, tenant: &TenantId, cpu_time: Duration, now: Instant) {
        let mut state = self.state.lock();
        if let Some(excess) = state.excess.get_mut(tenant) {
            excess.cpu_time = excess.cpu_time.saturating_sub(LENGTH.saturating_sub(cpu_time));
        }
        self.charge(&mut state, tenant, cpu_time.saturating_sub(LENGTH), now);
    }

    /// Counts CPU time at normal priority.
    fn charge(&self, state: &mut TurnsState, tenant: &TenantId, cpu_time: Duration, now: Instant) {
        if state.excess.len() >= TENANTS_KEPT && !state.excess.contains_key(tenant) {
            state.excess.retain(|_, excess| !excess.now(self.rate, now).is_zero());
        }
        let excess =
            state.excess.entry(tenant.clone()).or_insert(Excess { cpu_time: Duration::ZERO, at: now });
        // A second of the share makes up for the longest excess.
        let most = BURST + Duration::from_secs_f64(self.rate);
        *excess = Excess { cpu_time: (excess.now(self.rate, now) + cpu_time).min(most), at: now };
    }
}

impl Turn {
    /// The turn of a guest that always has a lower priority.
    pub(in super::super) fn none() -> Self {
        Self { charged: None, cpu_time: Box::new(|| Duration::ZERO) }
    }

    /// Whether the guest continues at a lower priority.
    pub(in super::super) fn is_over(&self) -> bool {
        self.charged.is_none() || (self.cpu_time)() >= LENGTH
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some((turns, tenant)) = self.charged.take() {
            turns.end(&tenant, (self.cpu_time)(), Instant::now());
        }
    }
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn").field("is_over", &self.is_over()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    impl Turns {
        fn uses(&self, tenant: &TenantId, cpu_time: Duration, now: Instant) {
            self.charge(&mut self.state.lock(), tenant, cpu_time, now);
        }
    }

    fn tenant(name: &str) -> TenantId {
        TenantId::new(name).unwrap()
    }

    #[test]
    fn tenant_over_its_share_has_lower_priority_until_the_excess_has_drained() {
        let turns = Turns::new(2);
        let [busy, other] = ["busy", "other"].map(tenant);
        let start = Instant::now();
        turns.uses(&busy, 150 * MS, start);
        turns.uses(&other, 50 * MS, start);
        assert!(turns.take(&other, start) && !turns.take(&busy, start));
        // Two threads, of which a tenth: 200 ms each second.
        assert!(!turns.take(&busy, start + 249 * MS));
        assert!(turns.take(&busy, start + 251 * MS));
    }

    #[test]
    fn only_tenant_has_all_the_time() {
        let turns = Turns::new(1);
        let [busy, other] = ["busy", "other"].map(tenant);
        let start = Instant::now();
        turns.uses(&busy, 10_000 * MS, start);
        assert!(turns.take(&busy, start));
        assert!(turns.take(&other, start) && !turns.take(&busy, start));
        // The other tenant has called nothing for a second. The excess of ten seconds counts as one.
        turns.uses(&busy, 10_000 * MS, start + 1_001 * MS);
        assert!(turns.take(&busy, start + 1_001 * MS));
        assert!(turns.take(&other, start + 2_102 * MS) && turns.take(&busy, start + 2_102 * MS));
    }

    #[test]
    fn turns_that_begin_together_do_not_exceed_the_share() {
        let turns = Turns::new(1);
        let [busy, other] = ["busy", "other"].map(tenant);
        let start = Instant::now();
        assert!(turns.take(&other, start));
        let begun = (0..1_000).filter(|_| turns.take(&busy, start)).count();
        assert_eq!(begun, 25, "turns of 4 ms in 100 ms");
        // Turns that use less time leave room for others.
        (0..begun).for_each(|_| turns.end(&busy, MS, start));
        assert_eq!((0..1_000).filter(|_| turns.take(&busy, start)).count(), 19);
    }

    #[test]
    fn turns_count_the_time_until_they_end() {
        let turns = Arc::new(Turns::new(1));
        let [busy, other] = ["busy", "other"].map(tenant);
        drop(turns.clone().begin(&other, || Duration::ZERO));
        for _ in 0..200 {
            let turn = turns.clone().begin(&busy, || MS);
            if turn.is_over() {
                return;
            }
        }
        panic!("200 ms are within a share of 10 % with a burst of 100 ms");
    }

    #[test]
    fn tenants_within_their_shares_are_forgotten() {
        let turns = Turns::new(1);
        let start = Instant::now();
        for number in 0..TENANTS_KEPT {
            turns.uses(&tenant(&format!("t{number}")), MS, start);
        }
        turns.uses(&tenant("last"), MS, start + 11 * MS);
        assert_eq!(turns.state.lock().excess.len(), 1);
    }
}
