//! Loads models into device memory: models that a function is granted, and models of stand-alone
//! inferences.

use super::loaded::{LoadError, Loaded};
use super::pinned::{Beside, ModelPin, RanOn};
use super::placing::Choice;
use super::{ModelEntry, Models, ModelsError};
use crate::devices::{NodeDevice, Ordinal};
use crate::dispatch::{Dispatch, Invocation, Placements, Spot, Steps};
use crate::instance::Fault;
use crate::objects::ObjectAccess;
use crate::registry::Deployment;
use crate::telemetry::{ColdStart, Phase, Served, Trace};
use crate::workflows::Workflow;
use futures::future::{BoxFuture, FutureExt};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;
use weir_inference::{Completion, ErrorKind, Execution, InferenceError, Meter, ModelSource, Pin, RunRequest};
use weir_types::{ErrorCode, ModelId, ModelRef, Platform, Platforms, Signature, WorkflowId};

/// The models, workflows and named objects of one invocation. Cheap to clone.
#[derive(Clone)]
pub(crate) struct ModelAccess {
    dispatch: Arc<Dispatch>,
    deployment: Arc<Deployment>,
    spot: Spot,
    request_id: Arc<str>,
    depth: u32,
}

/// An opened model, kept in device memory until this is dropped. Or an opened workflow, whose
/// models are kept there while it runs.
pub(crate) struct Opened {
    pub(crate) id: ModelId,
    pub(crate) signature: Signature,
    pub(crate) runner: Runner,
    /// The serving statistics of its runs; `None` for a model that a guest has loaded.
    pub(crate) served: Option<Served>,
    /// The files of a model that a guest has loaded.
    pub(super) _loaded: Option<Loaded>,
}

/// Runs an opened model or workflow.
pub(crate) enum Runner {
    /// With the meter of its runs.
    Model(ModelPin, Meter),
    Workflow(Box<(Steps, Arc<Workflow>)>),
}

/// The reason why a model was not opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error("{0}")]
    NotGranted(String),
    #[error("{0}")]
    NotFound(String),
    #[error(transparent)]
    Inference(#[from] InferenceError),
}

impl ModelAccess {
    pub(crate) fn new(dispatch: Arc<Dispatch>, invocation: &Invocation, spot: Spot) -> Self {
        Self {
            dispatch,
            deployment: invocation.deployment.clone(),
            spot,
            request_id: invocation.request_id.clone(),
            depth: invocation.depth,
        }
    }

