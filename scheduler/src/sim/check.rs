//! Checks of the scheduler's guarantees on every step.

use super::device::SimulatedDevice;
use super::layout::DeviceLayout;
use super::{SimulatedCluster, SloCounts, Workload};
use crate::{Action, Rejection, Scheduler, Slo, Why};
use std::collections::{BTreeMap, BTreeSet};
use weir_types::{Cost, DeviceId, InvocationId};

/// A guarantee that was violated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{promise}: {details}")]
pub struct Violation {
    /// The guarantee.
    pub promise: &'static str,
    /// The violation.
    pub details: String,
}

/// The state needed to check the guarantees.
pub(super) struct Checks {
    fates: Vec<Fate>,
    /// Running requests by device.
    running: Vec<BTreeSet<u32>>,
    /// Requests that ran on lost nodes, until they are rejected.
    lost: BTreeSet<u32>,
    invocations_max: u32,
    /// By device.
    capacity_bytes: Vec<u64>,
    /// Waiting requests by tenant, for policies that start in order of arrival.
    waiting: Option<BTreeMap<u32, BTreeSet<u32>>>,
    /// By request: its SLO, and whether it was admitted on trial because it was expected to miss
    /// the SLO.
    slos: Vec<Option<(Slo, bool)>>,
    /// Whether everything takes exactly as long as expected.
    is_exact: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    NotYet,
    Waits,
    Runs,
    Ended,
    Rejected,
}

impl Checks {
    pub(super) fn new(
        workload: &Workload,
        cluster: &SimulatedCluster,
        layout: &DeviceLayout,
        keeps_order: bool,
    ) -> Self {
        Self {
            fates: vec![Fate::NotYet; workload.requests().len()],
            running: vec![BTreeSet::new(); workload.devices() as usize],
            lost: BTreeSet::new(),
            invocations_max: layout.invocations_max(),
            capacity_bytes: (0..workload.devices()).map(|device| layout.capacity_bytes(device)).collect(),
            // Requests with SLOs start by due time instead.
            waiting: (keeps_order && cluster.slo.is_none()).then(BTreeMap::new),
            slos: vec![None; workload.requests().len()],
            is_exact: cluster.is_exact(),
        }
    }

    pub(super) fn arrived(&mut self, request: u32, tenant: u32, slo: Option<Slo>) {
        self.fates[request as usize] = Fate::Waits;
        self.slos[request as usize] = slo.map(|slo| (slo, false));
        if let Some(waiting) = &mut self.waiting {
            waiting.entry(tenant).or_default().insert(request);
        }
    }

    /// Checks a start: once, while the request waits, on a device with a free slot.
    pub(super) fn started(
        &mut self,
        invocation: InvocationId,
        tenant_of: impl Fn(u32) -> u32,
        (id, device): (Option<DeviceId>, Option<u32>),
        why: &Why,
        now_ns: u64,
    ) -> Result<(u32, u32), Violation> {
        let number = self.number(invocation)?;
        let fate = &mut self.fates[number as usize];
        ensure(*fate == Fate::Waits, "what waits is started once", || {
            format!("{number} is started while {fate:?}")
        })?;
        *fate = Fate::Runs;
        self.leaves(number, tenant_of(number), true)?;
        if let Some((slo, is_on_trial)) = &mut self.slos[number as usize] {
            let after_ns = why.estimate.finish_after_ns();
            *is_on_trial =
                why.queued_ns == 0 && (now_ns + after_ns > slo.due_at_ns || why.estimate.cost > slo.cost_max);
        }
        let device = device.unwrap_or(u32::MAX);
        let known = self.running.get_mut(device as usize);
        let Some(running) = known else {
            return violated("a start names a device", format!("{number} on {device}"));
        };
        running.insert(number);
        let running = running.len();
        let invocations_max = self.invocations_max;
        ensure(running <= invocations_max as usize, "a device runs at most invocations_max", || {
            format!("{running} on {device}")
        })?;
        let beaten = why.alternatives.iter().all(|other| Some(other.device) != id);
        ensure(beaten, "a placement is compared with other devices", || {
            format!("{number} at {now_ns}: {why:?}")
        })?;
        Ok((number, device))
    }

    pub(super) fn ended(&mut self, request: u32, device: u32) -> Result<(), Violation> {
        let fate = &mut self.fates[request as usize];
        ensure(*fate == Fate::Runs, "what runs ends once", || format!("{request} ends while {fate:?}"))?;
        *fate = Fate::Ended;
        self.running[device as usize].remove(&request);
        Ok(())
    }

    /// Checks the end of a request that was not lost. In an exact simulation, an admitted request
    /// ends in time and within its maximum cost.
    pub(super) fn kept(
        &self,
        request: u32,
        now_ns: u64,
        cost: Cost,
        counts: &mut SloCounts,
    ) -> Result<(), Violation> {
        let Some((slo, is_on_trial)) = self.slos[request as usize] else { return Ok(()) };
        let is_kept = now_ns <= slo.due_at_ns && cost <= slo.cost_max;
        counts.met += u32::from(is_kept);
        counts.missed += u32::from(!is_kept);
        counts.on_trial += u32::from(!is_kept && is_on_trial);
        ensure(is_kept || is_on_trial || !self.is_exact, "what was admitted keeps its SLO", || {
            format!("{request} is over at {now_ns} for {cost}, and has {slo:?}")
        })
    }

