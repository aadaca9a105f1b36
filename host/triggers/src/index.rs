//! The in-memory index of all triggers, which selects the next tick: plain data, without clock or
//! I/O.

use crate::plan::{Cause, Plan, StreamPlan};
use crate::record::{TriggerId, TriggerRecord, TriggerState};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use weir_datastore::Revision;
use weir_types::{Name, TenantId};

/// Time by which the clock may be set back without an effect on the ticks: they continue after the
/// latest one. If the clock is set back by more, they continue from the new time.
pub(crate) const SET_BACK_MS_MAX: u64 = 3_600_000;

/// A trigger as the node runs it.
#[derive(Debug)]
pub(crate) struct KnownTrigger {
    pub(crate) record: TriggerRecord,
    /// Revision of the record.
    pub(crate) revision: Revision,
    /// The plan, or the reason why this node has none.
    pub(crate) plan: Result<Plan, String>,
}

/// A state as stored.
#[derive(Debug, Clone)]
pub(crate) struct StoredState {
    pub(crate) state: TriggerState,
    pub(crate) revision: Revision,
}

/// All triggers, by owner and by the time of their next tick.
#[derive(Debug, Default)]
pub(crate) struct KnownTriggers {
    items: BTreeMap<TriggerId, Item>,
    /// Triggers that wait for a tick.
    due: BTreeSet<(u64, TriggerId)>,
}

#[derive(Debug, Default)]
struct Item {
    trigger: Option<Arc<KnownTrigger>>,
    state: Option<StoredState>,
    /// Whether this node works on a tick.
    is_working: bool,
    /// Retries of a tick whose request could not be stored.
    retries: Retries,
    /// The entry in `due`.
    due_ms: Option<u64>,
}

/// Retries of a tick.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Retries {
    /// Earliest time of the next one.
    pub(crate) not_before_ms: u64,
    /// Number of failures in a row.
    pub(crate) failures: u32,
    /// The latest failure.
    pub(crate) error: Option<String>,
}

/// A trigger whose tick is due.
#[derive(Debug)]
pub(crate) struct DueTrigger {
    pub(crate) id: TriggerId,
    pub(crate) trigger: Arc<KnownTrigger>,
    pub(crate) state: Option<StoredState>,
    pub(crate) retries: Retries,
}

/// Next action of the work loop.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a result that is used at once and never stored")]
pub(crate) enum NextTick {
    Due(DueTrigger),
    /// Call again at this time, in Unix milliseconds.
    WaitUntil(u64),
    /// Call again after a change.
    Wait,
}

impl KnownTrigger {
    /// The time after which the next tick follows.
    pub(crate) fn base_ms(&self, state: Option<&TriggerState>, now_ms: u64) -> u64 {
        let base_ms = state.map_or(0, |state| state.ticked_at_ms).max(self.record.since_ms);
        if base_ms > now_ms.saturating_add(SET_BACK_MS_MAX) { now_ms } else { base_ms }
    }

    /// The stream of a trigger that has one.
    pub(crate) fn stream(&self) -> Option<&StreamPlan> {
        match &self.plan {
            Ok(Plan { cause: Cause::Messages(stream), .. }) => Some(stream),
            _ => None,
        }
    }
}

impl KnownTriggers {
    pub(crate) fn put(&mut self, id: TriggerId, trigger: KnownTrigger, now_ms: u64) {
        self.update(id, now_ms, |item| {
            item.trigger = Some(Arc::new(trigger));
            item.retries = Retries::default();
        });
    }

    pub(crate) fn remove(&mut self, id: TriggerId, now_ms: u64) {
        self.update(id, now_ms, |item| item.trigger = None);
    }

    pub(crate) fn put_state(&mut self, id: TriggerId, state: Option<StoredState>, now_ms: u64) {
        self.update(id, now_ms, |item| {
            item.state = state;
            item.retries = Retries::default();
        });
    }

    /// Replaces all triggers and states. Work in progress stays recorded.
    pub(crate) fn load(
        &mut self,
        triggers: impl IntoIterator<Item = (TriggerId, KnownTrigger)>,
        states: impl IntoIterator<Item = (TriggerId, StoredState)>,
        now_ms: u64,
    ) {
        let all: Vec<_> = self.items.keys().cloned().collect();
        for id in all {
            self.update(id, now_ms, |item| {
                item.trigger = None;
                item.state = None;
            });
        }
        for (id, trigger) in triggers {
            self.put(id, trigger, now_ms);
        }
        for (id, state) in states {
            self.put_state(id, Some(state), now_ms);
        }
    }

