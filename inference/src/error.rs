//! Errors between acquiring a model and receiving its outputs.

use crate::tensor::TensorError;
use std::sync::Arc;
use weir_device::ArenaExhausted;
use weir_types::{ElementType, ErrorCode, ModelId, Port, Shape};

/// Why a model was not loaded or a run has no outputs. Cheap to clone: all waiters of one load
/// receive the same error.
#[derive(Debug, Clone, thiserror::Error)]
pub enum InferenceError {
    // Invalid requests.
    /// The model has no such input.
    #[error("the model has no input {name:?}; its inputs are {expected}")]
    UnknownInput {
        /// Name of the given input.
        name: String,
        /// The model's inputs, as text.
        expected: String,
    },
    /// The same input is given twice.
    #[error("input {0:?} is given twice")]
    DuplicateInput(String),
    /// An input is missing.
    #[error("input {0} is missing")]
    MissingInput(Port),
    /// An input has a different element type than the model takes.
    #[error("input {port} is given as {given}")]
    WrongType {
        /// The model's input.
        port: Port,
        /// The given type.
        given: ElementType,
    },
    /// An input has a different shape than the model takes.
    #[error("input {port} is given in shape {given}")]
    WrongShape {
        /// The model's input.
        port: Port,
        /// The given shape.
        given: Shape,
    },
    /// The model has no such output.
    #[error("the model has no output {name:?}; its outputs are {expected}")]
    UnknownOutput {
        /// Name of the requested output.
        name: String,
        /// The model's outputs, as text.
        expected: String,
    },
    /// The same output is requested twice.
    #[error("output {0:?} is wanted twice")]
    DuplicateOutput(String),
    /// The list of requested outputs is present but empty.
    #[error("the list of wanted outputs is empty; leave it out to get all of them")]
    NoOutputs,
    /// Each input fits the signature, but the model refused their combination.
    #[error("the model refused its inputs: {0}")]
    Refused(Arc<str>),
    /// The bytes are not a tensor of the stated type and shape.
    #[error(transparent)]
    Tensor(#[from] TensorError),

    // Exhausted resources.
    /// The model does not fit into the device's memory together with the pinned models.
    #[error(
        "no room for model {model} on the device: it takes {needed_bytes} bytes, {free_bytes} of {capacity_bytes} are free"
    )]
    NoRoom {
        /// The model.
        model: ModelId,
        /// Memory that the model takes.
        needed_bytes: u64,
        /// Memory left after evicting the victims.
        free_bytes: u64,
        /// Memory that the device's models may take.
        capacity_bytes: u64,
    },
    /// The arena has no room for the outputs.
    #[error(transparent)]
    OutOfMemory(#[from] ArenaExhausted),
    /// The run needed more memory than the device has.
    #[error("the run needs more memory than there is: {0}")]
    RunOutOfMemory(Arc<str>),
    /// Too many runs, or loads, wait for the device.
    #[error("{len_max} runs are waiting for the device already")]
    QueueFull {
        /// The limit of the queue.
        len_max: usize,
    },

    // Runs that ended early.
    /// The deadline passed before the run finished.
    #[error("the deadline passed before the run finished")]
    DeadlineExceeded,
    /// The caller cancelled the run.
    #[error("the run was cancelled")]
    Cancelled,

    // Faults of the node.
    /// The device is shutting down, or a load was abandoned; a retry may succeed.
    #[error("{0}")]
    Unavailable(Arc<str>),
    /// The node lacks a library that runs the model; the text says how to install it.
    #[error("{0}")]
    Library(Arc<str>),
    /// The model's files are damaged, or have changed since the model was prepared.
    #[error("model {model} cannot be loaded: {why}")]
    Load {
        /// The model.
        model: ModelId,
        /// The backend's message.
        why: Arc<str>,
    },
    /// The device cannot run the model, or cannot run it with inputs of these shapes. Another
    /// device may.
    #[error("the model cannot run on this device: {0}")]
    Unsupported(Arc<str>),
    /// The device was lost, with everything in its memory. The node is recovering it; other devices
    /// are not affected. In errors of the model cache, the run or load had not begun.
    #[error("the device was lost: {0}; try again")]
    DeviceLost(Arc<str>),
    /// The device was lost while it ran or loaded the model, which may be the cause.
    #[error("the device was lost: {0}; try again")]
    DeviceLostInUse(Arc<str>),
    /// The process that ran the model has ended. The model may be the cause.
    #[error("the worker process of the model has ended: {0}; try again")]
    WorkerLost(Arc<str>),
    /// The model is quarantined, because it has ended its worker process repeatedly.
    #[error("model {model} is quarantined: {why}")]
    Quarantined {
        /// The model.
        model: ModelId,
        /// How the worker process ended, and what to do.
        why: Arc<str>,
    },
    /// A tensor that was left on a device no longer exists.
    #[error("a tensor that another run left on the device no longer exists: {0}; try again")]
    TensorLost(Arc<str>),
    /// The backend failed during the run.
    #[error("the run failed: {0}")]
    Run(Arc<str>),

    /// The run was a workflow, and one of its steps failed.
    #[error("{text}")]
    Step {
        /// Kind of the step's error.
        kind: ErrorKind,
        /// The step and the cause.
        text: Arc<str>,
    },
}

