//! Tenants in the run queue: their turns, and their shares of the queue. Plain data.
//!
//! The tenant that has had the least run time is next. Idle time earns no credit: the run time of a
//! tenant counts as at least that of the tenant whose run started last. When a run starts, its
//! tenant is charged with the time of the previous run of the same lane (the jobs of one model, or
//! of models that take turns). When the run ends, the charge is corrected to the actual time.

use super::JobOrder;
use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};
use weir_types::{TenantActivity, TenantId};

/// Maximum run time by which a tenant can exceed the others. The limit bounds how long a tenant
/// waits after a single long run.
const BEHIND_NS_MAX: u64 = 1_000_000_000;
/// Least charge for a run.
const RUN_NS_MIN: u64 = 1_000;

/// Tenants with waiting or running jobs, and those whose run time is still ahead of the others'.
#[derive(Default)]
pub(super) struct TenantOrder {
    shares: HashMap<TenantId, Share>,
    /// Tenants with a lane that may start a run, in the order of their turns.
    order: BTreeSet<TenantPlace>,
    /// Lanes that may start a run.
    lanes: usize,
    /// Run time of the tenant whose run started last.
    floor_ns: u64,
    activity: TenantActivity,
}

/// A tenant's place in the order: the run time that it has had, and the arrival of its first job.
type TenantPlace = (u64, u64, TenantId);

#[derive(Default)]
struct Share {
    run_ns: u64,
    running: usize,
    /// The first job of every lane that may start a run.
    heads: BTreeSet<(JobOrder, u64)>,
    /// All waiting jobs with their lanes.
    waiting: BTreeSet<(JobOrder, u64)>,
}

impl Share {
    fn place(&self, tenant: &TenantId) -> Option<TenantPlace> {
        let ((_, arrival), _) = self.heads.first()?;
        Some((self.run_ns, *arrival, tenant.clone()))
    }

    fn is_active(&self) -> bool {
        self.running > 0 || !self.waiting.is_empty()
    }
}

impl TenantOrder {
    /// Lanes that may start a run, with their first jobs: tenants in the order of their turns, and
    /// the lanes of each by priority and arrival.
    pub(super) fn lanes(&self) -> impl Iterator<Item = (&TenantId, JobOrder, u64)> {
        self.order.iter().flat_map(|(_, _, tenant)| {
            let heads = self.shares.get(tenant).into_iter().flat_map(|share| &share.heads);
            heads.map(move |(key, lane)| (tenant, *key, *lane))
        })
    }

    /// Number of the lanes that may start a run.
    pub(super) fn lanes_len(&self) -> usize {
        self.lanes
    }

    /// The first job of the tenant's lanes other than `lane`.
    pub(super) fn first_of_others(&self, tenant: &TenantId, lane: u64) -> Option<JobOrder> {
        let heads = &self.shares.get(tenant)?.heads;
        heads.iter().find(|(_, other)| *other != lane).map(|(key, _)| *key)
    }

    /// Adds a lane that may start a run.
    pub(super) fn list(&mut self, tenant: &TenantId, first: JobOrder, lane: u64) {
        self.change(tenant, |share| share.heads.insert((first, lane)));
        self.lanes += 1;
    }

    /// Removes a lane, if it is listed.
    pub(super) fn unlist(&mut self, tenant: &TenantId, first: JobOrder, lane: u64) {
        if self.change(tenant, |share| share.heads.remove(&(first, lane))) {
            self.lanes -= 1;
        }
    }

    /// Whether tenants other than `tenant` use the device, or wait for it.
    pub(super) fn is_used_by_others(&self, tenant: &TenantId, now: Instant) -> bool {
        let is_active = |(other, share): (&TenantId, &Share)| other != tenant && share.is_active();
        self.activity.is_used_by_others(tenant, now) || self.shares.iter().any(is_active)
    }

    /// Notes that a job of `tenant` has arrived.
    pub(super) fn arrives(&mut self, tenant: &TenantId, arrived: Instant) {
        self.activity.arrives(tenant, arrived);
    }

    /// Adds a waiting job.
    pub(super) fn waits(&mut self, tenant: &TenantId, key: JobOrder, lane: u64) {
        let floor_ns = self.floor_ns;
        if !self.shares.contains_key(tenant) {
            self.shares.retain(|_, share| share.is_active() || share.run_ns > floor_ns);
        }
        let share = self.shares.entry(tenant.clone()).or_default();
        // Without waiting jobs, the tenant has no place that could change.
        if !share.is_active() {
            share.run_ns = share.run_ns.max(floor_ns);
        }
        share.waiting.insert((key, lane));
    }

    /// Removes a waiting job.
    pub(super) fn leaves(&mut self, tenant: &TenantId, key: JobOrder, lane: u64) {
        if let Some(share) = self.shares.get_mut(tenant) {
            share.waiting.remove(&(key, lane));
        }
    }

    /// Charges a tenant for a run that starts, with its expected time. Returns the charge.
    pub(super) fn starts(&mut self, tenant: &TenantId, expected: Duration) -> u64 {
        let charged_ns = ns(expected).max(RUN_NS_MIN);
        let floor_ns = self.floor_ns;
        let began_ns = self.change(tenant, |share| {
            let began_ns = share.run_ns;
            share.running += 1;
            share.run_ns =
                began_ns.saturating_add(charged_ns).min(began_ns.max(floor_ns).saturating_add(BEHIND_NS_MAX));
            began_ns
        });
        self.floor_ns = floor_ns.max(began_ns);
        charged_ns
    }

    /// Corrects the charge of a run that ended after `time`.
    pub(super) fn ends(&mut self, tenant: &TenantId, charged_ns: u64, time: Duration) {
        let most_ns = self.floor_ns.saturating_add(BEHIND_NS_MAX);
        self.change(tenant, |share| {
            share.running = share.running.saturating_sub(1);
            let run_ns = share.run_ns.saturating_sub(charged_ns).saturating_add(ns(time).max(RUN_NS_MIN));
            share.run_ns = run_ns.min(most_ns);
        });
    }

    /// The job that makes room for a job of `tenant` in a full queue: the last in line of the
    /// tenant with the most waiting jobs. `None` if that would only exchange the tenants.
    pub(super) fn displaced_by(&self, tenant: &TenantId) -> Option<(JobOrder, u64)> {
        let own = self.shares.get(tenant).map_or(0, |share| share.waiting.len());
        let most = self.shares.values().max_by_key(|share| share.waiting.len())?;
        if most.waiting.len() > own + 1 { most.waiting.last().copied() } else { None }
    }

    /// Forgets all waiting jobs.
    pub(super) fn clear_waiting(&mut self) {
        self.order.clear();
        self.lanes = 0;
        for share in self.shares.values_mut() {
            share.heads.clear();
            share.waiting.clear();
        }
    }

    /// Changes a tenant's share, and moves the tenant to its new place.
    fn change<R>(&mut self, tenant: &TenantId, change: impl FnOnce(&mut Share) -> R) -> R {
        let share = self.shares.entry(tenant.clone()).or_default();
        let before = share.place(tenant);
        let changed = change(share);
        let after = share.place(tenant);
        if before != after {
            before.map(|place| self.order.remove(&place));
            self.order.extend(after);
        }
        changed
    }
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
