//! Errors in messages between processes.

use serde::{Deserialize, Serialize};
use weir_inference::InferenceError;
use weir_types::ModelId;

/// Error of a load or run in a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WireError {
    /// The model refused its inputs.
    Refused(String),
    /// The run needed more memory than the device has.
    OutOfMemory(String),
    /// The run was cancelled.
    Cancelled,
    /// The model cannot be loaded.
    Load {
        /// The model.
        model: ModelId,
        /// The reason.
        why: String,
    },
    /// A retry may succeed.
    Unavailable(String),
    /// A tensor that was left on the device no longer exists.
    Gone(String),
    /// The device cannot run the model, or not with inputs of these shapes.
    Unsupported(String),
    /// The run failed for another reason.
    Failed(String),
    /// The context is lost, and the worker must be replaced.
    Lost(String),
}

impl WireError {
    /// The message for an error in the worker.
    #[must_use]
    pub fn from_error(error: &InferenceError) -> Self {
        match error {
            InferenceError::Refused(why) => Self::Refused(why.to_string()),
            InferenceError::RunOutOfMemory(why) => Self::OutOfMemory(why.to_string()),
            InferenceError::Cancelled => Self::Cancelled,
            InferenceError::Load { model, why } => Self::Load { model: model.clone(), why: why.to_string() },
            InferenceError::Unavailable(why) => Self::Unavailable(why.to_string()),
            InferenceError::TensorLost(why) => Self::Gone(why.to_string()),
            InferenceError::DeviceLost(why) => Self::Lost(why.to_string()),
            InferenceError::Unsupported(why) => Self::Unsupported(why.to_string()),
            InferenceError::Run(why) => Self::Failed(why.to_string()),
            error => Self::Failed(error.to_string()),
        }
    }

    /// The error in the node.
    #[must_use]
    pub fn into_error(self) -> InferenceError {
        match self {
            Self::Refused(why) => InferenceError::Refused(why.into()),
            Self::OutOfMemory(why) => InferenceError::RunOutOfMemory(why.into()),
            Self::Cancelled => InferenceError::Cancelled,
            Self::Load { model, why } => InferenceError::Load { model, why: why.into() },
            Self::Unavailable(why) => InferenceError::Unavailable(why.into()),
            Self::Gone(why) => InferenceError::TensorLost(why.into()),
            Self::Lost(why) => InferenceError::DeviceLost(why.into()),
            Self::Unsupported(why) => InferenceError::Unsupported(why.into()),
            Self::Failed(why) => InferenceError::Run(why.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{receive, send};
    use weir_types::{Name, TenantId, Version};

    #[test]
    fn errors_keep_kind_and_text_across_processes() {
        let id = ModelId { tenant: TenantId::default(), name: Name::new("m").unwrap(), version: Version(1) };
        for error in [
            InferenceError::Refused("a".into()),
            InferenceError::RunOutOfMemory("b".into()),
            InferenceError::Cancelled,
            InferenceError::Load { model: id, why: "c".into() },
            InferenceError::Unavailable("d".into()),
            InferenceError::TensorLost("t".into()),
            InferenceError::DeviceLost("e".into()),
            InferenceError::Unsupported("u".into()),
            InferenceError::Run("f".into()),
        ] {
            let mut sent = Vec::new();
            send(&mut sent, &WireError::from_error(&error)).unwrap();
            let there = receive::<WireError>(&mut &sent[..]).unwrap().unwrap().into_error();
            assert_eq!((there.to_string(), there.kind()), (error.to_string(), error.kind()));
        }
    }
}
