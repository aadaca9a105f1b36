//! Admission: the gate of a function, and the placement of the call.

use super::account::GaugeGuard;
use super::place::PlacedCall;
use super::workflow::unready;
use super::{CallCtx, Dispatch, ModelTarget, Target};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::OwnedSemaphorePermit;
use weir_call::{Fault, until};
use weir_cluster::{LocalPlacement, Placement, PlacementGuard, RemotePlacement};
use weir_telemetry::{Metrics, Phase, Span, Trace};
use weir_types::{ErrorCode, InvocationId};

/// A call that is placed on this node, with its permits.
pub(super) struct Admission {
    pub(super) placement: LocalPlacement,
    /// The ids with which separate steps of a workflow have to arrive, by the index of the step.
    /// Empty if the steps have no reservations.
    pub(super) steps: Arc<[InvocationId]>,
    pub(super) permits: ForwardPermits,
    pub(super) queueing: Queueing,
}

/// A call that is placed on another node, with the permits to hold here meanwhile.
pub(super) struct RemoteAdmission {
    pub(super) placement: RemotePlacement,
    pub(super) permits: ForwardPermits,
}

/// The permits that a call holds on the node that received it, wherever the call runs.
#[derive(Default)]
pub(super) struct ForwardPermits {
    /// The permit of the function's gate; `None` for models and workflows, and if the node that
    /// received the call holds it.
    pub(super) _gate: Option<OwnedSemaphorePermit>,
    /// `None` for a call nested in a placed one.
    pub(super) placement: Option<PlacementGuard>,
}

impl ForwardPermits {
    /// Records the outcome of the call for the scheduler. A call without an outcome counts as
    /// cancelled.
    pub(super) fn ended(&self, has_succeeded: bool) {
        if let Some(placement) = &self.placement {
            placement.ended(has_succeeded);
        }
    }
}

/// A call that waits for its start: counted in the gauge of queued calls, with a span.
pub(super) struct Queueing {
    pub(super) since: Instant,
    /// Ends with the wait.
    _span: Span,
    _waiting: GaugeGuard,
}

impl Queueing {
    fn start(metrics: &Metrics, trace: &Trace) -> Self {
        let _waiting = GaugeGuard::new(&metrics.calls.queued);
        Self { since: Instant::now(), _span: trace.phase(Phase::Queue), _waiting }
    }

    /// Ends the wait, and returns its duration.
    pub(super) fn end(self, metrics: &Metrics) -> Duration {
        let waited = self.since.elapsed();
        metrics.phase(Phase::Queue, waited);
        waited
    }
}

impl Dispatch {
    /// Waits, until the deadline, for a permit of the function's gate and for the placement of a
    /// call with `batch` items.
    pub(super) async fn admit(
        &self,
        call: &CallCtx,
        target: &Target,
        batch: u32,
    ) -> Result<Placement<Admission, RemoteAdmission>, Fault> {
        if let Target::Workflow(workflow) = target
            && let Some(why) = self.catalog.unready(workflow)
        {
            return Err(unready(workflow, &why));
        }
        let queueing = Queueing::start(&self.metrics, &call.trace);
        let placing = async {
            // Each call takes one gate permit, on one node only. Two nodes that forward calls to
            // each other would deadlock otherwise.
            let gate = match target {
                Target::Function(function) if call.granted.is_none() => {
                    tokio::select! {
                        biased;
                        entered = function.deployment().gate.enter() => Some(entered?),
                        refusal = self.placements.refusal() => return Err(refusal),
                    }
                }
                _ => None,
            };
            let PlacedCall { placement, guard, steps } = self.place(call, target, batch).await?;
            Ok((placement, ForwardPermits { _gate: gate, placement: Some(guard) }, steps))
        };
        let placed = until(call.deadline, placing).await;
        let (placement, permits, steps) = match placed.unwrap_or_else(|| Err(target.start_timeout())) {
            Ok(placed) => placed,
            Err(fault) if fault.code == ErrorCode::NoCapacity && self.has_separate_steps(call, target) => {
                let placement = LocalPlacement::of_separate_steps(call.id);
                let (permits, steps) = Default::default();
                return Ok(Placement::Local(Admission { placement, steps, permits, queueing }));
            }
            Err(fault) => {
                self.count_unstarted(call, target, fault.code);
                return Err(fault);
            }
        };
        Ok(match placement {
            Placement::Local(placement) => {
                Placement::Local(Admission { placement, steps, permits, queueing })
            }
            Placement::Remote(placement) => {
                queueing.end(&self.metrics);
                Placement::Remote(RemoteAdmission { placement, permits })
            }
        })
    }

    /// Whether the steps of the target may fit on devices individually.
    fn has_separate_steps(&self, call: &CallCtx, target: &Target) -> bool {
        let demands = |workflow| self.catalog.demands(workflow, call.models.as_deref());
        matches!(target, Target::Workflow(workflow) if demands(workflow).len() > 1)
    }

    /// Counts a call without a placement as failed runs of its models, if they have canaries: a
    /// canary for which no device has room fails only in this way.
    fn count_unstarted(&self, call: &CallCtx, target: &Target, code: ErrorCode) {
        if let Target::Model(ModelTarget { entry, is_measured: false, .. }) = target {
            entry.count_unstarted(code);
        }
        let chosen = call.models.as_ref().map(|models| models.chosen()).unwrap_or_default();
        // A call may name a version both without a version and by an alias.
        let chosen: BTreeSet<_> =
            chosen.into_iter().map(|(wanted, version)| (wanted.name, version)).collect();
        for (name, version) in chosen {
            if let Ok(entry) = self.models.get(target.tenant(), &name, Some(version)) {
                entry.count_unstarted(code);
            }
        }
    }
}
