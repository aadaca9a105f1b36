//! A workflow that no device has room for as a whole: each of its steps is placed by itself, as if a client had asked for it, on the device where it
//! is estimated to finish first. What only other steps read stays where it was made, until those take it: see `intermediates.rs`;
//! on this node, what only models read stays on the device that gave it, where a model on a sibling of that reads it as well.

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
    /// Run a workflow without a place of its own. `wanted` are its outputs; none for all.
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
            // The node that had what a step has left is lost, and with it what others would read: it is made once more.
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
    /// Have what a step runs placed, and run there.
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
            // A function gives all it has, unless it is told what to keep of it.
            let is_whole = matches!(found, Found::Function(_)) && handed_on.is_empty();
            let wanted = (!is_whole).then_some(outputs);
            let step = StepJob { handed_on, for_models, until: self.deadline };
            let job = Job { inputs, wanted, step: Some(step) };
            let items = job.batch();
            match self.place_alone(found, arrived, job).await {
                Ok(Ran { completion, left, is_elsewhere, .. }) => {
                    // In the statistics of the node that ran it.
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
