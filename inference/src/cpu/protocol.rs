//! What the node and the child that prepares a model say to each other.

use crate::prepare::{Prepared, Refusal};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use weir_types::Precision;

/// What the child is to do.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Task {
    /// ONNX Runtime.
    pub(super) library: PathBuf,
    /// The model as it was uploaded.
    pub(super) model: PathBuf,
    /// What it is to compute in on GPUs.
    pub(super) precision: Precision,
    /// The folder to write to.
    pub(super) out: PathBuf,
}

/// What came of it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Answer {
    /// The model is fine; its files are in the folder.
    Prepared(Prepared),
    /// The model is at fault.
    Refused(Refusal),
    /// ONNX Runtime cannot be used.
    Library {
        /// Where it is.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// The node is at fault: a file could not be written.
    Failed {
        /// What was tried.
        action: String,
        /// Why it failed.
        why: String,
    },
}