    /// The named objects of the function's tenant, limited to the function's grants.
    pub(crate) fn objects(&self) -> ObjectAccess<'_> {
        let (tenant, grants) = (&self.deployment.id.tenant, &self.deployment.manifest.objects);
        ObjectAccess { objects: &self.dispatch.objects, tenant, grants }
    }

    /// The limit of bytes for models that the function loads from its own memory; 0 forbids it.
    pub(crate) fn loaded_model_bytes_max(&self) -> u64 {
        self.deployment.manifest.limits.loaded_model_bytes
    }

    /// Opens a model, which is loaded into device memory if necessary, or a workflow.
    pub(crate) async fn open(&self, wanted: &ModelRef, trace: &Trace) -> Result<Opened, OpenError> {
        if !self.deployment.manifest.models.iter().any(|grant| grant.covers(wanted)) {
            // The same error whether or not the model exists: its existence must not leak without a
            // grant.
            let text =
                format!("model {wanted} is not granted to this function; add it to models in the manifest");
            return Err(OpenError::NotGranted(text));
        }
        if let Some(workflow) = self.dispatch.catalog.workflow(&self.deployment.id.tenant, wanted) {
            return self.open_workflow(workflow, trace);
        }
        let Dispatch { models, placements, .. } = &*self.dispatch;
        let entry = models.get(&self.deployment.id.tenant, &wanted.name, wanted.version).map_err(
            |error| match error {
                ModelsError::NoModel(_) | ModelsError::NoVersion { .. } => {
                    OpenError::NotFound(error.to_string())
                }
                other => OpenError::Inference(InferenceError::Unavailable(other.to_string().into())),
            },
        )?;
        let pin = models.pin(&entry, self.spot, placements, trace).await?;
        let (id, served) = (entry.source.id().clone(), Some(entry.served.clone()));
        let meter = entry.meters.of_function(&self.deployment.id.name);
        Ok(Opened {
            id,
            signature: pin.signature().clone(),
            runner: Runner::Model(pin, meter),
            served,
            _loaded: None,
        })
    }

    /// Loads a model from the guest's bytes into device memory, until the result is dropped. The
    /// caller checks the guest's permission and bounds the time. The model runs on the first device
    /// of one of the platforms `on`.
    pub(crate) async fn load(
        &self,
        onnx: Vec<u8>,
        on: Platforms,
        trace: &Trace,
    ) -> Result<Opened, LoadError> {
        let Dispatch { models, placements, .. } = &*self.dispatch;
        let tenant = &self.deployment.id.tenant;
        if !models.devices.iter().any(|device| on.contains(device.platform)) {
            let why = "this node has no device of the kind that was asked for";
            return Err(InferenceError::Unsupported(why.into()).into());
        }
        let meter = self.deployment.meter.own();
        let (source, loaded) = Loaded::prepare(models, tenant, meter, onnx).await?;
        let runs = |device: &&NodeDevice| on.contains(device.platform) && device.runs(&source.prepared);
        let device = models.devices.iter().find(runs).ok_or_else(|| {
            let why = on.iter().find_map(|platform| source.prepared.why_not(platform));
            InferenceError::Unsupported(why.unwrap_or("there is no form of it for that").into())
        })?;
        let pin = models.load(&source, device, placements, trace).await?;
        let ran_on = RanOn { device: device.name.clone(), instead: None };
        let pin = ModelPin::new(pin, ran_on, device.ordinal, (models, placements), None);
        Ok(Opened {
            id: source.id().clone(),
            signature: pin.signature().clone(),
            runner: Runner::Model(pin, meter.clone()),
            served: None,
            _loaded: Some(loaded),
        })
    }

    fn open_workflow(&self, workflow: Arc<Workflow>, trace: &Trace) -> Result<Opened, OpenError> {
        let WorkflowId { tenant, name, version } = workflow.id.clone();
        if let Some(why) = self.dispatch.catalog.unready(&workflow) {
            let text = format!("workflow {name}:{version} cannot be run: {why}");
            return Err(OpenError::Inference(InferenceError::Unavailable(text.into())));
        }
        let signature = workflow.plan().map(|plan| plan.signature().clone()).unwrap_or_default();
        let steps = Steps {
            dispatch: self.dispatch.clone(),
            tenant: tenant.clone(),
            spot: self.spot,
            is_apart: false,
            caller: Some(self.deployment.clone()),
            request_id: self.request_id.clone(),
            trace: trace.clone(),
            // Each run sets its own deadline and priority.
            deadline: Instant::now(),
            priority: 0,
            depth: self.depth + 1,
        };
        let (id, served) = (ModelId { tenant, name, version }, Some(workflow.served.clone()));
        let runner = Runner::Workflow(Box::new((steps, workflow)));
        Ok(Opened { id, signature, runner, served, _loaded: None })
    }
}

