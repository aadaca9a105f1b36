//! One run of a workflow on this node.
//!
//! A run is placed as a unit, with all the models that its steps may need, just as a function is
//! placed with the models that it is granted. If no device has room for all of them, or if the
//! workflow meets its objectives only with separate steps, each step is placed individually
//! (`apart.rs`). Outputs pass between steps as handles: on one node they are
//! neither copied nor serialized; to another node they go directly; between models on one GPU they
//! stay there (`models.rs`). Steps that do not depend on each other run concurrently. Dropping the
//! run drops its steps with their model runs and sandboxes. The first step that fails ends the run.

mod apart;
mod builtin;
mod hedge;
mod models;
mod steps;

pub use steps::Steps;

use super::account::GaugeGuard;
use super::admission::Admission;
use super::job::InferenceJob;
use super::{CallCtx, Dispatch};
use std::sync::Arc;
use std::time::Instant;
use weir_call::Fault;
use weir_cluster::LocalPlacement;
use weir_control::workflows::DeployedWorkflow;
use weir_inference::{Completion, Execution};
use weir_types::{ErrorCode, InvocationId};
use weir_workflow::Plan;

impl Dispatch {
    /// Runs a workflow that was admitted on this node.
    pub(super) async fn run_workflow(
        self: &Arc<Self>,
        call: &CallCtx,
        workflow: &DeployedWorkflow,
        Admission { placement, steps, permits, queueing }: Admission,
        job: InferenceJob,
    ) -> Result<Completion, Fault> {
        let queue_time = queueing.end(&self.metrics);
        let inputs = self.intermediates.here(job.inputs).await?;
        let wanted = job.wanted.as_deref();
        let steps = self.steps(call, workflow, placement, steps);
        if placement.has_separate_steps {
            return steps.run_apart(workflow, inputs, wanted).await;
        }
        let _running = GaugeGuard::new(&self.metrics.calls.running);
        let started = Instant::now();
        let execution = Some(Execution::alone(&inputs));
        let outputs = steps.run(workflow, inputs, wanted).await;
        permits.ended(outputs.is_ok());
        let outputs = outputs?;
        let run_time = started.elapsed();
        Ok(Completion { outputs, stayed: Vec::new(), queue_time, run_time, execution })
    }

    /// The steps of a placed call.
    fn steps(
        self: &Arc<Self>,
        call: &CallCtx,
        workflow: &DeployedWorkflow,
        placement: LocalPlacement,
        reserved: Arc<[InvocationId]>,
    ) -> Steps {
        Steps {
            dispatch: self.clone(),
            tenant: workflow.id.tenant.clone(),
            placement,
            reserved,
            caller: None,
            request_id: call.request_id.clone(),
            trace: call.trace.clone(),
            deadline: call.deadline,
            priority: call.priority,
            depth: 0,
            models: call.models.clone(),
        }
    }
}

/// The plan of a runnable workflow.
fn plan(workflow: &DeployedWorkflow) -> Result<&Arc<Plan>, Fault> {
    workflow.plan().map_err(|why| unready(workflow, why))
}

pub(super) fn unready(workflow: &DeployedWorkflow, why: &str) -> Fault {
    let text = format!("workflow {}:{} cannot be run: {why}", workflow.id.name, workflow.id.version);
    Fault::new(ErrorCode::Unavailable, text)
}
