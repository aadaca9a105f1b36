//! Runs a call on the node that it is placed on.

use super::admission::Admission;
use super::forwarder::{ForwardRequest, Forwarder};
use super::job::InferenceJob;
use super::remote::{EncodedInference, Read};
use super::{CallCtx, Dispatch, ModelTarget, Target};
use crate::intermediates::{Handle, stay};
use axum::response::Response;
use std::sync::Arc;
use weir_call::Fault;
use weir_cluster::Placement;
use weir_control::models::RanOn;
use weir_inference::{Completion, RunRequest};

/// The result of a run.
pub struct RunResult {
    /// The outputs, and the times of the run.
    pub completion: Completion,
    /// Handles of the outputs that stayed on the device that computed them or on the node that ran
    /// it.
    pub left: Vec<(String, Handle)>,
    /// Whether another node ran the call.
    pub is_elsewhere: bool,
    /// The device, for a stand-alone inference of a model.
    pub ran_on: Option<RanOn>,
}

impl RunResult {
    /// The result of a run on this node, with all outputs in host memory.
    pub fn here(completion: Completion) -> Self {
        Self { completion, left: Vec::new(), is_elsewhere: false, ran_on: None }
    }
}

impl Dispatch {
    /// Runs `target` on the node that the call is placed on. A workflow is forwarded as a whole; if
    /// no device has room for it, it runs here, and each of its steps is placed individually.
    pub async fn run(
        self: &Arc<Self>,
        call: &mut CallCtx,
        target: &Target,
        mut job: InferenceJob,
    ) -> Result<RunResult, Fault> {
        let batch = job.batch();
        let request = ForwardRequest::Inference { job: &mut job, encoded: None };
        match self.route(call, target, batch, request).await? {
            Placement::Local(admission) => self.run_here(call, target, admission, job).await,
            Placement::Remote(response) => self.read_remote(target, response).await,
        }
    }

    /// Admits a call on this node, or forwards it and returns the response of the other node.
    pub(super) async fn route(
        &self,
        call: &mut CallCtx,
        target: &Target,
        batch: u32,
        request: ForwardRequest<'_>,
    ) -> Result<Placement<Admission, Response>, Fault> {
        let mut forwarder = Forwarder::new(self, request);
        loop {
            match self.admit(call, target, batch).await? {
                Placement::Local(admission) => return Ok(Placement::Local(admission)),
                Placement::Remote(admission) => {
                    // Boxed, so that calls on this node move smaller futures.
                    let forwarding = Box::pin(forwarder.forward(call, target, admission));
                    if let Some(response) = forwarding.await? {
                        return Ok(Placement::Remote(response));
                    }
                }
            }
        }
    }

    async fn run_here(
        self: &Arc<Self>,
        call: &CallCtx,
        target: &Target,
        admission: Admission,
        job: InferenceJob,
    ) -> Result<RunResult, Fault> {
        match target {
            // Returns all outputs, also if only some are requested.
            Target::Function(function) => {
                self.copy_tensors(call, function, &job);
                let ready = self.ready_function(call, function, admission).await?;
                let inputs = self.intermediates.here(job.inputs).await?;
                Ok(RunResult::here(self.tensor(call, function, ready, inputs).await?))
            }
            Target::Model(model) => {
                let copy = self.copy_inference(call, model, &job);
                let ran = self.run_model(call, model, admission, job).await;
                if let Some(copy) = copy {
                    copy.begin(ran.as_ref());
                }
                ran
            }
            Target::Workflow(workflow) => {
                let completion = self.run_workflow(call, workflow, admission, job).await?;
                Ok(RunResult::here(completion))
            }
        }
    }

    async fn run_model(
        &self,
        call: &CallCtx,
        model: &ModelTarget,
        admission: Admission,
        job: InferenceJob,
    ) -> Result<RunResult, Fault> {
        let ready = self.ready_model(call, &model.entry, admission).await?;
        let InferenceJob { inputs, wanted: outputs, step } = job;
        let mut request = RunRequest {
            outputs,
            may_stay: step.map(|step| step.for_models).unwrap_or_default(),
            deadline: Some(call.deadline),
            priority: call.priority,
            meter: model.meter.clone(),
            ..RunRequest::default()
        };
        request.give(self.intermediates.on_node(inputs).await?);
        let (mut completion, ran_on) = self.infer(call, ready, request).await?;
        let left = stay(std::mem::take(&mut completion.stayed)).collect();
        Ok(RunResult { left, ran_on: Some(ran_on), ..RunResult::here(completion) })
    }

    /// Decodes the response of the node that ran the call.
    async fn read_remote(&self, target: &Target, response: Response) -> Result<RunResult, Fault> {
        let answer_bytes_max = match target {
            Target::Function(function) => function.deployment().manifest.limits.response_body_bytes,
            Target::Model(_) | Target::Workflow(_) => self.answer_bytes_max,
        };
        let read = EncodedInference::read(&self.intermediates, target.tenant(), response, answer_bytes_max);
        let Read { completion, left, ran_on } = read.await?;
        let bytes = completion.outputs.iter().map(|(_, tensor)| tensor.data().len() as u64).sum();
        self.metrics.intermediates.received_bytes.inc_by(bytes);
        Ok(RunResult { completion, left, is_elsewhere: true, ran_on })
    }
}
