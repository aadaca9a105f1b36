//! Ends of invocations: reports them to the scheduler with the use of the device, and keeps the
//! outcomes.

use super::Placements;
use super::device_use::{RunningCall, UseRecorder};
use super::guard::CallEnd;
use super::state::{ForwardStep, PlacementState};
use crate::wire::NodeEvent;
use std::sync::Arc;
use weir_scheduler::DeviceUse;
use weir_types::{InvocationId, Ordinal};

impl Placements {
    /// Reports that the device starts the first run of an invocation.
    pub(super) fn run_started(&self, invocation: InvocationId) {
        let mut state = self.state.lock();
        self.tell(&mut state, NodeEvent::Started { invocation });
    }

    /// Reports the end of an invocation: at once, or when the last request that it left on the
    /// device has ended, so that the report has the device time of all its runs.
    pub(super) fn over(&self, invocation: InvocationId, end: CallEnd) {
        let mut state = self.state.lock();
        let running = state.running.get(&invocation);
        if !running.is_some_and(|running| running.recorder.defer(end)) {
            self.report_end(&mut state, invocation, end);
        }
    }

    /// Reports the end of an invocation whose last request has ended after it.
    pub(super) fn requests_over(&self, recorder: &Arc<UseRecorder>, invocation: InvocationId, end: CallEnd) {
        let mut state = self.state.lock();
        let running = state.running.get(&invocation);
        if running.is_some_and(|running| Arc::ptr_eq(&running.recorder, recorder)) {
            self.report_end(&mut state, invocation, end);
        }
    }

    /// Reports the ends that wait for requests on a device that is lost.
    pub(super) fn report_ends_on(&self, state: &mut PlacementState, device: Ordinal) {
        let on_device = state.running.iter().filter(|(_, running)| running.device == Some(device));
        let ended = on_device
            .filter_map(|(invocation, running)| running.recorder.take_end().map(|end| (*invocation, end)));
        for (invocation, end) in ended.collect::<Vec<_>>() {
            self.report_end(state, invocation, end);
        }
    }

    fn report_end(&self, state: &mut PlacementState, invocation: InvocationId, end: CallEnd) {
        let is_waiting = state.waiting.remove(&invocation).is_some();
        let remote = state.away.remove(&invocation);
        let running = self.release(state, invocation, end);
        let used = running.map(|running| running.recorder.used());
        let event = match (remote.map(|remote| remote.progress.step()), used) {
            (Some(ForwardStep::Answered), _) => NodeEvent::Answered { invocation },
            (Some(ForwardStep::Sent), _) => NodeEvent::Abandoned { invocation },
            (None, Some(used)) if !is_waiting => match end {
                CallEnd::Succeeded => NodeEvent::Finished { invocation, used },
                CallEnd::Failed => NodeEvent::Failed { invocation, used },
                CallEnd::Cancelled => NodeEvent::Cancelled { invocation, used: Some(used) },
            },
            // It did not run.
            _ => NodeEvent::Cancelled { invocation, used: Some(DeviceUse::default()) },
        };
        self.tell(state, event);
        self.freed.notify_waiters();
    }

    /// Reports that a step of a workflow will not arrive, so that its reservation can end.
    pub fn release_step(&self, step: InvocationId) {
        let mut state = self.state.lock();
        self.tell(&mut state, NodeEvent::Cancelled { invocation: step, used: None });
    }

    /// Ends an invocation that no scheduler knows.
    pub(super) fn over_unreported(&self, invocation: InvocationId) {
        let mut state = self.state.lock();
        self.release(&mut state, invocation, CallEnd::Cancelled);
        self.freed.notify_waiters();
    }

    /// Ends the grant of an invocation on this node, and keeps its outcome. Only successful
    /// invocations count in the metric of estimates.
    fn release(
        &self,
        state: &mut PlacementState,
        invocation: InvocationId,
        end: CallEnd,
    ) -> Option<RunningCall> {
        state.residency.finish(invocation);
        let running = state.running.remove(&invocation)?;
        let outcome = running.recorder.outcome();
        let ratio = match &running.tenant {
            Some(tenant) => state.history.end(tenant, invocation, outcome).and_then(|ratio| ratio.total),
            None => {
                self.outcomes.insert(invocation, outcome);
                running.estimate_ns.and_then(|estimate_ns| outcome.estimated(estimate_ns))
            }
        };
        if let (Some(ratio), Some(device), CallEnd::Succeeded) = (ratio, running.device, end) {
            self.metrics.placements.ended(self.kind(device), ratio);
        }
        Some(running)
    }

    fn kind(&self, device: Ordinal) -> &str {
        let device = usize::try_from(device).ok().and_then(|at| self.devices.get(at));
        device.map_or("", |device| &*device.kind.0)
    }
}
