//! Runs a call locally or on the node that it is placed on.

use super::job::Job;
use super::passing::Passed;
use super::placement::Placed;
use super::remote::{About, Remote};
use super::{
    Account, Admission, Admitted, Away, Dispatch, HeldAway, Inference, InferenceTurn, Invocation, Ready,
    WorkflowCall, WorkflowPlace, WorkflowTurn,
};
use crate::cluster::wire::Granted;
use crate::instance::Fault;
use crate::intermediates::{Handle, stay};
use crate::models::RanOn;
use std::sync::Arc;
use weir_inference::{Completion, Meter, RunRequest};
use weir_types::{ErrorCode, FunctionId, ModelId, WorkflowId};

/// The result of a run.
pub(crate) struct Ran {
    pub(crate) completion: Completion,
    /// Handles of the outputs that stayed on the device that computed them or on the node that ran
    /// it.
    pub(crate) left: Vec<(String, Handle)>,
    pub(crate) is_elsewhere: bool,
    /// The device, for a stand-alone inference of a model.
    pub(crate) ran_on: Option<RanOn>,
}

impl Ran {
    pub(crate) fn here(completion: Completion) -> Self {
        Self { completion, left: Vec::new(), is_elsewhere: false, ran_on: None }
    }
}

/// Where a call runs: here, with the resources for that, or elsewhere, with the permits held here
/// meanwhile.
enum Turn<Place, Held> {
    Here(Place),
    There(Away, Held),
}

/// A call that can run here or on another node.
trait Asked {
    /// The resources to run the call here.
    type Place: Send;
    /// The permits held here while the call runs elsewhere.
    type Held: Send + 'static;

    /// The target and the terms of the call, for another node.
    fn about(&self, dispatch: &Dispatch) -> About;

    /// Sets the grant with which the call runs here.
    fn grant(&mut self, granted: Granted);

    /// Requests a placement.
    fn place(
        &self,
        dispatch: &Dispatch,
        job: &Job,
    ) -> impl Future<Output = Result<Turn<Self::Place, Self::Held>, Fault>> + Send;

    /// Runs the call here.
    fn run(
        &self,
        dispatch: &Arc<Dispatch>,
        place: Self::Place,
        job: Job,
    ) -> impl Future<Output = Result<Ran, Fault>> + Send;
}

impl Dispatch {
    /// Runs a function on the node that it is placed on.
    pub(crate) async fn function_anywhere(
        self: &Arc<Self>,
        invocation: &mut Invocation,
        account: &Arc<Account>,
        job: Job,
    ) -> Result<Ran, Fault> {
        self.anywhere(&mut (invocation, account), job).await
    }

    /// Like [`function_anywhere`](Self::function_anywhere), for a model. `meter` counts its device
    /// time;
    /// `None`: the model's own meter.
    pub(crate) async fn model_anywhere(
        self: &Arc<Self>,
        inference: &mut Inference,
        meter: Option<Meter>,
        job: Job,
    ) -> Result<Ran, Fault> {
        self.anywhere(&mut (inference, meter), job).await
    }

    /// Like [`function_anywhere`](Self::function_anywhere), for a workflow, which is forwarded as a
    /// whole. If no device has room for it, it runs here, and each of its steps is placed
    /// individually.
    pub(crate) async fn workflow_anywhere(
        self: &Arc<Self>,
        call: &mut WorkflowCall,
        job: Job,
    ) -> Result<Ran, Fault> {
        self.anywhere(call, job).await
    }

    async fn anywhere<A: Asked>(self: &Arc<Self>, asked: &mut A, mut job: Job) -> Result<Ran, Fault> {
        let mut remote = None;
        loop {
            match asked.place(self, &job).await? {
                Turn::Here(place) => return asked.run(self, place, job).await,
                Turn::There(away, held) => {
                    let remote = match &mut remote {
                        Some(remote) => remote,
                        none => {
                            job.inputs = self.intermediates.off_devices(job.inputs).await?;
                            none.insert(Remote::new(self, asked.about(self), &job)?)
                        }
                    };
                    match remote.run(&away, held).await? {
                        Passed::Answered(ran) => return Ok(ran),
                        Passed::Here(granted) => asked.grant(granted),
                        Passed::Again => {}
                    }
                }
            }
        }
    }
}

impl Asked for (&mut Invocation, &Arc<Account>) {
    type Place = Admission;
    type Held = HeldAway;

    fn about(&self, _: &Dispatch) -> About {
        let Invocation { id, deadline, priority, ref deployment, .. } = *self.0;
        let FunctionId { tenant, name, version } = deployment.id.clone();
        About {
            tenant,
            name,
            version,
            id,
            deadline,
            priority,
            may_run_twice: deployment.manifest.idempotent,
            answer_bytes_max: deployment.manifest.limits.response_body_bytes,
        }
    }

