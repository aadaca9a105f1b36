//! Implements `weir:inference/models`.

use super::bindings::weir::inference::models::{Description, Host, HostModel, HostPending, Options, Port};
use super::bindings::weir::inference::tensors::Error as GuestError;
use super::tensors::push;
use super::{CallError, InferenceCtx, InferenceView};
use crate::OpenedModel;
use futures::future::{BoxFuture, FutureExt, Shared, ready};
use std::sync::Arc;
use std::time::{Duration, Instant};
use wasmtime::component::Resource;
use weir_inference::{Completion, InferenceError, RunRequest, Value};
use weir_telemetry::{AttributeValue, Phase, Times};
use weir_types::{ModelId, ModelRef, Name, Signature, VersionRef};

/// A model that a guest holds. Resident while the guest holds it, except between two invocations.
#[derive(Clone)]
pub struct OpenModel {
    id: ModelId,
    signature: Signature,
    /// The alias with which the guest opened the model. A later invocation uses the version that the
    /// alias names then.
    alias: Option<VersionRef>,
    /// Keeps the model resident. `None` from the end of an invocation until the next one runs the
    /// model.
    in_use: Option<Arc<OpenedModel>>,
}

impl OpenModel {
    fn new(opened: OpenedModel, wanted: &ModelRef) -> Self {
        let alias = wanted.version.clone().filter(|version| version.number().is_none());
        Self { alias, ..opened.into() }
    }

    pub(super) fn signature(&self) -> &Signature {
        &self.signature
    }

    /// Makes the model evictable at the end of an invocation, whichever handles remain.
    pub fn park(&mut self) {
        self.in_use = None;
    }

    pub(super) fn id(&self) -> &ModelId {
        &self.id
    }

    /// Starts a run on its device thread and returns a future of its outputs, in the requested
    /// order.
    pub(super) async fn run(
        &mut self,
        request: RunRequest,
        ctx: &InferenceCtx,
    ) -> Result<BoxFuture<'static, SharedRunResult>, CallError> {
        let OpenedModel { runner, served, signature, .. } = &**self.in_use(ctx).await?;
        let signature = signature.clone();
        let metrics = ctx.metrics.clone();
        let started = Instant::now();
        let batch = request.batch();
        let wanted = request.outputs.clone();
        let serving = served.as_ref().map(|served| served.begin(started));
        let run = runner.run(request);
        let timed = async move {
            let completion = run.await;
            metrics.phase(Phase::ModelRun, started.elapsed());
            if let Some(serving) = serving {
                match &completion {
                    Ok(completion) => serving.done(Times::from_completion(batch, completion)),
                    Err(error) => serving.failed(error.code()),
                }
            }
            completion.map(|completion| in_order(completion, wanted.as_deref(), &signature))
        };
        let mut span = ctx.trace.phase(Phase::ModelRun);
        span.set("weir.model", || AttributeValue::Name(self.id.name.clone()));
        Ok(span.around(timed).boxed())
    }

    /// The model in device memory. Reopens it if it was parked since an earlier invocation.
    async fn in_use(&mut self, ctx: &InferenceCtx) -> Result<&Arc<OpenedModel>, CallError> {
        if self.in_use.is_none() {
            let version = self.alias.clone().unwrap_or(self.id.version.into());
            let wanted = ModelRef { name: self.id.name.clone(), version: Some(version) };
            *self = Self::new(ctx.resources.open(&wanted, &ctx.trace).await?, &wanted);
        }
        // Opened above, unless it was open before.
        self.in_use.as_ref().ok_or_else(|| CallError::Trap(wasmtime::format_err!("a model was not opened")))
    }
}

impl From<OpenedModel> for OpenModel {
    fn from(opened: OpenedModel) -> Self {
        Self {
            id: opened.id.clone(),
            signature: opened.signature.clone(),
            alias: None,
            in_use: Some(Arc::new(opened)),
        }
    }
}

/// A run that a guest has started.
pub struct GuestRun {
    model: ModelId,
    /// The run, finished or not. Shared, so that waiting for readiness does not consume the
    /// outputs.
    pub(super) run: Shared<BoxFuture<'static, SharedRunResult>>,
    taken: bool,
}

/// Cloned for every waiter, hence without the error's source.
pub(super) type SharedRunResult = Result<Vec<(String, Value)>, InferenceError>;

type Inputs = Vec<(String, Resource<Value>)>;
type Outputs = Vec<(String, Resource<Value>)>;

/// The outputs of a run on the host and on the device, in the order in which they were requested.
fn in_order(
    completion: Completion,
    wanted: Option<&[String]>,
    signature: &Signature,
) -> Vec<(String, Value)> {
    let Completion { outputs, stayed, .. } = completion;
    if stayed.is_empty() {
        return outputs.into_iter().map(|(name, tensor)| (name, tensor.into())).collect();
    }
    let on_host = outputs.into_iter().map(|(name, tensor)| (name, Value::Host(tensor)));
    let mut all: Vec<_> =
        on_host.chain(stayed.into_iter().map(|(name, tensor)| (name, Value::Device(tensor)))).collect();
    all.sort_by_key(|(name, _)| match wanted {
        Some(wanted) => wanted.iter().position(|wanted| wanted == name),
        None => signature.outputs.iter().position(|port| port.name == *name),
    });
    all
}

