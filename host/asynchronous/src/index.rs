//! In-memory index of all asynchronous invocations, which selects the next work. Plain data,
//! without clock, randomness or I/O.
//!
//! Tenants take turns. Among tenants with due work, the tenant with the least work in progress
//! comes first; among equal tenants, the invocation that has been due longest.

mod limits;
pub use limits::InvocationUsage;
pub(super) use limits::{FORGOTTEN_AT_ONCE, QueueLimit, RetentionLimits};

use super::record::{ClaimOwner, IndexEntry, NextStep};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use tokio_util::sync::CancellationToken;
use weir_types::{AsyncId, ContentHash, TenantId};

/// Index of all stored invocations.
#[derive(Debug)]
pub(super) struct InvocationIndex {
    owner: ClaimOwner,
    items: HashMap<AsyncId, Item>,
    tenants: BTreeMap<TenantId, Tenant>,
    /// Unfinished invocations claimed by this node.
    own: usize,
    /// Invocations that this node is accepting.
    accepting: usize,
    /// Invocations that this node is working on.
    working: usize,
}

#[derive(Debug, Default)]
struct Item {
    entry: Option<IndexEntry>,
    claim: Option<ClaimOwner>,
    /// Step in progress. The token is cancelled when the step is obsolete or another node has the
    /// claim.
    working: Option<(NextStep, CancellationToken)>,
    /// Earliest time at which this node starts the next step.
    not_before_ms: u64,
}

#[derive(Debug, Default)]
struct Tenant {
    live: usize,
    live_bytes: u64,
    ended_bytes: u64,
    accepting: usize,
    working: usize,
    /// Invocations that this node may work on, by due time.
    ready: BTreeSet<(u64, AsyncId)>,
    /// Ended invocations, by end time.
    ended: BTreeSet<(u64, AsyncId)>,
}

/// One step of an invocation, for this node to run.
#[derive(Debug)]
pub(super) struct PendingStep {
    pub(super) id: AsyncId,
    pub(super) tenant: TenantId,
    pub(super) step: NextStep,
    pub(super) is_claimed: bool,
    pub(super) cancelled: CancellationToken,
}

/// Next action of the work loop.
#[derive(Debug)]
pub(super) enum LoopAction {
    Work(PendingStep),
    /// Call again at this time, in Unix milliseconds.
    WaitUntil(u64),
    /// Call again after a change.
    Wait,
}

impl InvocationIndex {
    pub(super) fn new(owner: ClaimOwner) -> Self {
        Self { owner, items: HashMap::new(), tenants: BTreeMap::new(), own: 0, accepting: 0, working: 0 }
    }

    /// Records a new or changed invocation.
    pub(super) fn put(&mut self, id: AsyncId, entry: IndexEntry) {
        self.update(id, |item| item.entry = Some(entry));
    }

    /// Records that an invocation was deleted.
    pub(super) fn remove(&mut self, id: AsyncId) {
        self.update(id, |item| item.entry = None);
    }

    /// Records that a node claimed an invocation.
    pub(super) fn claim(&mut self, id: AsyncId, owner: ClaimOwner) {
        self.update(id, |item| item.claim = Some(owner));
    }

    /// Records that a claim ended. This node waits until `not_before_ms`, so that the nodes do not
    /// all claim the invocation at once.
    pub(super) fn unclaim(&mut self, id: AsyncId, not_before_ms: u64) {
        let owner = self.owner;
        self.update(id, |item| {
            let was = item.claim.take();
            if was.is_some_and(|was| was != owner) {
                item.not_before_ms = not_before_ms;
            }
        });
    }

    /// Replaces all known invocations and claims. Work in progress on this node stays recorded.
    pub(super) fn load(
        &mut self,
        entries: impl IntoIterator<Item = (AsyncId, IndexEntry)>,
        claims: impl IntoIterator<Item = (AsyncId, ClaimOwner)>,
    ) {
        let mut known: HashMap<AsyncId, (Option<IndexEntry>, Option<ClaimOwner>)> = HashMap::new();
        for (id, entry) in entries {
            known.entry(id).or_default().0 = Some(entry);
        }
        for (id, owner) in claims {
            known.entry(id).or_default().1 = Some(owner);
        }
        let gone: Vec<_> = self.items.keys().filter(|id| !known.contains_key(id)).copied().collect();
        for id in gone {
            self.update(id, |item| (item.entry, item.claim) = (None, None));
        }
        for (id, (entry, claim)) in known {
            self.update(id, |item| (item.entry, item.claim) = (entry, claim));
        }
    }

