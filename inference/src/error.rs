//! What can go wrong between asking for a model and having its outputs.

use crate::cpu::LibraryError;
use crate::tensor::TensorError;
use std::sync::Arc;
use weir_device::OutOfMemory;
use weir_types::{ElementType, ErrorCode, ModelId, Port, Shape};

/// Why a model was not loaded or a run has no outputs. Cheap to clone: everyone who waits for one load is told the same.
#[derive(Debug, Clone, thiserror::Error)]
pub enum InferenceError {
    // The request is wrong in itself.
    /// The model has no such input.
    #[error("the model has no input {name:?}; its inputs are {expected}")]
    UnknownInput {
        /// What was given.
        name: String,
        /// The model's inputs, as text.
        expected: String,
    },
    /// An input was given twice.
    #[error("input {0:?} is given twice")]
    DuplicateInput(String),
    /// An input is missing.
    #[error("input {0} is missing")]
    MissingInput(Port),
    /// An input has another element type than the model takes.
    #[error("input {port} is given as {given}")]
    WrongType {
        /// What the model takes.
        port: Port,
        /// What was given.
        given: ElementType,
    },
    /// An input has another shape than the model takes.
    #[error("input {port} is given in shape {given}")]
    WrongShape {
        /// What the model takes.
        port: Port,
        /// What was given.
        given: Shape,
    },
    /// The model has no such output.
    #[error("the model has no output {name:?}; its outputs are {expected}")]
    UnknownOutput {
        /// What was wanted.
        name: String,
        /// The model's outputs, as text.
        expected: String,
    },
    /// An output is wanted twice.
    #[error("output {0:?} is wanted twice")]
    DuplicateOutput(String),
    /// The list of wanted outputs is there, but empty.
    #[error("the list of wanted outputs is empty; leave it out to get all of them")]
    NoOutputs,
    /// The inputs each fit, but not together: the model itself refused them.
    #[error("the model refused its inputs: {0}")]
    Refused(Arc<str>),
    /// Some bytes are not the tensor that they were said to be.
    #[error(transparent)]
    Tensor(#[from] TensorError),

    // Something is used up.
    /// The model does not fit into the device's memory beside what is pinned there.
    #[error(
        "no room for model {model} on the device: it takes {needed_bytes} bytes, {free_bytes} of {capacity_bytes} are free"
    )]
    NoRoom {
        /// Which model.
        model: ModelId,
        /// What it takes.
        needed_bytes: u64,
        /// What is left once the victims are gone.
        free_bytes: u64,
        /// What the device may hold.
        capacity_bytes: u64,
    },
    /// The arena has no room for the outputs.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    /// The run itself needed more memory than there is.
    #[error("the run needs more memory than there is: {0}")]
    RunOutOfMemory(Arc<str>),
    /// Too many runs, or loads, wait for the device.
    #[error("{len_max} runs are waiting for the device already")]
    QueueFull {
        /// The bound.
        len_max: usize,
    },

    // It ended early.
    /// The deadline passed before the outputs were there.
    #[error("the deadline passed before the run finished")]
    DeadlineExceeded,
    /// Nobody waits for the run any more.
    #[error("the run was cancelled")]
    Cancelled,

    // The node.
    /// The device is shutting down, or a load was given up; it may work later.
    #[error("{0}")]
    Unavailable(Arc<str>),
    /// There is no ONNX Runtime to run models with.
    #[error(transparent)]
    Library(#[from] Arc<LibraryError>),
    /// The model's files are damaged, or not what they were when it was prepared.
    #[error("model {model} cannot be loaded: {why}")]
    Load {
        /// Which model.
        model: ModelId,
        /// What the backend said.
        why: Arc<str>,
    },
    /// The device cannot run the model, or not with inputs of these shapes: another may.
    #[error("the model cannot run on this device: {0}")]
    Unsupported(Arc<str>),
    /// The device was lost, with everything in its memory. It is being had again, and other devices do not notice.
    #[error("the device was lost: {0}; try again")]
    DeviceLost(Arc<str>),
    /// A tensor that was left on a device is not there any more.
    #[error("a tensor that another run has left on the device is gone: {0}; try again")]
    TensorLost(Arc<str>),
    /// The backend failed in the run.
    #[error("the run failed: {0}")]
    Run(Arc<str>),

    /// What was run is a workflow, and one of its steps failed.
    #[error("{text}")]
    Step {
        /// How.
        kind: ErrorKind,
        /// Which step, and why.
        text: Arc<str>,
    },
}

/// The cases of the `error` variant in `wit/tensors.wit` that inference can end in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The request is wrong in itself.
    InvalidArgument,
    /// Room or places are used up.
    ResourceExhausted,
    /// The deadline passed first.
    DeadlineExceeded,
    /// The run was cancelled.
    Cancelled,
    /// It may work later.
    Unavailable,
    /// The model failed, or the node has a fault.
    Internal,
}

impl InferenceError {
    /// Which case of the guest's error variant this is.
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
            Self::Unavailable(_) | Self::Library(_) | Self::DeviceLost(_) | Self::TensorLost(_) => {
                ErrorKind::Unavailable
            }
            Self::Load { .. } | Self::Run(_) | Self::Unsupported(_) => ErrorKind::Internal,
            Self::Step { kind, .. } => *kind,
        }
    }

    /// The code for the management and inference APIs.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::QueueFull { .. } => ErrorCode::QueueFull,
            Self::TensorLost(_) => ErrorCode::IntermediateLost,
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
