//! Workflows whose steps are placed separately, because they cannot be admitted as a whole.

use super::Scheduler;
use crate::slo::{Refused, SeparateStep};
use crate::{Action, Estimate, PlacementRequest, PlannedStep, Rejection, Slo};
use std::collections::HashSet;
use weir_types::InvocationId;

impl Scheduler {
    /// Reserves places for the steps of a workflow that was refused as a whole. Otherwise, tries the
    /// whole, or rejects it. Returns whether the whole waits.
    pub(super) fn reserve_or_refuse(
        &mut self,
        refused: Refused,
        steps: &[PlannedStep],
        actions: &mut Vec<Action>,
    ) -> bool {
        if let Ok(estimate) = self.reserve(&refused.request, steps, false) {
            self.waits_no_more(&refused.request);
            self.reserved(&refused.request, estimate, actions);
            return false;
        }
        if refused.is_over_limits {
            self.refuse(refused, actions);
            return false;
        }
        match self.admission.admit_on_trial(self.now_ns, &self.view, refused.request) {
            Ok(()) => true,
            Err(request) => {
                self.refuse(Refused { request, ..refused }, actions);
                false
            }
        }
    }

    /// Reserves places for the steps of a workflow that fits on no device as a whole, or rejects it
    /// because it would miss its objectives; it waits no more then. Returns false if its steps cannot be
    /// planned, either.
    pub(super) fn reserve_unfit(
        &mut self,
        request: &PlacementRequest,
        steps: &[PlannedStep],
        actions: &mut Vec<Action>,
    ) -> bool {
        if steps.is_empty() {
            return false;
        }
        self.use_admission();
        let reserved = self.reserve(request, steps, true);
        if !matches!(reserved, Err(None)) && self.waiting.contains_key(&request.invocation) {
            self.waits_no_more(request);
        }
        match reserved {
            Ok(estimate) => self.reserved(request, estimate, actions),
            Err(Some(estimate)) => {
                self.view.forget(request);
                actions.push(Action::Reject {
                    invocation: request.invocation,
                    why: Rejection::Slo,
                    estimate,
                    alternatives: Vec::new(),
                });
            }
            Err(None) => return false,
        }
        true
    }

    /// Admits a step of a workflow: at its reserved place, or else at another place in the time that
    /// is left to it. A step that would be late continues without an SLO.
    pub(super) fn step_arrived(&mut self, request: PlacementRequest) -> InvocationId {
        let invocation = request.invocation;
        self.waits(&request);
        let unreserved = match self.admission.confirm(request) {
            Ok(reserved) => {
                self.view.forget_names(&reserved);
                return invocation;
            }
            Err(request) => request,
        };
        if let Err(refused) = self.admission.admit(self.now_ns, &self.view, unreserved, false) {
            self.continue_late(refused.request);
        }
        invocation
    }

    /// Queues a step that cannot end in time as an invocation without an SLO.
    pub(super) fn continue_late(&mut self, request: PlacementRequest) {
        let invocation = request.invocation;
        self.queue(PlacementRequest { slo: Slo::NONE, ..request });
        self.admission.watch(invocation, self.now_ns);
    }

    /// Releases the reservation of a step that will not arrive. Returns whether the invocation is
    /// one.
    pub(super) fn release_step(&mut self, step: InvocationId) -> bool {
        let is_expected = self.admission.is_expected(step);
        if let Some(request) = self.admission.release(step, &self.view) {
            self.view.forget_names(&request);
        }
        is_expected
    }

    /// Ends a workflow with separate steps. Returns whether the invocation is one.
    pub(super) fn end_workflow(&mut self, workflow: InvocationId) -> bool {
        let Some(unarrived) = self.admission.end_workflow(workflow, &self.view) else { return false };
        unarrived.iter().for_each(|request| self.view.forget_names(request));
        true
    }

    /// Updates the devices after changes of the timetables.
    pub(super) fn settle_admission(&mut self) {
        self.admission.settle(self.now_ns, &mut self.view);
        for request in self.admission.take_lapsed() {
            self.view.forget_names(&request);
        }
    }

    /// Reserves places for steps. The error contains the estimate if the steps can run.
    fn reserve(
        &mut self,
        workflow: &PlacementRequest,
        steps: &[PlannedStep],
        may_try: bool,
    ) -> Result<Estimate, Option<Estimate>> {
        let mut ids = HashSet::from([workflow.invocation]);
        let is_new = |step: &PlannedStep| {
            !self.is_known(step.invocation) && !self.admission.is_expected(step.invocation)
        };
        let is_sound = (2..=PlannedStep::STEPS_MAX).contains(&steps.len())
            && steps.iter().all(|step| is_new(step) && ids.insert(step.invocation));
        if !is_sound {
            return Err(None);
        }
        let resolved: Vec<_> = steps
            .iter()
            .map(|step| {
                let mut arrival = step.arrival(workflow.deadline_at_ns, workflow.priority);
                self.drop_repeated_models(&mut arrival);
                let request = self.view.resolve_names(&arrival, self.now_ns);
                let after = step.after.iter().map(|before| usize::try_from(*before).unwrap_or(usize::MAX));
                SeparateStep { request, after: after.collect() }
            })
            .collect();
        let reserved = self.admission.reserve(self.now_ns, &self.view, workflow, &resolved, may_try);
        // A reservation keeps the names of its step.
        let has_place = |step: &SeparateStep| self.admission.is_expected(step.request.invocation);
        for step in resolved.iter().filter(|step| !has_place(step)) {
            self.view.forget_names(&step.request);
        }
        reserved
    }

    fn reserved(&mut self, request: &PlacementRequest, estimate: Estimate, actions: &mut Vec<Action>) {
        self.view.forget(request);
        actions.push(Action::Reserved { invocation: request.invocation, estimate });
    }
}