    fn grant(&mut self, granted: Granted) {
        self.0.granted = Some(granted);
    }

    async fn place(&self, dispatch: &Dispatch, _: &Job) -> Result<Turn<Admission, HeldAway>, Fault> {
        Ok(match dispatch.admit(self.0).await? {
            Admitted::Here(admission) => Turn::Here(admission),
            Admitted::There(away, held) => Turn::There(away, held),
        })
    }

    /// Returns all outputs, also if only some are requested.
    async fn run(&self, dispatch: &Arc<Dispatch>, admission: Admission, job: Job) -> Result<Ran, Fault> {
        let inputs = dispatch.intermediates.here(job.inputs).await?;
        Ok(Ran::here(dispatch.tensor(self.0, admission, self.1, inputs).await?))
    }
}

impl Asked for (&mut Inference, Option<Meter>) {
    type Place = Ready;
    type Held = Placed;

    fn about(&self, dispatch: &Dispatch) -> About {
        let Inference { id, deadline, priority, ref entry, .. } = *self.0;
        let ModelId { tenant, name, version } = entry.source.id().clone();
        // A model has no state between runs.
        let may_run_twice = true;
        let answer_bytes_max = dispatch.answer_bytes_max;
        About { tenant, name, version, id, deadline, priority, may_run_twice, answer_bytes_max }
    }

    fn grant(&mut self, granted: Granted) {
        self.0.granted = Some(granted);
    }

    async fn place(&self, dispatch: &Dispatch, job: &Job) -> Result<Turn<Ready, Placed>, Fault> {
        Ok(match dispatch.ready(self.0, job.batch()).await? {
            InferenceTurn::Here(ready) => Turn::Here(ready),
            InferenceTurn::There(away, placed) => Turn::There(away, placed),
        })
    }

    async fn run(&self, dispatch: &Arc<Dispatch>, ready: Ready, job: Job) -> Result<Ran, Fault> {
        let (inference, meter) = (&*self.0, self.1.clone());
        let Job { inputs, wanted: outputs, step } = job;
        let mut request = RunRequest {
            outputs,
            may_stay: step.map(|step| step.for_models).unwrap_or_default(),
            deadline: Some(inference.deadline),
            priority: inference.priority,
            meter,
            ..RunRequest::default()
        };
        request.give(dispatch.intermediates.on_node(inputs).await?);
        let (mut completion, ran_on) = dispatch.infer(inference, ready, request).await?;
        let left = stay(std::mem::take(&mut completion.stayed)).collect();
        Ok(Ran { left, ran_on: Some(ran_on), ..Ran::here(completion) })
    }
}

/// The placement of a workflow on this node.
enum Stage {
    Unit(WorkflowPlace),
    /// Not placed as a whole: each step is placed individually.
    Apart,
}

impl Asked for WorkflowCall {
    type Place = Stage;
    type Held = Placed;

    fn about(&self, dispatch: &Dispatch) -> About {
        let Self { id, deadline, priority, ref workflow, .. } = *self;
        let WorkflowId { tenant, name, version } = workflow.id.clone();
        let may_run_twice = dispatch.catalog.may_run_twice(workflow);
        let answer_bytes_max = dispatch.answer_bytes_max;
        About { tenant, name, version, id, deadline, priority, may_run_twice, answer_bytes_max }
    }

    fn grant(&mut self, granted: Granted) {
        self.granted = Some(granted);
    }

    async fn place(&self, dispatch: &Dispatch, job: &Job) -> Result<Turn<Stage, Placed>, Fault> {
        Ok(match dispatch.place_workflow(self, job.batch()).await {
            Ok(WorkflowTurn::Here(place)) => Turn::Here(Stage::Unit(place)),
            Ok(WorkflowTurn::There(away, placed)) => Turn::There(away, placed),
            // No device has room for the whole workflow, but the steps may fit individually.
            Err(fault)
                if fault.code == ErrorCode::NoCapacity
                    && dispatch.catalog.demands(&self.workflow).len() > 1 =>
            {
                Turn::Here(Stage::Apart)
            }
            Err(fault) => return Err(fault),
        })
    }

    async fn run(&self, dispatch: &Arc<Dispatch>, stage: Stage, job: Job) -> Result<Ran, Fault> {
        let inputs = dispatch.intermediates.here(job.inputs).await?;
        let wanted = job.wanted.as_deref();
        Ok(Ran::here(match stage {
            Stage::Unit(place) => dispatch.run_workflow(self, place, inputs, wanted).await?,
            Stage::Apart => dispatch.run_apart(self, inputs, wanted).await?,
        }))
    }
}
