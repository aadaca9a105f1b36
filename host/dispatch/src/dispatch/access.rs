//! Resources that a function may open: models, workflows and named objects, limited to its grants.

use super::account::Account;
use super::inference::fault_of;
use super::workflow::Steps;
use super::{CallCtx, Dispatch};
use futures::future::{BoxFuture, FutureExt};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::task::AbortOnDropHandle;
use weir_call::Fault;
use weir_cluster::LocalPlacement;
use weir_control::models::{
    LoadedModel, ModelChoices, ModelLoadError, ModelPin, ModelPushError, ModelsError,
};
use weir_control::objects::ObjectError;
use weir_control::registry::DeployedFunction;
use weir_control::workflows::DeployedWorkflow;
use weir_inference::{
    Completion, DeviceTensor, ErrorKind, Execution, InferenceError, Meter, RunRequest, Tensor,
};
use weir_sandbox::{LoadModelError, ObjectAccessError, OpenError, OpenedModel, Resources, Runner};
use weir_telemetry::{FunctionColdStart, Trace};
use weir_types::{ErrorCode, ModelId, ModelRef, Name, NamePattern, Platforms, WorkflowId};

/// The models, workflows and named objects of one invocation.
pub(super) struct FunctionAccess {
    dispatch: Arc<Dispatch>,
    deployment: Arc<DeployedFunction>,
    placement: LocalPlacement,
    request_id: Arc<str>,
    depth: u32,
    choices: Option<Arc<ModelChoices>>,
    /// Whether the call is a copy for a shadow, whose runs do not count for canaries of models.
    is_copy: bool,
}

impl FunctionAccess {
    pub(super) fn new(
        dispatch: Arc<Dispatch>,
        call: &CallCtx,
        account: &Account,
        placement: LocalPlacement,
    ) -> Self {
        Self {
            dispatch,
            deployment: account.deployment().clone(),
            placement,
            is_copy: account.is_copy(),
            request_id: call.request_id.clone(),
            depth: call.depth,
            choices: call.models.clone(),
        }
    }

    async fn open(&self, wanted: &ModelRef, trace: &Trace) -> Result<OpenedModel, OpenError> {
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
        let tenant = &self.deployment.id.tenant;
        let entry = models.for_call(tenant, wanted, self.choices.as_deref());
        let entry = entry.map_err(|error| match error {
            ModelsError::NoModel(_) | ModelsError::NoVersion { .. } | ModelsError::Alias(_) => {
                OpenError::NotFound(error.to_string())
            }
            other => OpenError::Inference(InferenceError::Unavailable(other.to_string().into())),
        })?;
        let pin = if self.is_copy {
            models.pin_ahead(&entry, self.placement, placements, trace).await?.uncounted()
        } else {
            models.pin(&entry, self.placement, placements, trace).await?
        };
        self.count_cold_start(&pin);
        Ok(OpenedModel {
            id: entry.source.id().clone(),
            signature: pin.signature().clone(),
            served: Some(entry.served.clone()),
            runner: Box::new(ModelRunner { pin, meter: entry.meters.of_function(&self.deployment.id.name) }),
        })
    }

    fn open_workflow(
        &self,
        workflow: Arc<DeployedWorkflow>,
        trace: &Trace,
    ) -> Result<OpenedModel, OpenError> {
        let WorkflowId { tenant, name, version } = workflow.id.clone();
        if let Some(why) = self.dispatch.catalog.unready(&workflow) {
            let text = format!("workflow {name}:{version} cannot be run: {why}");
            return Err(OpenError::Inference(InferenceError::Unavailable(text.into())));
        }
        let signature = workflow.plan().map(|plan| plan.signature().clone()).unwrap_or_default();
        let steps = Steps {
            dispatch: self.dispatch.clone(),
            tenant: tenant.clone(),
            placement: self.placement,
            reserved: Arc::default(),
            caller: Some(self.deployment.clone()),
            request_id: self.request_id.clone(),
            trace: trace.clone(),
            // Each run sets its own deadline and priority.
            deadline: Instant::now(),
            priority: 0,
            depth: self.depth + 1,
            models: self.choices.clone(),
        };
        let id = ModelId { tenant, name, version };
        let served = Some(workflow.served.clone());
        Ok(OpenedModel { id, signature, served, runner: Box::new(WorkflowRunner { steps, workflow }) })
    }

    async fn load(&self, onnx: Vec<u8>, on: Platforms, trace: &Trace) -> Result<OpenedModel, LoadModelError> {
        let Dispatch { models, placements, .. } = &*self.dispatch;
        let tenant = &self.deployment.id.tenant;
        let meter = self.deployment.meter.own().clone();
        let model =
            models.load_for_guest(tenant, onnx, on, &meter, placements, trace).await.map_err(not_loaded)?;
        self.count_cold_start(&model.pin);
        Ok(OpenedModel {
            id: model.id().clone(),
            signature: model.pin.signature().clone(),
            served: None,
            runner: Box::new(LoadedRunner { model, meter }),
        })
    }

    fn count_cold_start(&self, pin: &ModelPin) {
        if let Some(cold_start) = pin.cold_start() {
            self.deployment.metrics.cold_start(FunctionColdStart::Model(cold_start));
        }
    }
}

