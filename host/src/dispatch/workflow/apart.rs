//! A workflow that no device has room for as a whole: each of its steps is placed by itself, as if a client had asked for it, on the device where it
//! is estimated to finish first. What steps give each other passes through the node that the workflow was asked of.

use super::super::{Dispatch, Inference, Invocation, Ran, Spot};
use super::WorkflowCall;
use super::steps::{Steps, Tensors, batch};
use crate::gateway::next_id;
use crate::instance::Fault;
use crate::telemetry::Times;
use crate::workflows::Found;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_inference::{Completion, Execution, RunRequest, Tensor};

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
        let outputs = steps.run(&call.workflow, inputs, wanted).await?;
        let none = Duration::ZERO;
        Ok(Completion { outputs, queue_time: none, run_time: started.elapsed(), execution })
    }
}

impl Steps {
    /// Have what a step runs placed, and run there.
    pub(super) fn run_alone(
        &self,
        found: Found,
        inputs: Tensors,
        outputs: Vec<String>,
    ) -> futures::future::BoxFuture<'_, Result<Tensors, Fault>> {
        let (arrived, items) = (Instant::now(), batch(&inputs));
        Box::pin(async move {
            let served = match &found {
                Found::Model(entry) => entry.served.clone(),
                Found::Function(deployment) => self.dispatch.served(deployment),
                Found::Workflow(workflow) => workflow.served.clone(),
            };
            let serving = served.begin(arrived);
            let ran = match found {
                Found::Model(entry) => {
                    let (deadline, priority) = (Some(self.deadline), self.priority);
                    let meter = self.meter(&entry);
                    let request = RunRequest { inputs, outputs: Some(outputs), deadline, priority, meter };
                    let mut inference = Inference {
                        id: next_id(),
                        entry,
                        trace: self.trace.clone(),
                        arrived,
                        deadline: self.deadline,
                        priority,
                        granted: None,
                    };
                    self.dispatch.model_anywhere(&mut inference, request).await
                }
                Found::Function(deployment) => {
                    let mut invocation = Invocation { id: next_id(), ..self.invocation(deployment, arrived) };
                    let account = self.dispatch.account(&invocation);
                    let ran = self.dispatch.function_anywhere(&mut invocation, &account, inputs).await;
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
                        trace: self.trace.clone(),
                        arrived,
                        deadline: self.deadline,
                        priority: self.priority,
                        granted: None,
                    };
                    self.dispatch.workflow_anywhere(&mut call, inputs, Some(&outputs)).await
                }
            };
            match ran {
                Ok(Ran { completion, is_elsewhere, .. }) => {
                    // In the statistics of the node that ran it.
                    if is_elsewhere {
                        serving.passed_on();
                    } else {
                        serving.done(Times::of(items, &completion));
                    }
                    Ok(completion.outputs)
                }
                Err(fault) => {
                    serving.failed(fault.code);
                    Err(fault)
                }
            }
        })
    }
}
