//! Messages between the node and the child process that prepares a model.

use crate::operators::OperatorPattern;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use weir_inference::{Prepared, UploadRefusal};
use weir_types::Precision;

/// Task for the child.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CheckTask {
    /// Path of ONNX Runtime.
    pub(crate) library: PathBuf,
    /// The uploaded model.
    pub(crate) model: PathBuf,
    /// Precision of the computation on GPUs.
    pub(crate) precision: Precision,
    /// Patterns of further operators that the model may use.
    pub(crate) operators_allowed: Vec<OperatorPattern>,
    /// Output folder.
    pub(crate) out: PathBuf,
}

/// Result of the task.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum CheckReply {
    /// The model is valid; its files are in the folder.
    Prepared(Prepared),
    /// The model is at fault.
    Refused(UploadRefusal),
    /// ONNX Runtime cannot be used.
    Library {
        /// Path of the library.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The node is at fault: a file could not be written.
    Failed {
        /// The operation that failed.
        action: String,
        /// The cause.
        why: String,
    },
}
