//! The steps of a run. Each step starts as soon as its inputs are there, on the node that it is
//! placed on.

use super::super::{CallCtx, Dispatch};
use super::builtin;
use super::plan;
use crate::intermediates::Handle;
use futures::StreamExt;
use futures::future::{BoxFuture, FutureExt};
use futures::stream::FuturesUnordered;
use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Instant;
use weir_call::Fault;
use weir_call::Objective;
use weir_call::until;
use weir_cluster::LocalPlacement;
use weir_control::models::{ModelChoices, ModelPin};
use weir_control::registry::DeployedFunction;
use weir_control::workflows::{DeployedWorkflow, Hedge, StepTarget};
use weir_inference::{Execution, Tensor};
use weir_telemetry::{AttributeValue, Span, SpanKind, Times, Trace};
use weir_types::{ErrorCode, InvocationId, TenantId};
use weir_workflow::{Pinned, Plan, ReadyStep, Run, RunError, StepAction, TargetKind};

/// The nesting limit of calls of functions and workflows.
const CALLS_DEPTH_MAX: u32 = 8;

pub(super) type NamedTensors = Vec<(String, Tensor)>;
pub(super) type Handles = Vec<(String, Handle)>;

/// The context that all steps of a run share. Cheap to clone.
#[derive(Clone)]
pub struct Steps {
    pub(crate) dispatch: Arc<Dispatch>,
    pub(crate) tenant: TenantId,
    /// The placement of the run.
    pub(crate) placement: LocalPlacement,
    /// The ids with which separate steps arrive, by the index of the step. Empty for steps without
    /// reservations.
    pub(crate) reserved: Arc<[InvocationId]>,
    /// The calling function, to which device usage is attributed; `None` for a client's request.
    pub(crate) caller: Option<Arc<DeployedFunction>>,
    pub(crate) request_id: Arc<str>,
    pub(crate) trace: Trace,
    pub(crate) deadline: Instant,
    pub(crate) priority: u32,
    /// The nesting depth in calls of functions and workflows: 0 for a client's request.
    pub(crate) depth: u32,
    /// The versions of models that functions among the steps use; `None`: the active versions.
    pub(crate) models: Option<Arc<ModelChoices>>,
}

impl Steps {
    /// Runs `workflow` to its end. `wanted` names the outputs to return; `None`: all.
    pub async fn run(
        &self,
        workflow: &DeployedWorkflow,
        inputs: NamedTensors,
        wanted: Option<&[String]>,
    ) -> Result<NamedTensors, Fault> {
        if self.depth > CALLS_DEPTH_MAX {
            let text = format!("functions and workflows call each other more than {CALLS_DEPTH_MAX} deep");
            return Err(Fault::new(ErrorCode::InvalidRequest, text));
        }
        let plan = plan(workflow)?;
        let begun = Run::new(plan.clone(), handles(inputs), wanted, draw);
        let mut run = begun.map_err(|error| Fault::new(ErrorCode::InvalidRequest, error.to_string()))?;
        // Models that are certain to run are loaded while the first steps run. Dropped with the
        // run.
        let is_sure = |step: &usize| !self.placement.has_separate_steps && run.is_sure(*step);
        let sure: Vec<_> = (0..plan.steps().len()).filter(is_sure).collect();
        let mut loading = std::pin::pin!(self.load_ahead(plan, &sure));
        let mut under_way = FuturesUnordered::new();
        let mut names: Vec<usize> = Vec::new();
        let mut released = BTreeSet::new();
        loop {
            self.release_excluded(&run, &mut released);
            while let Some(begin) = run.next_step() {
                names.push(begin.step);
                // Individually placed steps already run where they finish first, so they are not
                // hedged.
                let hedge =
                    workflow.hedge(plan, begin.step).filter(|_| !self.placement.has_separate_steps).cloned();
                under_way.push(self.step(plan, begin, hedge));
            }
            if under_way.is_empty() {
                return self.dispatch.intermediates.here(run.into_outputs()).await;
            }
            let ended = async {
                tokio::select! {
                    biased;
                    ended = under_way.next() => ended,
                    () = &mut loading => None,
                }
            };
            let Some(ended) = until(self.deadline, ended).await else {
                return Err(late(plan, &names));
            };
            let Some((step, outputs)) = ended else { continue };
            names.retain(|begun| *begun != step);
            let outputs = outputs.map_err(|fault| named(plan, step, fault))?;
            run.finished(step, outputs).map_err(|error| output_mismatch_fault(plan, step, &error))?;
        }
    }

    /// Gives up the reservations of steps that will not run.
    fn release_excluded(&self, run: &Run<Handle>, released: &mut BTreeSet<usize>) {
        if !self.placement.has_separate_steps {
            return;
        }
        for (step, id) in self.reserved.iter().enumerate().filter(|(step, _)| run.is_excluded(*step)) {
            if released.insert(step) {
                self.dispatch.placements.release_step(*id);
            }
        }
    }