impl Runner {
    /// Starts a run. Dropping the future stops the run.
    pub(crate) fn run(&self, request: RunRequest) -> BoxFuture<'static, Result<Completion, InferenceError>> {
        let (steps, workflow) = match self {
            Self::Model(pin, meter) => {
                let run = pin.run(RunRequest { meter: Some(meter.clone()), ..request });
                return async move { run.await.map(|(completion, _)| completion) }.boxed();
            }
            Self::Workflow(workflow) => (**workflow).clone(),
        };
        let RunRequest { inputs, outputs, deadline, priority, .. } = request;
        let guests = steps.dispatch.guests.clone();
        let steps = Steps { deadline: deadline.unwrap_or(steps.deadline), priority, ..steps };
        // In a task, so that the run continues while the guest does something else.
        let run = AbortOnDropHandle::new(guests.spawn(async move {
            let started = Instant::now();
            let execution = Some(Execution::alone(&inputs));
            let outputs = steps.run(&workflow, inputs, outputs.as_deref()).await?;
            Ok(Completion {
                outputs,
                stayed: Vec::new(),
                queue_time: Duration::ZERO,
                run_time: started.elapsed(),
                execution,
            })
        }));
        let ended = async move {
            let gone = |_| InferenceError::Unavailable("the node is shutting down".into());
            run.await.map_err(gone)?.map_err(|fault: Fault| InferenceError::Step {
                kind: kind_of(fault.code),
                text: fault.text.into(),
            })
        };
        ended.boxed()
    }
}

/// The error kind for the guest when a step fails.
fn kind_of(code: ErrorCode) -> ErrorKind {
    match code {
        ErrorCode::InvalidRequest => ErrorKind::InvalidArgument,
        ErrorCode::QueueFull | ErrorCode::NoCapacity => ErrorKind::ResourceExhausted,
        ErrorCode::DeadlineExceeded => ErrorKind::DeadlineExceeded,
        ErrorCode::Cancelled => ErrorKind::Cancelled,
        ErrorCode::Unavailable | ErrorCode::IntermediateLost => ErrorKind::Unavailable,
        _ => ErrorKind::Internal,
    }
}

