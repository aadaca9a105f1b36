//! One run of a workflow, from admission to outputs.
//!
//! A run is placed as a unit, with all the models that its steps may need, just as a function is
//! placed with the models that it is granted. If no device has room for all of them, each step is
//! placed individually (`apart.rs`). Outputs pass between steps as handles: on one node they are
//! neither copied nor serialized; to another node they go directly; between models on one GPU they
//! stay there (`models.rs`). Steps that do not depend on each other run concurrently. Dropping the
//! run drops its steps with their model runs and sandboxes. The first step that fails ends the run.

mod apart;
mod builtin;
mod hedge;
mod models;
mod steps;

pub(crate) use steps::Steps;

use super::Dispatch;
use super::account::Counted;
use super::placement::{Away, Place, Placed, Spot};
use crate::cluster::wire::Granted;
use crate::instance::Fault;
use crate::objective::Objective;
use crate::telemetry::{Phase, Trace};
use crate::until::until;
use crate::workflows::Workflow;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::Instrument;
use weir_inference::{Completion, Execution, Tensor};
use weir_scheduler::InputsOn;
use weir_types::{ErrorCode, InvocationId};
use weir_workflow::Plan;

/// A workflow call as the gateway describes it.
pub(crate) struct WorkflowCall {
    pub(crate) id: InvocationId,
    pub(crate) request_id: Arc<str>,
    pub(crate) workflow: Arc<Workflow>,
    /// The objective to meet; see [`Inference::objective`](super::Inference::objective).
    pub(crate) objective: Objective,
    pub(crate) trace: Trace,
    pub(crate) arrived: Instant,
    pub(crate) deadline: Instant,
    pub(crate) priority: u32,
    /// The input bytes per node, for placement; empty to ignore the transfer of inputs.
    pub(crate) inputs: Vec<InputsOn>,
    /// The grant that a forwarding node sent along; `None`: ask the scheduler.
    pub(crate) granted: Option<Granted>,
}

/// The node on which a workflow is to run.
pub(crate) enum WorkflowTurn {
    Here(WorkflowPlace),
    There(Away, Placed),
}

/// The placement of a workflow on this node.
pub(crate) struct WorkflowPlace {
    _placed: Placed,
    spot: Spot,
    /// The time that the workflow waited for its placement.
    queue_time: Duration,
}

impl Dispatch {
    /// Requests a placement with everything that the workflow may need. Waits until the deadline.
    pub(crate) async fn place_workflow(
        &self,
        call: &WorkflowCall,
        batch: u32,
    ) -> Result<WorkflowTurn, Fault> {
        if let Some(why) = self.catalog.unready(&call.workflow) {
            return Err(unready(&call.workflow, &why));
        }
        let queued = Instant::now();
        let _waiting = Counted::new(&self.metrics.queued);
        let placing = self.placements.place_workflow(call, batch, &self.catalog);
        let placed = until(call.deadline, placing.instrument(call.trace.phase(Phase::Queue))).await;
        self.metrics.phase(Phase::Queue, queued.elapsed());
        let (place, placed) = placed.unwrap_or_else(|| {
            let text = "the deadline passed before the workflow was placed (timeout, infer_time_ms_max)";
            Err(Fault::new(ErrorCode::DeadlineExceeded, text))
        })?;
        Ok(match place {
            Place::Here(device) => {
                let spot = Spot { invocation: call.id, device };
                WorkflowTurn::Here(WorkflowPlace { _placed: placed, spot, queue_time: queued.elapsed() })
            }
            Place::There(away) => WorkflowTurn::There(away, placed),
        })
    }

    /// Runs a workflow that has a placement. `wanted` names the outputs to return; `None`: all.
    pub(crate) async fn run_workflow(
        self: &Arc<Self>,
        call: &WorkflowCall,
        place: WorkflowPlace,
        inputs: Vec<(String, Tensor)>,
        wanted: Option<&[String]>,
    ) -> Result<Completion, Fault> {
        let _running = Counted::new(&self.metrics.running);
        let started = Instant::now();
        let steps = self.steps(call, place.spot, false);
        let execution = Some(Execution::alone(&inputs));
        let outputs = steps.run(&call.workflow, inputs, wanted).await?;
        Ok(Completion {
            outputs,
            stayed: Vec::new(),
            queue_time: place.queue_time,
            run_time: started.elapsed(),
            execution,
        })
    }
}

impl Dispatch {
    /// The steps of a client's call.
    fn steps(self: &Arc<Self>, call: &WorkflowCall, spot: Spot, is_apart: bool) -> Steps {
        Steps {
            dispatch: self.clone(),
            tenant: call.workflow.id.tenant.clone(),
            spot,
            is_apart,
            caller: None,
            request_id: call.request_id.clone(),
            trace: call.trace.clone(),
            deadline: call.deadline,
            priority: call.priority,
            depth: 0,
        }
    }
}

/// The plan of a runnable workflow.
fn plan(workflow: &Workflow) -> Result<&Arc<Plan>, Fault> {
    workflow.plan().map_err(|why| unready(workflow, why))
}

fn unready(workflow: &Workflow, why: &str) -> Fault {
    let text = format!("workflow {}:{} cannot be run: {why}", workflow.id.name, workflow.id.version);
    Fault::new(ErrorCode::Unavailable, text)
}
