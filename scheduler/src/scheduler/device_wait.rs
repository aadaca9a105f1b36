//! Invocations that wait for a first device: while the cluster has none, for a limited time.
//!
//! The time of an invocation begins when it arrives, or when the last device leaves. It ends when a
//! device comes up that can run the invocation, and shortly before the invocation's deadline, so that
//! the rejection names the missing device. Invocations with an SLO are judged once the device's node is
//! known completely, because admission estimates their time on devices.

use super::Scheduler;
use crate::policy::OpenableModel;
use crate::{Action, DeviceKey, DeviceView, ModelKey, PlacementRequest, PlannedStep, Rejection, Slo};
use smallvec::SmallVec;
use std::collections::{BTreeMap, HashMap};
use weir_types::InvocationId;

/// Device time that a waiting invocation counts for, while no device is known and nothing was learned
/// about it. An autoscaler adds nodes by the sum.
const ASSUMED_RUN_TIME_NS: u64 = 100_000_000;

/// Time before the deadline of an invocation at which it waits for a device no longer: enough for the
/// rejection to reach the node that received the invocation. At most a quarter of the invocation's time.
const BEFORE_DEADLINE_NS: u64 = 100_000_000;

/// The invocations that wait for a first device. All of them are in [`Scheduler::waiting`], which
/// limits their number.
#[derive(Debug)]
pub(super) struct DeviceWait {
    time_max_ns: u64,
    /// The models of each invocation, by the end of its wait. No models: every device can run it.
    ends: BTreeMap<(u64, InvocationId), SmallVec<[OpenableModel; 1]>>,
    /// Invocations with an SLO, in order of arrival, with the steps of workflows.
    unjudged: Vec<(PlacementRequest, Vec<PlannedStep>)>,
}

impl DeviceWait {
    pub(super) fn new(time_max_ms: u32) -> Self {
        Self { time_max_ns: u64::from(time_max_ms) * 1_000_000, ends: BTreeMap::new(), unjudged: Vec::new() }
    }

    /// The end of a wait that begins now.
    fn end_ns(&self, now_ns: u64, deadline_at_ns: u64) -> u64 {
        let before_ns = (deadline_at_ns.saturating_sub(now_ns) / 4).min(BEFORE_DEADLINE_NS);
        now_ns.saturating_add(self.time_max_ns).min(deadline_at_ns.saturating_sub(before_ns))
    }

    pub(super) fn first_end_ns(&self) -> Option<u64> {
        self.ends.first_key_value().map(|((end_ns, _), _)| *end_ns)
    }

    pub(super) fn remove(&mut self, end_ns: u64, invocation: InvocationId) {
        self.ends.remove(&(end_ns, invocation));
    }

    /// Removes an invocation that was to be judged.
    pub(super) fn take_unjudged(&mut self, invocation: InvocationId) -> Option<PlacementRequest> {
        let at = self.unjudged.iter().position(|(request, _)| request.invocation == invocation)?;
        Some(self.unjudged.remove(at).0)
    }
}

impl Scheduler {
    /// Whether the cluster has no device, not even one that is down.
    pub(super) fn is_without_devices(&self) -> bool {
        self.view.capacity_bytes_max().is_none()
    }

    /// Starts the wait of a request that arrives, if no device is known. Returns its end.
    pub(super) fn await_device(&mut self, request: &PlacementRequest) -> Option<u64> {
        self.is_without_devices().then(|| {
            let end_ns = self.device_wait_end_ns(request);
            self.device_wait.ends.insert((end_ns, request.invocation), request.models.clone());
            end_ns
        })
    }

    /// Keeps a request with an SLO until a device comes up.
    pub(super) fn judge_later(&mut self, request: PlacementRequest, steps: &[PlannedStep]) {
        self.device_wait.unjudged.push((request, steps.to_vec()));
    }

    /// Starts the waits of all waiting invocations if the last device has left.
    pub(super) fn devices_left(&mut self) {
        if !self.is_without_devices() {
            return;
        }
        let unjudged = self.device_wait.unjudged.iter().map(|(request, _)| request);
        let unjudged = unjudged.map(|request| (request.invocation, self.device_wait_end_ns(request)));
        let unjudged: HashMap<_, _> = unjudged.collect();
        for (invocation, waits) in &mut self.waiting {
            if waits.device_by_ns.is_none() {
                let end_ns = self.device_wait.end_ns(self.now_ns, waits.deadline_at_ns);
                let end_ns = unjudged.get(invocation).copied().unwrap_or(end_ns);
                waits.device_by_ns = Some(end_ns);
                // A device could run it when it arrived.
                self.device_wait.ends.insert((end_ns, *invocation), SmallVec::new());
            }
        }
    }

