//! Models and inference.

use crate::bindings::imports::weir::inference::models as raw;
use crate::{ElementType, Result, Tensor, Tensors};
use std::time::Duration;

/// A model that the function's manifest grants. Tensor functions, workflows and kernel graphs are
/// opened and run in the same way.
///
/// The node keeps the model in device memory for the lifetime of this handle. Opening and dropping
/// a resident model is cheap.
///
/// ```no_run
/// # use std::time::Duration;
/// # use weir::{Model, Result, Tensor};
/// # fn example(ids: &Tensor, mask: &Tensor) -> Result<()> {
/// let model = Model::open("minilm")?;
/// let outputs = model.infer([("input_ids", ids), ("attention_mask", mask)])?;
/// let embedding = outputs.get("embedding")?.to_vec::<f32>()?;
///
/// // With options:
/// let run = model.run([("input_ids", ids), ("attention_mask", mask)]);
/// let embedding = run.outputs(["embedding"]).deadline(Duration::from_millis(200)).infer()?.only()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Model(raw::Model);

impl Model {
    /// Opens the newest version of the model `name`, or a specific version with `name:version`.
    ///
    /// Fails with [`Error::NotFound`](crate::Error::NotFound), with
    /// [`Error::NotGranted`](crate::Error::NotGranted), or with
    /// [`Error::ResourceExhausted`](crate::Error::ResourceExhausted) if no device has room for the
    /// model.
    pub fn open(name: &str) -> Result<Self> {
        Ok(Self(raw::Model::open(name)?))
    }

    /// Name, version, inputs and outputs of the model.
    #[must_use]
    pub fn describe(&self) -> Description {
        let raw::Description { name, version, inputs, outputs } = self.0.describe();
        let ports = |ports: Vec<raw::Port>| ports.into_iter().map(Port::from).collect();
        Description { name, version, inputs: ports(inputs), outputs: ports(outputs) }
    }

    /// Runs the model and waits for all outputs.
    pub fn infer<'a, N: Into<String>>(
        &'a self,
        inputs: impl IntoIterator<Item = (N, &'a Tensor)>,
    ) -> Result<Tensors> {
        self.run(inputs).infer()
    }

    /// Starts a run and returns without waiting for its outputs.
    pub fn submit<'a, N: Into<String>>(
        &'a self,
        inputs: impl IntoIterator<Item = (N, &'a Tensor)>,
    ) -> Result<Pending> {
        self.run(inputs).submit()
    }

    /// Prepares a run with options. The run starts with [`Run::infer`] or [`Run::submit`].
    pub fn run<'a, N: Into<String>>(&'a self, inputs: impl IntoIterator<Item = (N, &'a Tensor)>) -> Run<'a> {
        let inputs = inputs.into_iter().map(|(name, tensor)| (name.into(), &tensor.0)).collect();
        Run {
            model: self,
            inputs,
            options: raw::Options { outputs: None, deadline_ms: None, priority: None },
        }
    }
}

/// A run that is being configured.
#[derive(Debug)]
#[must_use = "nothing runs before `infer` or `submit`"]
pub struct Run<'a> {
    model: &'a Model,
    inputs: Vec<(String, &'a crate::bindings::imports::weir::inference::tensors::Tensor)>,
    options: raw::Options,
}

impl Run<'_> {
    /// Selects the outputs to return, in this order. The node need not compute the others.
    pub fn outputs<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.options.outputs = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Sets a time limit, in whole milliseconds. The invocation's deadline still applies.
    pub fn deadline(mut self, after: Duration) -> Self {
        self.options.deadline_ms = Some(u32::try_from(after.as_millis()).unwrap_or(u32::MAX));
        self
    }

    /// Sets the priority: 1 is the most urgent; 0 uses the invocation's priority.
    pub fn priority(mut self, priority: u32) -> Self {
        self.options.priority = Some(priority);
        self
    }

    /// Starts the run and waits for its outputs.
    pub fn infer(self) -> Result<Tensors> {
        self.model.0.infer(&self.inputs, Some(&self.options)).map(wrap).map_err(crate::Error::of_run)
    }

    /// Starts the run without waiting for its outputs. The inputs may be dropped at once.
    pub fn submit(self) -> Result<Pending> {
        self.model.0.submit(&self.inputs, Some(&self.options)).map(Pending).map_err(crate::Error::of_run)
    }
}

/// An active run. Dropping it cancels the run.
#[derive(Debug)]
pub struct Pending(raw::Pending);

impl Pending {
    /// Waits for the outputs.
    pub fn wait(self) -> Result<Tensors> {
        self.0.wait().map(wrap).map_err(crate::Error::of_run)
    }

    /// Cancels the run, unless it is finished; [`Self::wait`] then fails with
    /// [`Error::Cancelled`](crate::Error::Cancelled).
    pub fn cancel(&self) {
        self.0.cancel();
    }
}

/// Awaits the run on wstd's runtime, so that other tasks proceed.
#[cfg(feature = "async")]
impl IntoFuture for Pending {
    type Output = Result<Tensors>;
    type IntoFuture = std::pin::Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let ready = crate::bindings::imports::weir::inference::readiness::subscribe(&self.0);
            wstd::runtime::AsyncPollable::new(ready).wait_for().await;
            self.wait()
        })
    }
}

/// Name, version and signature of a model.
#[derive(Debug, Clone)]
pub struct Description {
    /// Name that the model is deployed under.
    pub name: String,
    /// The opened version.
    pub version: String,
    /// Required inputs.
    pub inputs: Vec<Port>,
    /// Available outputs.
    pub outputs: Vec<Port>,
}

/// One input or output of a model.
#[derive(Debug, Clone)]
pub struct Port {
    /// Name of the input or output.
    pub name: String,
    /// Element type.
    pub element_type: ElementType,
    /// Size of each dimension, outermost first; `None` for a variable dimension.
    pub shape: Vec<Option<usize>>,
}

impl From<raw::Port> for Port {
    fn from(raw: raw::Port) -> Self {
        let raw::Port { name, element_type, shape } = raw;
        Self { name, element_type, shape: shape.iter().map(|size| size.map(|size| size as usize)).collect() }
    }
}

fn wrap(outputs: Vec<(String, crate::bindings::imports::weir::inference::tensors::Tensor)>) -> Tensors {
    outputs.into_iter().map(|(name, tensor)| (name, Tensor(tensor))).collect()
}
