//! Invocations that wait for a first device: while the cluster has none, for a limited time.
//!
//! The time of an invocation begins when it arrives, or when the last device leaves. It ends when a
//! device comes up that can run the invocation, and shortly before the invocation's deadline, so that
//! the rejection names the missing device. Invocations with an SLO are judged then, because
//! admission estimates their time on devices.

use super::Scheduler;
use crate::policy::OpenableModel;
use crate::{Action, PlacementRequest, PlannedStep, Rejection, Slo};
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

    /// Starts the waits of all waiting invocations if the last device has left, and ends the waits of
    /// those that a new device can run.
    pub(super) fn devices_changed(&mut self, actions: &mut Vec<Action>) {
        if self.is_without_devices() {
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
            return;
        }
        for ((end_ns, invocation), models) in std::mem::take(&mut self.device_wait.ends) {
            if models.is_empty() || self.has_device_for(&models) {
                self.waiting.entry(invocation).and_modify(|waits| waits.device_by_ns = None);
            } else {
                self.device_wait.ends.insert((end_ns, invocation), models);
            }
        }
        for (request, steps) in std::mem::take(&mut self.device_wait.unjudged) {
            if self.has_device_for(&request.models) {
                self.waits_no_more(&request);
                self.admit(request, &steps, actions);
            } else {
                self.device_wait.unjudged.push((request, steps));
            }
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