    /// Ends the waits of the invocations that one of these new devices can run. Considers each list of
    /// models once.
    pub(super) fn devices_came(&mut self, devices: &[DeviceKey]) {
        let devices: Vec<_> = devices.iter().filter_map(|device| self.view.device(*device)).collect();
        if devices.is_empty() {
            return;
        }
        let mut known = HashMap::<SmallVec<[(ModelKey, u64); 1]>, bool>::new();
        let waiting = &mut self.waiting;
        self.device_wait.ends.retain(|(_, invocation), models| {
            let key = models.iter().map(|demand| (demand.model, demand.bytes)).collect();
            let has_device = *known.entry(key).or_insert_with(|| {
                let could_hold =
                    |device: &&DeviceView| device.suits(models) && device.is_large_enough(models);
                models.is_empty() || devices.iter().any(could_hold)
            });
            if has_device {
                waiting.entry(*invocation).and_modify(|waits| waits.device_by_ns = None);
            }
            !has_device
        });
    }

    /// Judges the invocations that waited for a first device. Those with an SLO are admitted or
    /// refused. Workflows that fit on no device as a whole end their wait: their steps are placed
    /// separately. Does nothing while the scheduler is paused, because the models and invocations on
    /// the devices are not known yet; the end of the pause calls it again.
    pub(super) fn judge_waiting(&mut self, actions: &mut Vec<Action>) {
        if self.held.is_some() || self.is_without_devices() {
            return;
        }
        for (request, steps) in std::mem::take(&mut self.device_wait.unjudged) {
            let waits = self.waiting.get(&request.invocation).copied();
            if waits.is_none_or(|waits| waits.device_by_ns.is_none()) {
                let invocation = request.invocation;
                self.waits_no_more(&request);
                self.admit(request, &steps, actions);
                let is_splittable = waits.is_some_and(|waits| waits.is_splittable);
                self.waiting.entry(invocation).and_modify(|waits| waits.is_splittable = is_splittable);
            } else if !waits.is_some_and(|waits| waits.is_splittable)
                || !self.reserve_unfit(&request, &steps, actions)
            {
                self.device_wait.unjudged.push((request, steps));
            }
        }
        let is_splittable =
            |invocation: &InvocationId| self.waiting.get(invocation).is_some_and(|waits| waits.is_splittable);
        let unsuited = self.device_wait.ends.keys().map(|(_, invocation)| *invocation);
        let unsuited: Vec<_> = unsuited.filter(is_splittable).collect();
        for invocation in unsuited {
            let Some(request) = self.give_up(invocation) else { continue };
            self.reject(&request, Rejection::NoCapacity, actions);
        }
    }

    /// Rejects the invocations that have waited for too long. Returns whether there were any.
    pub(super) fn end_device_waits(&mut self, actions: &mut Vec<Action>) -> bool {
        let mut any = false;
        while let Some((&(end_ns, invocation), _)) = self.device_wait.ends.first_key_value() {
            if end_ns > self.now_ns {
                break;
            }
            self.device_wait.remove(end_ns, invocation);
            let Some(request) = self.give_up(invocation) else { continue };
            let why = if self.last_start_ns(&request) <= self.now_ns {
                Rejection::Slo
            } else if self.is_without_devices() {
                Rejection::NoDevice
            } else {
                Rejection::NoCapacity
            };
            self.reject(&request, why, actions);
            any = true;
        }
        any
    }

    /// Predicted device time of the waiting invocations. While there is no device, every invocation
    /// counts, so that an autoscaler starts a node for the first one.
    pub(super) fn waiting_work_ns(&self) -> u64 {
        if !self.is_without_devices() {
            return self.waiting_ns;
        }
        let assumed_ns =
            ASSUMED_RUN_TIME_NS.saturating_mul(u64::try_from(self.waiting()).unwrap_or(u64::MAX));
        self.waiting_ns.max(assumed_ns)
    }

    fn device_wait_end_ns(&self, request: &PlacementRequest) -> u64 {
        self.device_wait.end_ns(self.now_ns, request.deadline_at_ns).min(self.last_start_ns(request))
    }

    /// The latest start with which a request can meet its SLO; `u64::MAX` if admission does not judge
    /// the request.
    fn last_start_ns(&self, request: &PlacementRequest) -> u64 {
        let is_judged = self.admission.is_on() && !request.models.is_empty() && !request.is_step;
        match request.slo {
            Slo { due_at_ns, .. } if is_judged && due_at_ns < u64::MAX => {
                due_at_ns.saturating_sub(request.run_time_ns.unwrap_or(0))
            }
            _ => u64::MAX,
        }
    }
}