impl Resources for FunctionAccess {
    fn open<'a>(
        &'a self,
        wanted: &'a ModelRef,
        trace: &'a Trace,
    ) -> BoxFuture<'a, Result<OpenedModel, OpenError>> {
        self.open(wanted, trace).boxed()
    }

    fn load<'a>(
        &'a self,
        onnx: Vec<u8>,
        on: Platforms,
        trace: &'a Trace,
    ) -> BoxFuture<'a, Result<OpenedModel, LoadModelError>> {
        self.load(onnx, on, trace).boxed()
    }

    fn get_object<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<Tensor, ObjectAccessError>> {
        let DeployedFunction { id, manifest, .. } = &*self.deployment;
        let got = async move {
            check(&manifest.objects.read, name, "read")?;
            let (_, tensor) = self.dispatch.objects.get(&id.tenant, name).await.map_err(inaccessible)?;
            Ok(tensor)
        };
        got.boxed()
    }

    fn put_object<'a>(
        &'a self,
        name: &'a Name,
        tensor: &'a Tensor,
        ttl_ms: Option<u64>,
    ) -> BoxFuture<'a, Result<(), ObjectAccessError>> {
        let DeployedFunction { id, manifest, .. } = &*self.deployment;
        let put = async move {
            check(&manifest.objects.write, name, "write")?;
            self.dispatch.objects.put(&id.tenant, name, tensor, ttl_ms).await.map_err(inaccessible)?;
            Ok(())
        };
        put.boxed()
    }

    fn remove_object<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<(), ObjectAccessError>> {
        let DeployedFunction { id, manifest, .. } = &*self.deployment;
        let removed = async move {
            check(&manifest.objects.write, name, "write")?;
            self.dispatch.objects.remove(&id.tenant, name).await.map_err(inaccessible)
        };
        removed.boxed()
    }
}

fn check(granted: &[NamePattern], name: &Name, access: &'static str) -> Result<(), ObjectAccessError> {
    let is_granted = granted.iter().any(|pattern| pattern.covers(name));
    if is_granted { Ok(()) } else { Err(ObjectAccessError::NotGranted(name.clone(), access)) }
}

#[expect(clippy::needless_pass_by_value, reason = "an argument of map_err")]
fn inaccessible(error: ObjectError) -> ObjectAccessError {
    ObjectAccessError::Object { code: error.code(), text: error.to_string() }
}

fn not_loaded(error: ModelLoadError) -> LoadModelError {
    match error {
        ModelLoadError::Prepare(ModelPushError::Prepare(error)) => LoadModelError::Prepare(error),
        ModelLoadError::Prepare(error) => LoadModelError::Files(error.to_string()),
        ModelLoadError::Model(error) => LoadModelError::Model(error),
    }
}

/// Runs a pushed model, with the meter of its runs.
struct ModelRunner {
    pin: ModelPin,
    meter: Meter,
}

impl Runner for ModelRunner {
    fn run(&self, request: RunRequest) -> BoxFuture<'static, Result<Completion, InferenceError>> {
        run_model(&self.pin, &self.meter, request)
    }
}

/// Runs a model that a guest has loaded.
struct LoadedRunner {
    model: LoadedModel,
    meter: Meter,
}

impl Runner for LoadedRunner {
    fn run(&self, request: RunRequest) -> BoxFuture<'static, Result<Completion, InferenceError>> {
        run_model(&self.model.pin, &self.meter, request)
    }
}

fn run_model(
    pin: &ModelPin,
    meter: &Meter,
    request: RunRequest,
) -> BoxFuture<'static, Result<Completion, InferenceError>> {
    let run = pin.run(RunRequest { meter: Some(meter.clone()), ..request });
    async move { run.await.map(|(completion, _)| completion) }.boxed()
}

/// The inputs of a workflow, all in host memory.
async fn with_fetched(
    mut inputs: Vec<(String, Tensor)>,
    on_device: Vec<(String, DeviceTensor)>,
) -> Result<Vec<(String, Tensor)>, Fault> {
    if on_device.is_empty() {
        return Ok(inputs);
    }
    let fetch = move || {
        let fetched = on_device.into_iter().map(|(name, tensor)| Ok((name, tensor.to_host()?)));
        fetched.collect::<Result<Vec<_>, InferenceError>>()
    };
    let fetched = tokio::task::spawn_blocking(fetch).await;
    let gone = |_| Fault::new(ErrorCode::Unavailable, "the node is shutting down");
    inputs.extend(fetched.map_err(gone)?.map_err(|error| fault_of(&error))?);
    Ok(inputs)
}

/// Runs a workflow.
struct WorkflowRunner {
    /// The caller; each run sets the deadline and the priority.
    steps: Steps,
    workflow: Arc<DeployedWorkflow>,
}

impl Runner for WorkflowRunner {
    fn run(&self, request: RunRequest) -> BoxFuture<'static, Result<Completion, InferenceError>> {
        let steps = self.steps.clone();
        let workflow = self.workflow.clone();
        let RunRequest { inputs, on_device, outputs, deadline, priority, .. } = request;
        let guests = steps.dispatch.guests.clone();
        let steps = Steps { deadline: deadline.unwrap_or(steps.deadline), priority, ..steps };
        // In a task, so that the run continues while the guest does something else.
        let run = AbortOnDropHandle::new(guests.spawn(async move {
            let started = Instant::now();
            let inputs = with_fetched(inputs, on_device).await?;
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
        ErrorCode::Unavailable | ErrorCode::NoDevice | ErrorCode::IntermediateLost => ErrorKind::Unavailable,
        _ => ErrorKind::Internal,
    }
}
