//! A workflow that is not placed as a whole. Each step is placed individually, like a client's
//! request: at its reserved place if the workflow has objectives, or else on the device where it is
//! estimated to finish first. Outputs that only other steps read stay on the node that computed them
//! until those steps take them: see `intermediates.rs`. On this node, outputs that only models read
//! stay on the device that computed them, if a model on a sibling device reads them as well.

use super::super::job::{InferenceJob, StepJob};
use super::super::{CallCtx, Dispatch, ModelTarget, RunResult, Target};
use super::steps::{Handles, NamedTensors, Steps, handles};
use crate::intermediates::Handle;
use futures::future::BoxFuture;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_call::Fault;
use weir_call::next_invocation_id;
use weir_control::workflows::{DeployedWorkflow, StepTarget};
use weir_inference::{Completion, Execution};
use weir_telemetry::Times;
use weir_types::{ErrorCode, InvocationId};
use weir_workflow::{Pinned, ReadyStep};

impl Steps {
    /// Runs a workflow that is not placed as a whole. `wanted` names the outputs to return; `None`:
    /// all.
    pub(super) async fn run_apart(
        &self,
        workflow: &DeployedWorkflow,
        inputs: NamedTensors,
        wanted: Option<&[String]>,
    ) -> Result<Completion, Fault> {
        let Dispatch { catalog, metrics, .. } = &*self.dispatch;
        let started = Instant::now();
        let execution = Some(Execution::alone(&inputs));
        let outputs = match self.run(workflow, inputs.clone(), wanted).await {
            // A node was lost with an intermediate that other steps read: the workflow runs once
            // more.
            Err(fault) if fault.code == ErrorCode::IntermediateLost && catalog.may_run_twice(workflow) => {
                tracing::warn!(why = fault.text, "rerunning a workflow");
                metrics.calls.rescheduled.inc();
                // The ids of the first run may still be in use.
                let again = Self { reserved: Arc::default(), ..self.clone() };
                again.run(workflow, inputs, wanted).await?
            }
            outputs => outputs?,
        };
        let none = Duration::ZERO;
        Ok(Completion {
            outputs,
            stayed: Vec::new(),
            queue_time: none,
            run_time: started.elapsed(),
            execution,
        })
    }

    /// Places the target of a step, and runs it there.
    pub(super) fn run_alone<'a>(
        &'a self,
        pinned: &'a Pinned,
        ReadyStep { step: at, inputs, outputs, handed_on, for_models }: ReadyStep<Handle>,
    ) -> BoxFuture<'a, Result<Handles, Fault>> {
        let arrived = Instant::now();
        Box::pin(async move {
            let found = self.found(pinned)?;
            let served = match &found {
                StepTarget::Model(entry) => entry.served.clone(),
                StepTarget::Function(deployment) => self.dispatch.served(deployment),
                StepTarget::Workflow(workflow) => workflow.served.clone(),
            };
            let serving = served.begin(arrived);
            // A function returns all outputs unless some have to stay.
            let is_whole = matches!(found, StepTarget::Function(_)) && handed_on.is_empty();
            let wanted = (!is_whole).then_some(outputs);
            let step = StepJob { handed_on, for_models, until: self.deadline };
            let job = InferenceJob { inputs, wanted, step: Some(step) };
            let items = job.batch();
            let id = self.reserved.get(at).copied().unwrap_or_else(next_invocation_id);
            match self.place_alone(id, found, arrived, job).await {
                Ok(RunResult { completion, left, is_elsewhere, .. }) => {
                    // The node that ran the step counts it in its statistics.
                    if is_elsewhere {
                        serving.forwarded();
                    } else {
                        serving.done(Times::from_completion(items, &completion));
                    }
                    let mut outputs = handles(completion.outputs);
                    outputs.extend(left);
                    Ok(outputs)
                }
                Err(fault) => {
                    serving.failed(fault.code);
                    Err(fault)
                }
            }
        })
    }

    async fn place_alone(
        &self,
        id: InvocationId,
        found: StepTarget,
        arrived: Instant,
        job: InferenceJob,
    ) -> Result<RunResult, Fault> {
        let mut call =
            CallCtx { id, inputs: job.inputs_on(self.dispatch.placements.node()), ..self.call(arrived) };
        let target = match found {
            StepTarget::Model(entry) => {
                let meter = self.meter(&entry);
                Target::Model(ModelTarget::new(entry, meter))
            }
            StepTarget::Function(deployment) => {
                call.shorten_deadline(&deployment);
                Target::Function(self.dispatch.function_target(&call, deployment))
            }
            StepTarget::Workflow(workflow) => Target::Workflow(workflow),
        };
        let ran = self.dispatch.run(&mut call, &target, job).await;
        if let Some(account) = target.account() {
            match &ran {
                Ok(RunResult { is_elsewhere: true, .. }) => account.forwarded(),
                Ok(_) => {}
                Err(fault) => account.close(fault.code),
            }
        }
        ran
    }
}
