//! When a device accepts one more invocation, and how long that invocation waits there: the only
//! source of what policies call free, busy, and the finish time of a device.

use super::{Commitment, DeviceGrant, DeviceView};
use crate::policy::OpenableModel;
use crate::{DeviceRule, FunctionKey, PlacementRequest};

/// A batch that invocations may join while the current event is handled.
#[derive(Debug, Clone, Copy)]
pub(super) struct Forming {
    function: FunctionKey,
    items: u32,
    items_max: u32,
}

impl DeviceView {
    /// Whether an invocation may be granted models here, possibly only one that joins a batch.
    /// [`is_open_to`](Self::is_open_to) answers this for a given invocation.
    #[must_use]
    pub fn is_open(&self) -> bool {
        let is_closed = self.is_down || self.is_kept || self.serves_slos && self.is_full();
        !is_closed
            && self.running() < self.spec.invocations_max
            && (self.has_room_for_work() || !self.forming.is_empty())
    }

    /// Whether `request` may be granted models here, apart from memory. A load is committed only
    /// while the loads ahead of it take less than
    /// [`commit_ahead_ms`](crate::Settings::commit_ahead_ms), and an invocation that waits for loads
    /// only while there is room among all work. Invocations of loaded models do not wait for them.
    #[must_use]
    pub fn is_open_to(&self, request: &PlacementRequest) -> bool {
        self.is_open()
            && (self.has_room_for_work()
                && (self.has_loaded_all(&request.models) || self.may_wait_for_loads(request))
                || self.batch_joined_by(request).is_some())
    }

    /// Predicted device time of the invocations that were placed here and have not ended, without
    /// loads.
    #[must_use]
    pub fn committed_ns(&self) -> u64 {
        self.committed.all().run_ns()
    }

    /// Predicted time of the loads that were placed here and have not completed.
    #[must_use]
    pub fn committed_load_ns(&self) -> u64 {
        self.committed.load_ns()
    }

    /// Whether invocations here wait for loads.
    pub(in crate::view) fn awaits_loads(&self) -> bool {
        self.counts_work() && self.committed.awaits_loads()
    }

    /// When one more invocation may be granted models here; 0 if now.
    #[must_use]
    pub fn free_at_ns(&self) -> u64 {
        match self.is_open() {
            true => 0,
            false if self.is_down => u64::MAX,
            false if self.counts_work() => {
                let queued_ns = self.committed.loaded().queued_ns(self.slots());
                let first_end_ns = self.first_end_ns().unwrap_or(u64::MAX);
                first_end_ns.saturating_add(queued_ns.saturating_sub(self.commit_ahead_ns))
            }
            false => self.first_end_ns().unwrap_or(u64::MAX),
        }
    }

    /// Expected time that an invocation of loaded models placed now waits for a run slot.
    #[must_use]
    pub fn wait_ns(&self, now_ns: u64) -> u64 {
        let slots = self.slots();
        let first_end_after_ns = || self.first_end_ns().unwrap_or(0).saturating_sub(now_ns);
        if self.counts_work() {
            return self.committed.loaded().wait_ns(slots, first_end_after_ns());
        }
        let ahead = (self.running() + 1).saturating_sub(slots);
        if ahead == 0 {
            return 0;
        }
        if self.spec.invocations_max <= slots {
            return first_end_after_ns();
        }
        crate::estimate::round_ns(self.run_time_ns.mean).saturating_mul(u64::from(ahead)) / u64::from(slots)
    }

