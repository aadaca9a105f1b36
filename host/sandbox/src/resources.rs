//! The models and objects that a call may open: the interface that the node implements for its
//! sandboxes.

use futures::future::BoxFuture;
use weir_inference::{Completion, InferenceError, PrepareError, RunRequest, Tensor};
use weir_telemetry::{Served, Trace};
use weir_types::{ErrorCode, ModelId, ModelRef, Name, Platforms, Signature};

/// The models, workflows and named objects of one call, limited to the grants of its function.
pub trait Resources: Send + Sync + 'static {
    /// Opens a model, which is loaded into device memory if necessary, or a workflow.
    fn open<'a>(
        &'a self,
        wanted: &'a ModelRef,
        trace: &'a Trace,
    ) -> BoxFuture<'a, Result<OpenedModel, OpenError>>;

    /// Loads an ONNX model into device memory, until the result is dropped. The model runs on the
    /// first device of one of the platforms `on`. The caller checks the guest's permission and
    /// bounds the time.
    fn load<'a>(
        &'a self,
        onnx: Vec<u8>,
        on: Platforms,
        trace: &'a Trace,
    ) -> BoxFuture<'a, Result<OpenedModel, LoadModelError>>;

    /// Reads an object.
    fn get_object<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<Tensor, ObjectAccessError>>;

    /// Writes an object, which expires after `ttl_ms`, or after the node's default.
    fn put_object<'a>(
        &'a self,
        name: &'a Name,
        tensor: &'a Tensor,
        ttl_ms: Option<u64>,
    ) -> BoxFuture<'a, Result<(), ObjectAccessError>>;

    /// Removes an object.
    fn remove_object<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<(), ObjectAccessError>>;
}

/// A model, kept in device memory until this is dropped. Or a workflow, whose models are kept there
/// while it runs.
pub struct OpenedModel {
    /// The name and version.
    pub id: ModelId,
    /// The names, types and shapes of inputs and outputs.
    pub signature: Signature,
    /// Starts runs.
    pub runner: Box<dyn Runner>,
    /// The serving statistics of its runs; `None` for a model that a guest has loaded.
    pub served: Option<Served>,
}

/// Runs an opened model or workflow.
pub trait Runner: Send + Sync + 'static {
    /// Starts a run. Dropping the future stops the run.
    fn run(&self, request: RunRequest) -> BoxFuture<'static, Result<Completion, InferenceError>>;
}

/// The reason why a model was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The manifest does not grant the model.
    #[error("{0}")]
    NotGranted(String),
    /// There is no such model or version.
    #[error("{0}")]
    NotFound(String),
    /// The model cannot be loaded.
    #[error(transparent)]
    Inference(#[from] InferenceError),
}

/// The reason why a guest's model was not loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadModelError {
    /// The model cannot be prepared.
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    /// The model's files cannot be stored.
    #[error("{0}")]
    Files(String),
    /// The model cannot be loaded.
    #[error(transparent)]
    Model(#[from] InferenceError),
}

/// The reason why a function's access to an object failed.
#[derive(Debug, thiserror::Error)]
pub enum ObjectAccessError {
    /// The manifest does not grant the object. The same error whether or not the object exists: its
    /// existence must not leak without a grant.
    #[error("object {0} is not granted to this function (to {1}); add it to objects.{1} in the manifest")]
    NotGranted(Name, &'static str),
    /// The object cannot be read or written.
    #[error("{text}")]
    Object {
        /// The code for programs.
        code: ErrorCode,
        /// The text for people.
        text: String,
    },
}