    /// Runs one step. The future owns its inputs and drops them when it ends.
    fn step(
        &self,
        plan: &Arc<Plan>,
        begin: ReadyStep<Handle>,
        hedge: Option<Arc<Hedge>>,
    ) -> BoxFuture<'static, (usize, Result<Handles, Fault>)> {
        let mut steps = self.clone();
        let plan = plan.clone();
        let mut span = self.step_span(&plan, begin.step);
        async move {
            steps.trace = span.trace();
            let step = begin.step;
            let given = match plan.steps().get(step).map(|step| &step.action) {
                Some(StepAction::Run(Some(pinned))) if steps.placement.has_separate_steps => {
                    steps.run_alone(pinned, begin).await
                }
                Some(action) => steps.run_here(action, hedge, begin).await,
                None => Err(unknown()),
            };
            if let Err(fault) = &given {
                span.failed(fault.code);
            }
            (step, given)
        }
        .boxed()
    }

    /// Starts the span of a step.
    fn step_span(&self, plan: &Plan, step: usize) -> Span {
        let step = plan.steps().get(step);
        let name = || format!("step {}", step.map_or("", |step| &step.name)).into();
        let mut span = self.trace.child(SpanKind::Internal, name);
        if let Some(StepAction::Run(Some(Pinned { kind, name, version, .. }))) = step.map(|step| &step.action)
        {
            let key = match kind {
                TargetKind::Model => "weir.model",
                TargetKind::Function => "weir.function",
                TargetKind::Workflow => "weir.workflow",
            };
            span.set(key, || AttributeValue::Name(name.clone()));
            span.set("weir.version", || AttributeValue::Int(version.0.into()));
        }
        span
    }

    /// Runs a step on the node of the run.
    async fn run_here(
        &self,
        action: &StepAction,
        hedge: Option<Arc<Hedge>>,
        ReadyStep { inputs, outputs, for_models, .. }: ReadyStep<Handle>,
    ) -> Result<Handles, Fault> {
        let Dispatch { arena, turns, intermediates, .. } = &*self.dispatch;
        // A hedged step is excluded: its second copy may run on another device.
        if let (StepAction::Run(Some(pinned)), None) = (action, &hedge)
            && let StepTarget::Model(entry) = self.found(pinned)?
        {
            return self.model_placed(&entry, inputs, outputs, for_models).await;
        }
        let inputs = intermediates.here(inputs).await?;
        let given = match action {
            StepAction::Run(Some(pinned)) => match &hedge {
                Some(hedge) => self.run_hedged(hedge, pinned, inputs, outputs).await,
                None => self.run_pinned(pinned, inputs, outputs).await,
            },
            StepAction::Combine(combiner) => {
                let combined = builtin::combine(&arena.tenant(&self.tenant), turns, *combiner, inputs).await;
                combined.map(|tensor| outputs.into_iter().map(|name| (name, tensor.clone())).collect())
            }
            StepAction::Split { parts } => builtin::take_apart(&inputs, *parts),
            StepAction::Run(None) => Err(unknown()),
        };
        given.map(handles)
    }

    /// The target of a step, if it still exists.
    pub(super) fn found(&self, pinned: &Pinned) -> Result<StepTarget, Fault> {
        let found = self.dispatch.catalog.find(&self.tenant, pinned);
        found.map_err(|why| Fault::new(ErrorCode::Unavailable, why))
    }

    pub(super) async fn run_pinned(
        &self,
        pinned: &Pinned,
        inputs: NamedTensors,
        outputs: Vec<String>,
    ) -> Result<NamedTensors, Fault> {
        match self.found(pinned)? {
            StepTarget::Model(entry) => self.model(&entry, inputs, outputs).await,
            StepTarget::Function(deployment) => self.function(deployment, inputs).await,
            StepTarget::Workflow(workflow) => {
                let serving = workflow.served.begin(Instant::now());
                let started = Instant::now();
                let batch = batch(&inputs);
                let execution = Some(Execution::alone(&inputs));
                let given = Box::pin(self.run(&workflow, inputs, Some(&outputs))).await;
                match &given {
                    Ok(_) => {
                        let infer = started.elapsed();
                        serving.done(Times { batch, infer, execution, ..Times::default() });
                    }
                    Err(fault) => serving.failed(fault.code),
                }
                given
            }
        }
    }

    async fn function(
        &self,
        deployment: Arc<DeployedFunction>,
        inputs: NamedTensors,
    ) -> Result<NamedTensors, Fault> {
        let arrived = Instant::now();
        let mut call = self.call(arrived);
        call.shorten_deadline(&deployment);
        let function = self.dispatch.function_target(&call, deployment);
        let serving = self.dispatch.served(function.deployment()).begin(arrived);
        let batch = batch(&inputs);
        let ran = async {
            let ready = self.dispatch.ready_nested(&call, &function, self.placement).await?;
            self.dispatch.tensor(&call, &function, ready, inputs).await
        };
        match ran.await {
            Ok(completion) => {
                serving.done(Times::from_completion(batch, &completion));
                Ok(completion.outputs)
            }
            Err(fault) => {
                function.account.close(fault.code);
                serving.failed(fault.code);
                Err(fault)
            }
        }
    }

    /// The call of a step, as a part of the placed run.
    pub(super) fn call(&self, arrived: Instant) -> CallCtx {
        CallCtx {
            id: self.placement.invocation,
            request_id: self.request_id.clone(),
            objective: Objective::default(),
            trace: self.trace.clone(),
            arrived,
            deadline: self.deadline,
            priority: self.priority,
            depth: self.depth + 1,
            inputs: Vec::new(),
            models: self.models.clone(),
            granted: None,
            is_websocket: false,
        }
    }

    /// Loads the models of steps that are certain to run into device memory. Keeps them there until
    /// this future is dropped, or until they are lost with their device. A model that cannot be
    /// loaded is reported by its step. Never completes.
    async fn load_ahead(&self, plan: &Plan, sure: &[usize]) {
        let steps = sure.iter().filter_map(|step| plan.steps().get(*step));
        let models = steps.filter_map(|step| match &step.action {
            StepAction::Run(Some(pinned)) => match self.dispatch.catalog.find(&self.tenant, pinned) {
                Ok(StepTarget::Model(entry)) => Some(entry),
                _ => None,
            },
            _ => None,
        });
        let loading = models.map(|entry| async move {
            self.dispatch
                .models
                .pin_ahead(&entry, self.placement, &self.dispatch.placements, &self.trace)
                .await
                .ok()
        });
        let loaded = futures::future::join_all(loading).await;
        let mut pins: Vec<ModelPin> = loaded.into_iter().flatten().collect();
        while !pins.is_empty() {
            let mut health: Vec<_> = pins.iter().map(|pin| pin.device().cache.health()).collect();
            // Lost pins are dropped: a step would otherwise wait for a model that is reloaded only
            // after its lost pins are dropped.
            pins.retain(|pin| !pin.pin().is_lost());
            let changes = health.iter_mut().map(|health| health.changed().boxed());
            if futures::future::select_all(changes).await.0.is_err() {
                break;
            }
        }
        std::future::pending::<()>().await;
    }
}