impl InferenceView<'_> {
    /// Starts a run on its device thread and returns a future of its outputs.
    async fn start(
        &mut self,
        model: &Resource<OpenModel>,
        inputs: Inputs,
        options: Option<Options>,
    ) -> Result<BoxFuture<'static, SharedRunResult>, CallError> {
        let mut tensors = Vec::with_capacity(inputs.len());
        for (name, tensor) in inputs {
            tensors.push((name, self.table.get(&tensor)?.clone()));
        }
        let options = options.unwrap_or(Options { outputs: None, deadline_ms: None, priority: None });
        let asked = options.deadline_ms.map(|ms| Instant::now() + Duration::from_millis(ms.into()));
        // The outputs stay on the device until the guest reads them: it may pass them to another
        // model.
        let all = || self.table.get(model).map(|model| output_names(model.signature()));
        let may_stay = options.outputs.clone().map_or_else(all, Ok)?;
        let mut request = RunRequest {
            outputs: options.outputs,
            may_stay,
            deadline: Some(asked.map_or(self.ctx.deadline, |asked| asked.min(self.ctx.deadline))),
            priority: options.priority.filter(|given| *given > 0).unwrap_or(self.ctx.priority),
            ..RunRequest::default()
        };
        request.give(tensors);
        self.table.get_mut(model)?.run(request, self.ctx).await
    }

    /// Opens a model that the function is granted.
    pub(super) async fn open_model(&mut self, name: &str) -> Result<Resource<OpenModel>, CallError> {
        let wanted: ModelRef = name.parse().map_err(CallError::invalid)?;
        let opened = self.ctx.resources.open(&wanted, &self.ctx.trace).await?;
        Ok(self.table.push(OpenModel::new(opened, &wanted))?)
    }

    fn hand_over(&mut self, outputs: Vec<(String, Value)>) -> Result<Outputs, CallError> {
        outputs.into_iter().map(|(name, tensor)| Ok((name, push(self.ctx, self.table, tensor)?))).collect()
    }
}

impl Host for InferenceView<'_> {}

impl HostModel for InferenceView<'_> {
    async fn open(&mut self, name: String) -> Result<Resource<OpenModel>, CallError> {
        self.open_model(&name).await
    }

    fn describe(&mut self, model: Resource<OpenModel>) -> wasmtime::Result<Description> {
        let OpenModel { id, signature, .. } = self.table.get(&model)?;
        let ports = |ports: &[weir_types::Port]| ports.iter().map(port).collect();
        Ok(Description {
            name: Name::as_str(&id.name).to_owned(),
            version: id.version.to_string(),
            inputs: ports(&signature.inputs),
            outputs: ports(&signature.outputs),
        })
    }

    async fn infer(
        &mut self,
        model: Resource<OpenModel>,
        inputs: Inputs,
        options: Option<Options>,
    ) -> Result<Outputs, CallError> {
        let run = self.start(&model, inputs, options).await?;
        let ended = run.await;
        let id = self.table.get(&model)?.id();
        let outputs = ended.inspect_err(|error| self.sink.run_failed(id, error))?;
        self.hand_over(outputs)
    }

    async fn submit(
        &mut self,
        model: Resource<OpenModel>,
        inputs: Inputs,
        options: Option<Options>,
    ) -> Result<Resource<GuestRun>, CallError> {
        let run = self.start(&model, inputs, options).await?;
        let model = self.table.get(&model)?.id().clone();
        Ok(self.table.push(GuestRun { model, run: run.shared(), taken: false })?)
    }

    fn drop(&mut self, model: Resource<OpenModel>) -> wasmtime::Result<()> {
        self.table.delete(model)?;
        Ok(())
    }
}

impl HostPending for InferenceView<'_> {
    async fn wait(&mut self, pending: Resource<GuestRun>) -> Result<Outputs, CallError> {
        let entry = self.table.get_mut(&pending)?;
        if std::mem::replace(&mut entry.taken, true) {
            return Err(CallError::invalid("the outputs of this run were handed over before"));
        }
        let model = entry.model.clone();
        let run = entry.run.clone();
        let outputs = run.await.inspect_err(|error| self.sink.run_failed(&model, error))?;
        // The handle of the run must not keep the tensors.
        self.table.get_mut(&pending)?.run = ready(Ok(Vec::new())).boxed().shared();
        self.hand_over(outputs)
    }

    fn cancel(&mut self, pending: Resource<GuestRun>) -> wasmtime::Result<()> {
        let entry = self.table.get_mut(&pending)?;
        if entry.run.peek().is_none() {
            // Dropping the run stops it.
            entry.run = ready(Err(InferenceError::Cancelled)).boxed().shared();
        }
        Ok(())
    }

    fn drop(&mut self, pending: Resource<GuestRun>) -> wasmtime::Result<()> {
        self.table.delete(pending)?;
        Ok(())
    }
}

fn output_names(signature: &Signature) -> Vec<String> {
    signature.outputs.iter().map(|port| port.name.clone()).collect()
}

fn port(port: &weir_types::Port) -> Port {
    Port { name: port.name.clone(), element_type: port.datatype.into(), shape: port.shape.clone() }
}

impl From<crate::OpenError> for CallError {
    fn from(error: crate::OpenError) -> Self {
        use crate::OpenError;
        match error {
            OpenError::NotGranted(text) => Self::Guest(GuestError::NotGranted(text)),
            OpenError::NotFound(text) => Self::Guest(GuestError::NotFound(text)),
            OpenError::Inference(error) => error.into(),
        }
    }
}