/// Cases of the `error` variant in `wit/tensors.wit` that inference can return.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The request is invalid.
    InvalidArgument,
    /// Memory or queue places are exhausted.
    ResourceExhausted,
    /// The deadline passed first.
    DeadlineExceeded,
    /// The run was cancelled.
    Cancelled,
    /// A retry may succeed.
    Unavailable,
    /// The model failed, or the node has a fault.
    Internal,
}

impl InferenceError {
    /// Whether the device was lost, before or during the run or load.
    #[must_use]
    pub fn is_device_loss(&self) -> bool {
        matches!(self, Self::DeviceLost(_) | Self::DeviceLostInUse(_))
    }

    /// The error of a run or load that had begun when it failed with this error.
    pub(crate) fn in_use(self) -> Self {
        match self {
            Self::DeviceLost(why) => Self::DeviceLostInUse(why),
            error => error,
        }
    }

    /// The case of the guest's error variant.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::UnknownInput { .. }
            | Self::DuplicateInput(_)
            | Self::MissingInput(_)
            | Self::WrongType { .. }
            | Self::WrongShape { .. }
            | Self::UnknownOutput { .. }
            | Self::DuplicateOutput(_)
            | Self::NoOutputs
            | Self::Refused(_)
            | Self::Tensor(_) => ErrorKind::InvalidArgument,
            Self::NoRoom { .. } | Self::OutOfMemory(_) | Self::RunOutOfMemory(_) | Self::QueueFull { .. } => {
                ErrorKind::ResourceExhausted
            }
            Self::DeadlineExceeded => ErrorKind::DeadlineExceeded,
            Self::Cancelled => ErrorKind::Cancelled,
            Self::Unavailable(_)
            | Self::Library(_)
            | Self::DeviceLost(_)
            | Self::DeviceLostInUse(_)
            | Self::WorkerLost(_)
            | Self::Quarantined { .. }
            | Self::TensorLost(_) => ErrorKind::Unavailable,
            Self::Load { .. } | Self::Run(_) | Self::Unsupported(_) => ErrorKind::Internal,
            Self::Step { kind, .. } => *kind,
        }
    }

    /// Error code for the management and inference APIs.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::QueueFull { .. } => ErrorCode::QueueFull,
            Self::TensorLost(_) => ErrorCode::IntermediateLost,
            Self::WorkerLost(_) | Self::DeviceLostInUse(_) => ErrorCode::WorkerLost,
            Self::Quarantined { .. } => ErrorCode::ModelQuarantined,
            _ => match self.kind() {
                ErrorKind::InvalidArgument => ErrorCode::InvalidRequest,
                ErrorKind::ResourceExhausted => ErrorCode::NoCapacity,
                ErrorKind::DeadlineExceeded => ErrorCode::DeadlineExceeded,
                ErrorKind::Cancelled => ErrorCode::Cancelled,
                ErrorKind::Unavailable => ErrorCode::Unavailable,
                ErrorKind::Internal => ErrorCode::Internal,
            },
        }
    }
}