    /// Computes all next ticks again, after the clock was set back.
    pub(crate) fn reschedule(&mut self, now_ms: u64) {
        let all: Vec<_> = self.items.keys().cloned().collect();
        for id in all {
            self.update(id, now_ms, |_| {});
        }
    }

    /// Selects a due trigger, and records that this node works on it until [`done`](Self::done).
    pub(crate) fn next(&mut self, now_ms: u64) -> NextTick {
        let Some((due_ms, id)) = self.due.first().cloned() else { return NextTick::Wait };
        if due_ms > now_ms {
            return NextTick::WaitUntil(due_ms);
        }
        self.due.pop_first();
        let Some(item) = self.items.get_mut(&id) else { return NextTick::WaitUntil(now_ms) };
        item.due_ms = None;
        let Some(trigger) = item.trigger.clone() else { return NextTick::WaitUntil(now_ms) };
        item.is_working = true;
        NextTick::Due(DueTrigger { id, trigger, state: item.state.clone(), retries: item.retries.clone() })
    }

    /// Records the end of the work on a trigger.
    pub(crate) fn done(&mut self, id: TriggerId, retries: Option<Retries>, now_ms: u64) {
        self.update(id, now_ms, |item| {
            item.is_working = false;
            if let Some(retries) = retries {
                item.retries = retries;
            }
        });
    }

    /// The triggers of a tenant, by name, with their states.
    pub(crate) fn list(
        &self,
        tenant: &TenantId,
    ) -> impl Iterator<Item = (Name, Arc<KnownTrigger>, Option<TriggerState>)> {
        let own = self.items.iter().filter(move |(id, _)| id.tenant == *tenant);
        own.filter_map(|(id, item)| {
            let state = item.state.as_ref().map(|stored| stored.state.clone());
            Some((id.name.clone(), item.trigger.clone()?, state))
        })
    }

    pub(crate) fn get(&self, id: &TriggerId) -> Option<Arc<KnownTrigger>> {
        self.items.get(id).and_then(|item| item.trigger.clone())
    }

    /// The triggers for messages of streams that are not paused.
    pub(crate) fn with_streams(&self) -> HashMap<TriggerId, Arc<KnownTrigger>> {
        let all = self.items.iter().filter_map(|(id, item)| Some((id, item.trigger.as_ref()?)));
        let reading = all.filter(|(_, trigger)| trigger.record.spec.enabled && trigger.stream().is_some());
        reading.map(|(id, trigger)| (id.clone(), trigger.clone())).collect()
    }

    /// The number of a tenant's triggers for streams.
    pub(crate) fn streams(&self, tenant: &TenantId) -> usize {
        self.list(tenant).filter(|(_, trigger, _)| trigger.record.spec.source.nats.is_some()).count()
    }

    /// The number of triggers, and of those of a tenant.
    pub(crate) fn counts(&self, tenant: &TenantId) -> (usize, usize) {
        (self.items.values().filter(|item| item.trigger.is_some()).count(), self.list(tenant).count())
    }

    /// The number of triggers that wait for ticks.
    pub(crate) fn enabled(&self) -> usize {
        let is_enabled = |item: &&Item| item.trigger.as_ref().is_some_and(|found| found.record.spec.enabled);
        self.items.values().filter(is_enabled).count()
    }

    fn update(&mut self, id: TriggerId, now_ms: u64, change: impl FnOnce(&mut Item)) {
        let item = self.items.entry(id.clone()).or_default();
        if let Some(due_ms) = item.due_ms.take() {
            self.due.remove(&(due_ms, id.clone()));
        }
        change(item);
        if item.trigger.is_none() && item.state.is_none() && !item.is_working {
            self.items.remove(&id);
            return;
        }
        item.due_ms = item.next_ms(now_ms);
        if let Some(due_ms) = item.due_ms {
            self.due.insert((due_ms, id));
        }
    }
}

impl Item {
    /// The time of the next tick that this node should work on.
    fn next_ms(&self, now_ms: u64) -> Option<u64> {
        let trigger = self.trigger.as_ref().filter(|found| found.record.spec.enabled && !self.is_working)?;
        let plan = trigger.plan.as_ref().ok()?;
        let base_ms = trigger.base_ms(self.state.as_ref().map(|stored| &stored.state), now_ms);
        plan.schedule()?.next(base_ms).map(|next_ms| next_ms.max(self.retries.not_before_ms))
    }
}