    /// Expected waiting time of an invocation of `demands` that is placed now: for a run slot, for
    /// earlier loads of other models, and for loads of its models that are in progress. Excludes
    /// its own loads, which take `load_time_ns`.
    #[must_use]
    pub fn wait_for_ns(&self, now_ns: u64, demands: &[OpenableModel], load_time_ns: u64) -> u64 {
        let mut wait_ns = self.wait_ns(now_ns);
        if !self.counts_work() {
            return wait_ns;
        }
        let is_copying = self.committed_load_ns() > 0;
        if load_time_ns > 0 || !self.has_loaded_all(demands) {
            wait_ns = wait_ns.max(self.wait_behind_all_ns(now_ns));
        }
        if is_copying {
            let ready_at_ns =
                |demand: &OpenableModel| self.place_of(demand.model).map_or(0, |(_, at_ns)| at_ns);
            let ready_at_ns = self.own(demands).map(ready_at_ns).max().unwrap_or(0);
            wait_ns = wait_ns.max(ready_at_ns.saturating_sub(now_ns));
        }
        // Its own loads overlap with earlier runs, and follow earlier loads.
        let wait_ns = wait_ns.saturating_sub(load_time_ns);
        if is_copying && load_time_ns > 0 {
            wait_ns.max(self.loads_end_at_ns.saturating_sub(now_ns))
        } else {
            wait_ns
        }
    }

    /// Whether committed work, not the number of invocations, closes the device.
    #[must_use]
    pub fn counts_work(&self) -> bool {
        self.spec.rule == DeviceRule::CommittedWork
    }

    /// The items of the batch that `request` would join.
    pub(in crate::view) fn batch_joined_by(&self, request: &PlacementRequest) -> Option<u32> {
        let forming = self.forming.iter().find(|forming| forming.function == request.function)?;
        let items_max = forming.items_max.min(request.batch_items_max);
        let fits = forming.items.saturating_add(request.batch) <= items_max;
        (fits && self.holds_all(&request.models)).then_some(forming.items)
    }

    /// Ends the batches that invocations may join.
    pub(in crate::view) fn close_batches(&mut self) {
        self.forming.clear();
    }

    /// Whether invocations may join a batch here.
    pub(in crate::view) fn forms_batches(&self) -> bool {
        !self.forming.is_empty()
    }

    /// Adds the work of an invocation that was granted models.
    pub(super) fn commit(&mut self, grant: &DeviceGrant, work: &Commitment) {
        self.committed.add(work);
        if !self.counts_work() {
            return;
        }
        if grant.load_time_ns > 0 {
            let from_ns = self.loads_end_at_ns.max(grant.now_ns);
            self.loads_end_at_ns = from_ns.saturating_add(grant.load_time_ns);
        }
        let (items, items_max) = grant.items;
        let known = self.forming.iter().position(|forming| forming.function == grant.function);
        let before = known.map(|at| self.forming.swap_remove(at));
        let joined = before.map_or(0, |forming| forming.items).saturating_add(items);
        // An invocation that does not fit into the batch begins another batch.
        let items = if joined <= items_max { joined } else { items };
        if items < items_max {
            self.forming.push(Forming { function: grant.function, items, items_max });
        }
    }

    /// Expected wait for a run slot behind all work, also that which waits for loads.
    fn wait_behind_all_ns(&self, now_ns: u64) -> u64 {
        let first_end_after_ns = self.first_end_ns().unwrap_or(0).saturating_sub(now_ns);
        self.committed.all().wait_ns(self.slots(), first_end_after_ns)
    }

    /// Whether there is room for work of loaded models.
    fn has_room_for_work(&self) -> bool {
        !self.counts_work() || self.committed.loaded().is_below(self.slots(), self.commit_ahead_ns)
    }

    /// Whether `request`, whose models are not all loaded, may wait here for their loads.
    fn may_wait_for_loads(&self, request: &PlacementRequest) -> bool {
        if !self.counts_work() {
            return true;
        }
        self.committed.all().is_below(self.slots(), self.commit_ahead_ns)
            && (!self.is_loading() || self.holds_all(&request.models))
    }

    /// Whether the copy engine accepts no further load.
    fn is_loading(&self) -> bool {
        self.committed_load_ns() > 0 && self.committed_load_ns() >= self.commit_ahead_ns
    }

    fn has_loaded_all(&self, demands: &[OpenableModel]) -> bool {
        self.own(demands).all(|demand| self.has_loaded(demand.model))
    }

    fn holds_all(&self, demands: &[OpenableModel]) -> bool {
        self.own(demands).all(|demand| self.holds(demand.model))
    }

    fn slots(&self) -> u32 {
        self.spec.slots.max(1)
    }
}
