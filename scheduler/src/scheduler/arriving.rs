//! Arrivals: which can never run, which are admitted, and which wait.

use super::Scheduler;
use crate::policy::OpenableModel;
use crate::view::together_bytes;
use crate::{Action, Arrival, DeviceView, PlacementRequest, PlannedStep, Rejection, Slo};
use weir_types::InvocationId;

impl Scheduler {
    /// Queues an arrival, or rejects it if it can never run.
    pub(super) fn arrived(
        &mut self,
        mut arrival: Arrival,
        actions: &mut Vec<Action>,
    ) -> Option<InvocationId> {
        let invocation = arrival.invocation;
        let deadline_at_ns = arrival.deadline_at_ns;
        if self.is_known(invocation) {
            self.corrections.arrived_twice += 1;
            return None;
        }
        if arrival.models.len() > 1 {
            self.drop_repeated_models(&mut arrival);
        }
        let request = self.view.resolve(&arrival, self.now_ns);
        let is_admitted = request.slo != Slo::NONE && self.admission.is_on() && !request.models.is_empty();
        let rejection = if deadline_at_ns <= self.now_ns {
            Rejection::Deadline
        } else if !self.could_fit(&request) {
            if is_admitted && self.reserve_unfit(&request, &arrival.steps, actions) {
                return None;
            }
            Rejection::NoCapacity
        } else if let Some(slo) = self.admission.take_expected(invocation) {
            return Some(self.step_arrived(PlacementRequest { slo, is_step: true, ..request }));
        } else if is_admitted {
            let newcomer = self.admit(request, &arrival.steps, actions);
            self.note_splittable(&arrival);
            return newcomer;
        } else {
            self.has_slos |= request.slo != Slo::NONE;
            self.waits(&request);
            self.note_splittable(&arrival);
            self.queue(request);
            if self.admission.is_used() {
                self.admission.watch(invocation, self.now_ns);
            }
            return Some(invocation);
        };
        self.reject(&request, rejection, actions);
        None
    }

    /// Records whether a waiting invocation may run in separate steps.
    fn note_splittable(&mut self, arrival: &Arrival) {
        if arrival.is_splittable {
            self.waiting.entry(arrival.invocation).and_modify(|waits| waits.is_splittable = true);
        }
    }

    /// Admits an invocation with an SLO, or rejects it. While no device is known, the invocation waits.
    pub(super) fn admit(
        &mut self,
        request: PlacementRequest,
        steps: &[PlannedStep],
        actions: &mut Vec<Action>,
    ) -> Option<InvocationId> {
        self.use_admission();
        let invocation = request.invocation;
        self.waits(&request);
        if self.is_without_devices() {
            self.judge_later(request, steps);
            return Some(invocation);
        }
        // Separate steps may meet the objectives that the whole misses on trial.
        let may_try = steps.len() < 2;
        match self.admission.admit(self.now_ns, &self.view, request, may_try) {
            Ok(()) => Some(invocation),
            Err(refused) if may_try => {
                self.refuse(*refused, actions);
                None
            }
            Err(refused) => self.reserve_or_refuse(*refused, steps, actions).then_some(invocation),
        }
    }

    /// Tracks the invocations that already wait when the first invocation with an SLO arrives.
    pub(super) fn use_admission(&mut self) {
        self.has_slos = true;
        if !self.admission.is_used() {
            for (invocation, waits) in &self.waiting {
                self.admission.watch(*invocation, waits.arrived_at_ns);
            }
        }
    }

    /// Whether some known device can run the request and is large enough, and the tenant's memory
    /// limit allows it. True while no device is known.
    fn could_fit(&self, request: &PlacementRequest) -> bool {
        let is_within_cap = || {
            let bytes_max = self.view.tenants().bytes_max(request.tenant);
            together_bytes(&request.models) <= bytes_max
                && (bytes_max == u64::MAX || self.required.bytes_with(request) <= bytes_max)
        };
        request.models.is_empty() || is_within_cap() && self.has_device_for(&request.models)
    }

    pub(super) fn has_device_for(&self, models: &[OpenableModel]) -> bool {
        let Some(largest) = self.view.capacity_bytes_max() else { return true };
        if models.iter().all(|demand| demand.runs_on.is_all()) && self.required.is_empty() {
            return together_bytes(models) <= largest;
        }
        let could_hold = |device: &DeviceView| device.suits(models) && device.is_large_enough(models);
        self.view.devices().any(|(_, device)| could_hold(device))
    }

    /// Whether an invocation waits or runs.
    pub(super) fn is_known(&self, invocation: InvocationId) -> bool {
        self.waiting.contains_key(&invocation)
            || self.view.is_running(invocation)
            || self.is_held(invocation)
            || self.admission.has_workflow(invocation)
    }

    pub(super) fn drop_repeated_models(&mut self, arrival: &mut Arrival) {
        let mut at = 0;
        while at < arrival.models.len() {
            let (before, from) = arrival.models.split_at(at);
            if from.first().is_some_and(|demand| before.iter().any(|other| other.model == demand.model)) {
                arrival.models.remove(at);
                self.corrections.named_twice += 1;
            } else {
                at += 1;
            }
        }
    }
}