/// Handles of tensors on this node.
pub(super) fn handles(tensors: NamedTensors) -> Handles {
    tensors.into_iter().map(|(name, tensor)| (name, Handle::Here(tensor))).collect()
}

/// The number of items that a run works on: the first dimension of the first input.
pub(super) fn batch(tensors: &NamedTensors) -> u32 {
    tensors.iter().find_map(|(_, tensor)| tensor.shape().dimensions().first().copied()).unwrap_or(1)
}

/// A number from 0 to 1, as random as the keys of the standard library's hash tables.
fn draw() -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "the result is a share, so lost bits do not matter")]
    let draw = (RandomState::new().build_hasher().finish() >> 11) as f64 / (1_u64 << 53) as f64;
    draw
}

/// Adds the step's name to its fault.
fn named(plan: &Plan, step: usize, fault: Fault) -> Fault {
    let name = plan.steps().get(step).map_or("", |step| &step.name);
    Fault { text: format!("step {name}: {}", fault.text), ..fault }
}

fn late(plan: &Plan, under_way: &[usize]) -> Fault {
    let names = under_way.iter().filter_map(|step| Some(plan.steps().get(*step)?.name.as_str()));
    let names = names.collect::<Vec<_>>().join(", ");
    let text =
        format!("step {names}: the deadline passed before it was done (timeout, gateway.infer_wall_ms_max)");
    Fault::new(ErrorCode::DeadlineExceeded, text)
}

fn unknown() -> Fault {
    Fault::new(ErrorCode::Internal, "the target of the step is unknown")
}

/// Returns the fault for a step whose outputs do not match the plan. If the step is a function, the
/// function is at fault, because its outputs differ from the declared ones. Otherwise the caller is
/// at fault, because the inputs of the workflow determine the output shapes.
fn output_mismatch_fault(plan: &Plan, step: usize, error: &RunError) -> Fault {
    let code = match plan.steps().get(step).map(|step| &step.action) {
        Some(StepAction::Run(Some(pinned))) if pinned.kind == TargetKind::Function => ErrorCode::GuestError,
        _ => ErrorCode::InvalidRequest,
    };
    Fault::new(code, error.to_string())
}
