//! Running what is asked: here, or on the node of the cluster that it is placed on.

use super::passing::Passed;
use super::remote::Remote;
use super::workflow::batch;
use super::{Account, Admitted, Dispatch, Inference, InferenceTurn, Invocation, WorkflowCall, WorkflowTurn};
use crate::instance::Fault;
use crate::models::RanOn;
use std::sync::Arc;
use weir_inference::{Completion, RunRequest, Tensor};
use weir_types::{ErrorCode, FunctionId, ModelId, WorkflowId};

/// What has become of an inference.
pub(crate) struct Ran {
    pub(crate) completion: Completion,
    pub(crate) is_elsewhere: bool,
    /// Where, if it is a model by itself.
    pub(crate) ran_on: Option<RanOn>,
}

impl Ran {
    pub(crate) fn here(completion: Completion) -> Self {
        Self { completion, is_elsewhere: false, ran_on: None }
    }

    fn elsewhere((completion, ran_on): (Completion, Option<RanOn>)) -> Self {
        Self { completion, is_elsewhere: true, ran_on }
    }
}

impl Dispatch {
    /// Have a function run on the node that it is placed on.
    pub(crate) async fn function_anywhere(
        self: &Arc<Self>,
        invocation: &mut Invocation,
        account: &Arc<Account>,
        inputs: Vec<(String, Tensor)>,
    ) -> Result<Ran, Fault> {
        let deployment = invocation.deployment.clone();
        let FunctionId { tenant, name, version } = &deployment.id;
        let limits = &deployment.manifest.limits;
        let mut remote = None;
        loop {
            match self.admit(invocation).await? {
                Admitted::Here(admission) => {
                    return Ok(Ran::here(self.tensor(invocation, admission, account, inputs).await?));
                }
                Admitted::There(away, held) => {
                    let remote = match &mut remote {
                        Some(remote) => remote,
                        none => none.insert(Remote::new(
                            self,
                            (tenant, name, *version),
                            (invocation.id, invocation.deadline, invocation.priority),
                            (&inputs, None),
                            (deployment.manifest.idempotent, limits.response_body_bytes),
                        )?),
                    };
                    match remote.run(&away, held).await? {
                        Passed::Answered(answer) => return Ok(Ran::elsewhere(answer)),
                        Passed::Here(granted) => invocation.granted = Some(granted),
                        Passed::Again => {}
                    }
                }
            }
        }
    }

    /// The same for a model.
    pub(crate) async fn model_anywhere(
        self: &Arc<Self>,
        inference: &mut Inference,
        request: RunRequest,
    ) -> Result<Ran, Fault> {
        let entry = inference.entry.clone();
        let ModelId { tenant, name, version } = entry.source.id();
        let mut remote = None;
        loop {
            match self.ready(inference, request.batch()).await? {
                InferenceTurn::Here(ready) => {
                    let (completion, ran_on) = self.infer(inference, ready, request).await?;
                    return Ok(Ran { completion, is_elsewhere: false, ran_on: Some(ran_on) });
                }
                InferenceTurn::There(away, placed) => {
                    let remote = match &mut remote {
                        Some(remote) => remote,
                        none => none.insert(Remote::new(
                            self,
                            (tenant, name, *version),
                            (inference.id, inference.deadline, inference.priority),
                            (&request.inputs, request.outputs.as_deref()),
                            // A model keeps nothing from one run to the next.
                            (true, self.answer_bytes_max),
                        )?),
                    };
                    match remote.run(&away, placed).await? {
                        Passed::Answered(answer) => return Ok(Ran::elsewhere(answer)),
                        Passed::Here(granted) => inference.granted = Some(granted),
                        Passed::Again => {}
                    }
                }
            }
        }
    }

    /// The same for a workflow, which is passed on as a whole. One that no device has room for runs here, and each of its steps wherever that is
    /// placed.
    pub(crate) async fn workflow_anywhere(
        self: &Arc<Self>,
        call: &mut WorkflowCall,
        inputs: Vec<(String, Tensor)>,
        wanted: Option<&[String]>,
    ) -> Result<Ran, Fault> {
        let workflow = call.workflow.clone();
        let WorkflowId { tenant, name, version } = &workflow.id;
        let mut remote = None;
        loop {
            let turn = match self.place_workflow(call, batch(&inputs)).await {
                // No device has room for all of it: for each of its steps, some may.
                Err(fault)
                    if fault.code == ErrorCode::NoCapacity && self.catalog.demands(&workflow).len() > 1 =>
                {
                    return Ok(Ran::here(self.run_apart(call, inputs, wanted).await?));
                }
                turn => turn?,
            };
            match turn {
                WorkflowTurn::Here(place) => {
                    return Ok(Ran::here(self.run_workflow(call, place, inputs, wanted).await?));
                }
                WorkflowTurn::There(away, placed) => {
                    let remote = match &mut remote {
                        Some(remote) => remote,
                        none => none.insert(Remote::new(
                            self,
                            (tenant, name, *version),
                            (call.id, call.deadline, call.priority),
                            (&inputs, wanted),
                            (self.catalog.may_run_twice(&workflow), self.answer_bytes_max),
                        )?),
                    };
                    match remote.run(&away, placed).await? {
                        Passed::Answered(answer) => return Ok(Ran::elsewhere(answer)),
                        Passed::Here(granted) => call.granted = Some(granted),
                        Passed::Again => {}
                    }
                }
            }
        }
    }
}
