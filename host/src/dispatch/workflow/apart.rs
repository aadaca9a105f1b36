//! A workflow for which no device has enough room as a whole. Each step is placed individually,
//! like a client's request, on the device where it is estimated to finish first. Outputs that only
//! other steps read stay on the node that computed them until those steps take them: see
//! `intermediates.rs`. On this node, outputs that only models read stay on the device that computed
//! them, if a model on a sibling device reads them as well.

use super::super::job::{Job, StepJob};
use super::super::{Dispatch, Inference, Invocation, Ran, Spot};
use super::WorkflowCall;
use super::steps::{Handles, Steps, handles};
use crate::gateway::next_id;
use crate::instance::Fault;
use crate::intermediates::Handle;
use crate::objective::Objective;
use crate::telemetry::Times;
use crate::workflows::Found;
use futures::future::BoxFuture;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_inference::{Completion, Execution, Tensor};
use weir_types::ErrorCode;
use weir_workflow::{Begin, Pinned};

impl Dispatch {
    /// Runs a workflow that is not placed as a whole. `wanted` names the outputs to return; `None`:
    /// all.
    pub(crate) async fn run_apart(
        self: &Arc<Self>,
        call: &WorkflowCall,
        inputs: Vec<(String, Tensor)>,
        wanted: Option<&[String]>,
    ) -> Result<Completion, Fault> {
        let started = Instant::now();
        let steps = self.steps(call, Spot { invocation: call.id, device: None }, true);
        let execution = Some(Execution::alone(&inputs));
        let outputs = match steps.run(&call.workflow, inputs.clone(), wanted).await {
            // A node was lost with an intermediate that other steps read: the workflow runs once
            // more.
            Err(fault)
                if fault.code == ErrorCode::IntermediateLost
                    && self.catalog.may_run_twice(&call.workflow) =>
            {
                tracing::warn!(why = fault.text, "a workflow is run once more");
                self.metrics.placed_again.inc();
                steps.run(&call.workflow, inputs, wanted).await?
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
}

impl Steps {
    /// Places the target of a step, and runs it there.
    pub(super) fn run_alone<'a>(
        &'a self,
        pinned: &'a Pinned,
        Begin { inputs, outputs, handed_on, for_models, .. }: Begin<Handle>,
    ) -> BoxFuture<'a, Result<Handles, Fault>> {
        let arrived = Instant::now();
        Box::pin(async move {
            let found = self.found(pinned)?;
            let served = match &found {
                Found::Model(entry) => entry.served.clone(),
                Found::Function(deployment) => self.dispatch.served(deployment),
                Found::Workflow(workflow) => workflow.served.clone(),
            };
            let serving = served.begin(arrived);
            // A function returns all outputs unless some have to stay.
            let is_whole = matches!(found, Found::Function(_)) && handed_on.is_empty();
            let wanted = (!is_whole).then_some(outputs);
            let step = StepJob { handed_on, for_models, until: self.deadline };
            let job = Job { inputs, wanted, step: Some(step) };
            let items = job.batch();
            match self.place_alone(found, arrived, job).await {
                Ok(Ran { completion, left, is_elsewhere, .. }) => {
                    // The node that ran the step counts it in its statistics.
                    if is_elsewhere {
                        serving.passed_on();
                    } else {
                        serving.done(Times::of(items, &completion));
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

    async fn place_alone(&self, found: Found, arrived: Instant, job: Job) -> Result<Ran, Fault> {
        let inputs = job.inputs_on(self.dispatch.placements.node());
        match found {
            Found::Model(entry) => {
                let meter = self.meter(&entry);
                let mut inference = Inference {
                    id: next_id(),
                    entry,
                    objective: Objective::default(),
                    trace: self.trace.clone(),
                    arrived,
                    deadline: self.deadline,
                    priority: self.priority,
                    inputs,
                    granted: None,
                };
                self.dispatch.model_anywhere(&mut inference, meter, job).await
            }
            Found::Function(deployment) => {
                let mut invocation =
                    Invocation { id: next_id(), inputs, ..self.invocation(deployment, arrived) };
                let account = self.dispatch.account(&invocation);
                let ran = self.dispatch.function_anywhere(&mut invocation, &account, job).await;
                match &ran {
                    Ok(Ran { is_elsewhere: true, .. }) => account.pass_on(),
                    Ok(_) => {}
                    Err(fault) => account.close(fault.code),
                }
                ran
            }
            Found::Workflow(workflow) => {
                let mut call = WorkflowCall {
                    id: next_id(),
                    request_id: self.request_id.clone(),
                    workflow,
                    objective: Objective::default(),
                    trace: self.trace.clone(),
                    arrived,
                    deadline: self.deadline,
                    priority: self.priority,
                    inputs,
                    granted: None,
                };
                self.dispatch.workflow_anywhere(&mut call, job).await
            }
        }
    }
}
