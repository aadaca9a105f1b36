//! Models, and runs of them.

use crate::bindings::imports::weir::inference::models as raw;
use crate::{ElementType, Result, Tensor, Tensors};
use std::time::Duration;

/// A model that the function's manifest grants it; or a tensor function, a workflow, or a kernel graph, which run like one.
///
/// The node keeps it in device memory while this handle lives. Opening and dropping one that is there already costs little.
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
    /// Open the newest version of the model `name`, or one version of it with `name:version`.
    ///
    /// Fails with [`Error::NotFound`](crate::Error::NotFound), [`Error::NotGranted`](crate::Error::NotGranted), or
    /// [`Error::ResourceExhausted`](crate::Error::ResourceExhausted) where no device has room for it.
    pub fn open(name: &str) -> Result<Self> {
        Ok(Self(raw::Model::open(name)?))
    }

    /// Its name, version, inputs and outputs.
    #[must_use]
    pub fn describe(&self) -> Description {
        let raw::Description { name, version, inputs, outputs } = self.0.describe();
        let ports = |ports: Vec<raw::Port>| ports.into_iter().map(Port::from).collect();
        Description { name, version, inputs: ports(inputs), outputs: ports(outputs) }
    }

    /// Run it, and wait for all of its outputs.
    pub fn infer<'a, N: Into<String>>(
        &'a self,
        inputs: impl IntoIterator<Item = (N, &'a Tensor)>,
    ) -> Result<Tensors> {
        self.run(inputs).infer()
    }

    /// Start a run, and do something else until it is done.
    pub fn submit<'a, N: Into<String>>(
        &'a self,
        inputs: impl IntoIterator<Item = (N, &'a Tensor)>,
    ) -> Result<Pending> {
        self.run(inputs).submit()
    }

    /// Prepare a run, for options: nothing happens before [`Run::infer`] or [`Run::submit`].
    pub fn run<'a, N: Into<String>>(&'a self, inputs: impl IntoIterator<Item = (N, &'a Tensor)>) -> Run<'a> {
        let inputs = inputs.into_iter().map(|(name, tensor)| (name.into(), &tensor.0)).collect();
        Run {
            model: self,
            inputs,
            options: raw::Options { outputs: None, deadline_ms: None, priority: None },
        }
    }
}

/// A run that is being prepared.
#[derive(Debug)]
#[must_use = "nothing runs before `infer` or `submit`"]
pub struct Run<'a> {
    model: &'a Model,
    inputs: Vec<(String, &'a crate::bindings::imports::weir::inference::tensors::Tensor)>,
    options: raw::Options,
}

impl Run<'_> {
    /// Give back these outputs only, in this order. The others need not be computed.
    pub fn outputs<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.options.outputs = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Give up after this time, counted in whole milliseconds. The invocation's own deadline holds in any case.
    pub fn deadline(mut self, after: Duration) -> Self {
        self.options.deadline_ms = Some(u32::try_from(after.as_millis()).unwrap_or(u32::MAX));
        self
    }

    /// How urgent the run is: 1 is the most; 0 is the invocation's own.
    pub fn priority(mut self, priority: u32) -> Self {
        self.options.priority = Some(priority);
        self
    }

    /// Run, and wait for the outputs.
    pub fn infer(self) -> Result<Tensors> {
        Ok(wrap(self.model.0.infer(&self.inputs, Some(&self.options))?))
    }

    /// Run while the function does something else. The inputs may be dropped at once.
    pub fn submit(self) -> Result<Pending> {
        Ok(Pending(self.model.0.submit(&self.inputs, Some(&self.options))?))
    }
}

/// A run under way. Dropping it cancels the run.
#[derive(Debug)]
pub struct Pending(raw::Pending);

impl Pending {
    /// Wait for the outputs.
    pub fn wait(self) -> Result<Tensors> {
        Ok(wrap(self.0.wait()?))
    }

    /// Stop the run, unless it is done; [`Self::wait`] then fails with [`Error::Cancelled`](crate::Error::Cancelled).
    pub fn cancel(&self) {
        self.0.cancel();
    }
}

/// Wait on wstd's runtime while other tasks go on.
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

/// What a model is, and what it takes and gives.
#[derive(Debug, Clone)]
pub struct Description {
    /// The name it is deployed under.
    pub name: String,
    /// The version that was opened.
    pub version: String,
    /// What a run must be given.
    pub inputs: Vec<Port>,
    /// What a run can give back.
    pub outputs: Vec<Port>,
}

/// One input or output of a model.
#[derive(Debug, Clone)]
pub struct Port {
    /// The name by which a run refers to it.
    pub name: String,
    /// The type of its elements.
    pub element_type: ElementType,
    /// The size of each dimension, outermost first; none where it may differ from run to run.
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
