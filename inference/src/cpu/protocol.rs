//! What the node and the child that prepares a model say to each other: one line of JSON on the child's standard input, which stays open
//! for as long as the child shall live, and one on its standard output.

use crate::prepare::{Prepared, Refusal};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The longest answer that is read: a few hundred bytes for each of many thousand weights.
pub(super) const ANSWER_BYTES_MAX: u64 = 32 << 20;

/// What the child is to do.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Request {
    /// ONNX Runtime.
    pub(super) library: PathBuf,
    /// The model as it was uploaded.
    pub(super) model: PathBuf,
    /// The folder to write to.
    pub(super) out: PathBuf,
    /// Address space that the child may take.
    pub(super) memory_bytes_max: u64,
    /// Processor time that the child may take.
    pub(super) time_ms_max: u64,
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