    /// Checks a rejection. Returns whether the request had an SLO.
    pub(super) fn rejected(
        &mut self,
        invocation: InvocationId,
        tenant_of: impl Fn(u32) -> u32,
        why: Rejection,
    ) -> Result<bool, Violation> {
        let number = self.number(invocation)?;
        let has_slo = self.slos[number as usize].is_some();
        ensure(has_slo || why != Rejection::Slo, "only what has an SLO is rejected for it", || {
            format!("{number}")
        })?;
        let fate = &mut self.fates[number as usize];
        if why == Rejection::NodeLost {
            let was_lost = self.lost.remove(&number);
            *fate = Fate::Rejected;
            ensure(was_lost, "only what ran there is lost with a node", || format!("{number}"))?;
            return Ok(has_slo);
        }
        ensure(*fate == Fate::Waits, "only what waits is rejected", || {
            format!("{number} is rejected as {why:?} while {fate:?}")
        })?;
        *fate = Fate::Rejected;
        self.leaves(number, tenant_of(number), false)?;
        Ok(has_slo)
    }

    /// Records the loss of a device. Returns the requests that ran there and have to be rejected.
    pub(super) fn lose(&mut self, device: u32) -> Vec<u32> {
        let gone = std::mem::take(&mut self.running[device as usize]);
        self.lost.extend(&gone);
        gone.into_iter().collect()
    }

    /// Checks the state after the loss of a node.
    pub(super) fn lost(&self) -> Result<(), Violation> {
        ensure(self.lost.is_empty(), "what was lost with a node is answered", || format!("{:?}", self.lost))
    }

    /// Checks that requests of one tenant start in the order of arrival.
    fn leaves(&mut self, number: u32, tenant: u32, starts: bool) -> Result<(), Violation> {
        let Some(waiting) = self.waiting.as_mut().and_then(|waiting| waiting.get_mut(&tenant)) else {
            return Ok(());
        };
        waiting.remove(&number);
        let passed = waiting.first().filter(|first| starts && **first < number);
        ensure(passed.is_none(), "the order of arrival is kept", || format!("{number} has passed {passed:?}"))
    }

    /// Checks an eviction: the victim is resident and not granted.
    pub(super) fn evicts(&self, on: u32, victim: u32, device: &SimulatedDevice) -> Result<(), Violation> {
        ensure(device.holds(victim), "victims are in memory", || format!("model {victim} on {on}"))?;
        ensure(!device.is_granted(victim), "what is granted stays", || format!("model {victim} on {on}"))
    }

    pub(super) fn fits(&self, on: u32, device: &SimulatedDevice) -> Result<(), Violation> {
        let used = device.used_bytes();
        let capacity = self.capacity_bytes[on as usize];
        ensure(used <= capacity, "memory is never over", || format!("{used} of {capacity} bytes on {on}"))
    }

    /// Checks that an announced eviction triggers no new decision.
    pub(super) fn silent(&self, actions: &[Action]) -> Result<(), Violation> {
        let silent = actions.iter().all(|action| matches!(action, Action::WakeAt(_)));
        ensure(silent, "what was promised changes nothing", || format!("{actions:?}"))
    }

    /// Checks the state after every event.
    pub(super) fn step(&self, scheduler: &Scheduler) -> Result<(), Violation> {
        let corrections = scheduler.corrections();
        ensure(corrections == crate::Corrections::default(), "the scheduler's view is right", || {
            format!("{corrections:?}")
        })
    }

    /// Checks that no request is lost.
    pub(super) fn end<'a>(
        &self,
        schedulers: impl IntoIterator<Item = &'a Scheduler>,
    ) -> Result<(), Violation> {
        let lost = self.fates.iter().position(|fate| !matches!(fate, Fate::Ended | Fate::Rejected));
        ensure(lost.is_none(), "nothing is lost", || format!("request {lost:?}"))?;
        schedulers.into_iter().try_for_each(Self::is_empty)
    }

    fn is_empty(scheduler: &Scheduler) -> Result<(), Violation> {
        let waiting = scheduler.waiting();
        let running = scheduler.view().running();
        ensure(waiting + running == 0, "nothing is left", || format!("{waiting} wait and {running} run"))?;
        let lapse_at_ns = scheduler.view().lapse_at_ns();
        ensure(lapse_at_ns.is_none(), "no work is left", || format!("work lapses at {lapse_at_ns:?}"))?;
        let committed = scheduler
            .view()
            .devices()
            .find(|(_, device)| device.committed_ns() + device.committed_load_ns() > 0);
        ensure(committed.is_none(), "no work is left", || format!("{committed:?}"))?;
        let waiting_ns = scheduler.backlog().waiting_ns;
        ensure(waiting_ns == 0, "no work is left", || format!("{waiting_ns} ns wait"))
    }

    fn number(&self, invocation: InvocationId) -> Result<u32, Violation> {
        let number = u32::try_from(invocation.0).unwrap_or(u32::MAX);
        let known = (number as usize) < self.fates.len();
        ensure(known, "actions are about what arrived", || format!("{invocation}"))?;
        Ok(number)
    }
}

pub(super) fn ensure(
    holds: bool,
    promise: &'static str,
    details: impl FnOnce() -> String,
) -> Result<(), Violation> {
    if holds { Ok(()) } else { violated(promise, details()) }
}

pub(super) fn violated<T>(promise: &'static str, details: String) -> Result<T, Violation> {
    Err(Violation { promise, details })
}
