//! The context of a call, the same for all kinds of targets.

use std::sync::Arc;
use std::time::Instant;
use weir_call::Objective;
use weir_cluster::Granted;
use weir_control::models::ModelChoices;
use weir_control::registry::DeployedFunction;
use weir_scheduler::InputsOn;
use weir_telemetry::Trace;
use weir_types::InvocationId;

/// A call, without its target and its inputs.
#[derive(Clone)]
pub struct CallCtx {
    /// The id for the scheduler.
    pub id: InvocationId,
    /// The request id, as in logs and the response's header.
    pub request_id: Arc<str>,
    /// The objective to meet. Empty for a step of a workflow: the workflow has the objective.
    pub objective: Objective,
    /// The trace of the call; empty if the call is not sampled.
    pub trace: Trace,
    /// The arrival of the request.
    pub arrived: Instant,
    /// The time at which the call is cancelled.
    pub deadline: Instant,
    /// The priority: 1 is the most urgent; 0 is the default.
    pub priority: u32,
    /// The nesting depth in calls of functions and workflows: 0 for a client's request.
    pub depth: u32,
    /// The input bytes per node, for placement; empty to ignore the transfer of inputs.
    pub inputs: Vec<InputsOn>,
    /// The versions of models that the call uses; `None`: the active versions.
    pub models: Option<Arc<ModelChoices>>,
    /// The grant with which the call runs here, from a forwarding node or from this node after the
    /// chosen node failed to run the call; `None`: ask the scheduler.
    pub granted: Option<Granted>,
    /// Whether the call offers a WebSocket. If the function accepts, its bodies have no limit of their
    /// size, and it may run until the deadline instead of `limits.deadline_ms`.
    pub is_websocket: bool,
}

impl CallCtx {
    /// Limits the deadline to the time that the function may take.
    pub(super) fn shorten_deadline(&mut self, deployment: &DeployedFunction) {
        let limit_ms = deployment.manifest.limits.deadline_ms;
        self.deadline = self.deadline.min(super::deadline(self.arrived, limit_ms));
    }
}