    /// Selects the work to start at `now_ms`, and counts it as in progress. Selects none above
    /// `working_max` items in progress, or above `tenant_working_max` of one tenant.
    pub(super) fn next(&mut self, now_ms: u64, working_max: usize, tenant_working_max: usize) -> LoopAction {
        if self.working >= working_max {
            return LoopAction::Wait;
        }
        let first = |tenant: &Tenant| tenant.ready.first().copied();
        let tenants = self.tenants.values().filter(|tenant| tenant.working < tenant_working_max);
        let due = tenants.filter_map(|tenant| Some((tenant.working, first(tenant)?)));
        let turn = due.clone().filter(|(_, (at_ms, _))| *at_ms <= now_ms).min();
        let Some((_, (_, id))) = turn else {
            return due.map(|(_, (at_ms, _))| at_ms).min().map_or(LoopAction::Wait, LoopAction::WaitUntil);
        };
        let cancelled = CancellationToken::new();
        let mut work = None;
        let token = cancelled.clone();
        self.update(id, |item| {
            let Some(IndexEntry { tenant, step, .. }) = &item.entry else { return };
            work = Some((tenant.clone(), *step, item.claim.is_some()));
            item.working = Some((*step, token));
        });
        match work {
            Some((tenant, step, is_claimed)) => {
                LoopAction::Work(PendingStep { id, tenant, step, is_claimed, cancelled })
            }
            None => LoopAction::Wait,
        }
    }

    /// Records that work on an invocation ended. This node does not restart it before
    /// `not_before_ms`.
    pub(super) fn done(&mut self, id: AsyncId, not_before_ms: u64) {
        self.update(id, |item| (item.working, item.not_before_ms) = (None, not_before_ms));
    }

    /// Whether an invocation is known and still to run. A callback may follow one that has ended.
    pub(super) fn is_unfinished(&self, id: AsyncId) -> bool {
        let entry = self.items.get(&id).and_then(|item| item.entry.as_ref());
        entry.is_some_and(|entry| entry.step == NextStep::Run)
    }

    /// Returns the number of unfinished invocations, and of those that this node works on.
    pub(super) fn len(&self) -> (usize, usize) {
        (self.tenants.values().map(|tenant| tenant.live).sum(), self.working)
    }

    /// Returns all blobs that belong to an invocation.
    pub(super) fn blobs(&self) -> HashSet<ContentHash> {
        self.items
            .values()
            .filter_map(|item| item.entry.as_ref())
            .flat_map(|entry| entry.blobs.clone())
            .collect()
    }

    /// Changes an item, and updates all counters and orderings that depend on it.
    fn update(&mut self, id: AsyncId, change: impl FnOnce(&mut Item)) {
        let mut item = self.items.remove(&id).unwrap_or_default();
        self.count(id, &item, false);
        let before = item.entry.as_ref().map(|entry| entry.tenant.clone());
        change(&mut item);
        if let Some((step, cancelled)) = &item.working {
            let is_ours = item.claim.is_none_or(|claim| claim == self.owner);
            if !is_ours || item.entry.as_ref().is_none_or(|entry| entry.step != *step) {
                cancelled.cancel();
            }
        }
        self.count(id, &item, true);
        let after = item.entry.as_ref().map(|entry| entry.tenant.clone());
        if item.entry.is_some() || item.claim.is_some() || item.working.is_some() {
            self.items.insert(id, item);
        }
        for tenant in [before, after].into_iter().flatten() {
            self.tidy(&tenant);
        }
    }

    /// Adds `item` to the counters and orderings, or removes it.
    fn count(&mut self, id: AsyncId, item: &Item, is_in: bool) {
        let one = |count: &mut usize| if is_in { *count += 1 } else { *count -= 1 };
        if item.working.is_some() {
            one(&mut self.working);
        }
        let Some(entry) = &item.entry else { return };
        let tenant = self.tenants.entry(entry.tenant.clone()).or_default();
        let list = |set: &mut BTreeSet<_>, at_ms| {
            _ = if is_in { set.insert((at_ms, id)) } else { set.remove(&(at_ms, id)) }
        };
        // A damaged record may have any size.
        let weigh = |bytes: &mut u64| {
            *bytes = match is_in {
                true => bytes.saturating_add(entry.bytes),
                false => bytes.saturating_sub(entry.bytes),
            }
        };
        if item.working.is_some() {
            one(&mut tenant.working);
        }
        if entry.step == NextStep::Forget {
            weigh(&mut tenant.ended_bytes);
            list(&mut tenant.ended, entry.at_ms);
            return;
        }
        one(&mut tenant.live);
        weigh(&mut tenant.live_bytes);
        let is_own = item.claim == Some(self.owner);
        if is_own {
            one(&mut self.own);
        }
        if item.working.is_none() && (is_own || item.claim.is_none()) {
            list(&mut tenant.ready, entry.at_ms.max(item.not_before_ms));
        }
    }

    /// Removes a tenant without invocations.
    fn tidy(&mut self, tenant: &TenantId) {
        let is_empty = |tenant: &Tenant| tenant.live == 0 && tenant.accepting == 0 && tenant.ended.is_empty();
        if self.tenants.get(tenant).is_some_and(is_empty) {
            self.tenants.remove(tenant);
        }
    }
}

#[cfg(test)]
mod tests;
