//! Running what is asked: here, or on the node of the cluster that it is placed on.

use super::super::super::cached::Verdict;
use super::super::super::error::ApiError;
use super::super::super::passing::Passed;
use super::super::remote::Remote;
use super::batch;
use crate::dispatch::{Account, Admitted, Inference, InferenceTurn, Invocation, WorkflowCall, WorkflowTurn};
use crate::models::RanOn;
use crate::node::NodeState;
use std::sync::Arc;
use std::time::Duration;
use weir_inference::{Completion, RunRequest, Tensor};
use weir_types::{ErrorCode, FunctionId, ModelId, WorkflowId};

/// What has become of an inference.
pub(super) struct Ran {
    pub(super) completion: Completion,
    pub(super) is_elsewhere: bool,
    /// Where, if it is a model by itself.
    pub(super) ran_on: Option<RanOn>,
    /// What the response cache had to do with it, and how long looking there took; none where it was not asked.
    pub(super) cached: Option<(Verdict, Duration)>,
}

impl Ran {
    pub(super) fn here(completion: Completion) -> Self {
        Self { completion, is_elsewhere: false, ran_on: None, cached: None }
    }

    fn elsewhere((completion, ran_on): (Completion, Option<RanOn>)) -> Self {
        Self { completion, is_elsewhere: true, ran_on, cached: None }
    }

    pub(super) fn pick(mut self, wanted: &[String]) -> Result<Self, ApiError> {
        self.completion.outputs = pick(self.completion.outputs, wanted)?;
        Ok(self)
    }
}

/// Have a function run on the node that it is placed on.
pub(super) async fn function(
    node: &NodeState,
    invocation: &mut Invocation,
    account: &Arc<Account>,
    inputs: Vec<(String, Tensor)>,
) -> Result<Ran, ApiError> {
    let deployment = invocation.deployment.clone();
    let FunctionId { tenant, name, version } = &deployment.id;
    let limits = &deployment.manifest.limits;
    let mut remote = None;
    loop {
        match node.dispatch.admit(invocation).await? {
            Admitted::Here(admission) => {
                return Ok(Ran::here(node.dispatch.tensor(invocation, admission, account, inputs).await?));
            }
            Admitted::There(away, held) => {
                let remote = match &mut remote {
                    Some(remote) => remote,
                    none => none.insert(Remote::new(
                        node,
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
pub(super) async fn model(
    node: &NodeState,
    inference: &mut Inference,
    request: RunRequest,
) -> Result<Ran, ApiError> {
    let entry = inference.entry.clone();
    let ModelId { tenant, name, version } = entry.source.id();
    let mut remote = None;
    loop {
        match node.dispatch.ready(inference, request.batch()).await? {
            InferenceTurn::Here(ready) => {
                let (completion, ran_on) = node.dispatch.infer(inference, ready, request).await?;
                return Ok(Ran { ran_on: Some(ran_on), ..Ran::here(completion) });
            }
            InferenceTurn::There(away, placed) => {
                let remote = match &mut remote {
                    Some(remote) => remote,
                    none => none.insert(Remote::new(
                        node,
                        (tenant, name, *version),
                        (inference.id, inference.deadline, inference.priority),
                        (&request.inputs, request.outputs.as_deref()),
                        // A model keeps nothing from one run to the next.
                        (true, node.config.infer_body_bytes_max),
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

/// The same for a workflow, which is passed on as a whole.
pub(super) async fn workflow(
    node: &NodeState,
    call: &mut WorkflowCall,
    inputs: Vec<(String, Tensor)>,
    wanted: Option<&[String]>,
) -> Result<Ran, ApiError> {
    let workflow = call.workflow.clone();
    let WorkflowId { tenant, name, version } = &workflow.id;
    let mut remote = None;
    loop {
        match node.dispatch.place_workflow(call, batch(&inputs)).await? {
            WorkflowTurn::Here(place) => {
                return Ok(Ran::here(node.dispatch.run_workflow(call, place, inputs, wanted).await?));
            }
            WorkflowTurn::There(away, placed) => {
                let remote = match &mut remote {
                    Some(remote) => remote,
                    none => none.insert(Remote::new(
                        node,
                        (tenant, name, *version),
                        (call.id, call.deadline, call.priority),
                        (&inputs, wanted),
                        (node.dispatch.catalog.may_run_twice(&workflow), node.config.infer_body_bytes_max),
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

/// Of the outputs of a function, which gives all it has, those that are wanted.
fn pick(mut outputs: Vec<(String, Tensor)>, wanted: &[String]) -> Result<Vec<(String, Tensor)>, ApiError> {
    let take = |name: &String| {
        let place = outputs.iter().position(|(given, _)| given == name);
        place.map(|place| outputs.swap_remove(place)).ok_or_else(|| {
            let text = format!("the function gave no output {name:?}");
            ApiError::new(ErrorCode::InvalidRequest, text)
        })
    };
    wanted.iter().map(take).collect()
}