impl Models {
    /// Pins a model in device memory, and loads it first if necessary. The caller's placement
    /// includes the model.
    pub(crate) async fn pin(
        self: &Arc<Self>,
        entry: &Arc<ModelEntry>,
        spot: Spot,
        placements: &Arc<Placements>,
        trace: &Trace,
    ) -> Result<ModelPin, OpenError> {
        let mut refused: Option<Arc<str>> = None;
        loop {
            let Some(Choice { device, instead }) = self.choose(entry, spot.device) else {
                let why = refused.unwrap_or_else(|| "the node has no device for it".into());
                return Err(InferenceError::Unsupported(why).into());
            };
            match self.pin_on(entry, device.ordinal, spot, placements, trace).await {
                Ok(pin) => {
                    let ran_on = RanOn { device: device.name.clone(), instead: instead.or(refused) };
                    let beside = self.beside(entry, device, spot, trace);
                    return Ok(ModelPin::new(pin, ran_on, device.ordinal, (self, placements), beside));
                }
                // A platform refuses a model only once, so the loop ends.
                Err(OpenError::Inference(InferenceError::Unsupported(why)))
                    if entry.refusals.note(device.platform, why.clone()) =>
                {
                    let model = entry.source.id();
                    tracing::warn!(%model, device = &*device.name, why = &*why, "a model cannot run on a device that has a form of it");
                    refused = Some(self.instead(entry, &device.name, &why));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Like [`pin`](Self::pin), on one device.
    pub(super) async fn pin_on(
        &self,
        entry: &ModelEntry,
        ordinal: Ordinal,
        spot: Spot,
        placements: &Placements,
        trace: &Trace,
    ) -> Result<Pin, OpenError> {
        let key = &entry.source.key;
        let device = self.devices.get(ordinal).unwrap_or(self.devices.first());
        if spot.device.is_some_and(|placed| placed != device.ordinal) {
            placements.grant_beside(spot.invocation, device.ordinal, key.id.clone());
        }
        if let Some(pin) = device.cache.pin(key) {
            return Ok(pin);
        }
        if self.blobs().is_shared()
            && let Err(error) = self.store.fetch(&entry.source.prepared, device.platform).await
        {
            return Err(InferenceError::Unavailable(error.to_string().into()).into());
        }
        let pin = self.load(&entry.source, device, placements, trace).await?;
        // Deleted during the load: the deletion may have found no model to unload yet.
        if !self.is_current(key) {
            self.let_go(key);
            let ModelId { name, version, .. } = &key.id;
            return Err(OpenError::NotFound(format!("model {name}:{version} was deleted meanwhile")));
        }
        Ok(pin)
    }

    /// The node's CPU as a fallback for runs that an accelerator does not support.
    fn beside(
        &self,
        entry: &Arc<ModelEntry>,
        device: &NodeDevice,
        spot: Spot,
        trace: &Trace,
    ) -> Option<Beside> {
        let cpu = self.devices.cpu().filter(|cpu| cpu.ordinal != device.ordinal)?;
        entry.runs_on().contains(Platform::Cpu).then(|| Beside {
            entry: entry.clone(),
            cpu: cpu.ordinal,
            spot,
            trace: trace.clone(),
        })
    }

    /// Unloads a model from device memory once its last pin is dropped. The next use loads it
    /// again.
    pub(crate) fn unload(&self, entry: &ModelEntry, placements: &Placements) {
        for device in self.devices.iter() {
            // The future completes once the memory is free; this caller does not wait for it.
            drop(device.cache.unload(&entry.source.key));
            self.note_residents(device.ordinal, placements);
        }
    }

    /// Reports a device's health to the scheduler.
    pub(crate) fn note_health(&self, ordinal: Ordinal, placements: &Placements) {
        let Some(device) = self.devices.get(ordinal) else { return };
        if placements.note_health(ordinal, &device.cache.health()) {
            self.metrics.devices.lost(&device.name);
        }
    }

    /// Reports a device's memory for models to the scheduler.
    pub(crate) fn note_capacity(&self, ordinal: Ordinal, placements: &Placements) {
        let Some(device) = self.devices.get(ordinal) else { return };
        placements.note_capacity(ordinal, &device.cache.capacity());
    }

    /// Loads the model, evicting models as the scheduler allows, and reports the result to the
    /// scheduler.
    async fn load(
        &self,
        source: &Arc<ModelSource>,
        device: &NodeDevice,
        placements: &Placements,
        trace: &Trace,
    ) -> Result<Pin, InferenceError> {
        let NodeDevice { ordinal, cache, .. } = device;
        let acquired = loop {
            let mut loads = cache.loads();
            let mut freed = std::pin::pin!(placements.freed());
            freed.as_mut().enable();
            let victims = placements.victims(*ordinal);
            let acquiring = cache.acquire(source, &victims);
            let acquired = acquiring.instrument(trace.phase(Phase::ModelLoad)).await;
            // A scheduler that took over from another does not know the running invocations. The
            // caller's deadline bounds the wait.
            match &acquired {
                Err(InferenceError::NoRoom { .. }) if placements.is_held_up(*ordinal) => freed.await,
                // Nor does the scheduler know models whose load has outlasted the call, or was not
                // requested by any call.
                Err(InferenceError::NoRoom { .. })
                    if cache.is_any_loading() || loads.has_changed().unwrap_or_default() =>
                {
                    // The cache and the sender exist, so this cannot fail.
                    let _ = loads.changed().await;
                    self.note_residents(*ordinal, placements);
                }
                // Nor does it know models whose load has just completed. They are noted by now, and
                // evicted unless an invocation needs them.
                Err(InferenceError::NoRoom { .. }) => {
                    self.note_residents(*ordinal, placements);
                    // Another load may have given up the same models meanwhile.
                    if !placements.give_up_unneeded(*ordinal) && placements.victims(*ordinal) == victims {
                        break acquired;
                    }
                }
                _ => break acquired,
            }
        };
        if let Err(InferenceError::DeviceLost(_)) = &acquired {
            self.note_health(*ordinal, placements);
        }
        // A load that is still in progress is reported later, by the task that watches the device.
        self.note_residents(*ordinal, placements);
        if let Some(load_time) = acquired.as_ref().ok().and_then(Pin::load_time) {
            self.metrics.phase(Phase::ModelLoad, load_time);
            self.metrics.cold_start(ColdStart::Model);
        }
        acquired
    }
}
