//! Errors of the registry of models.

use super::{ModelPushError, VERSIONS_MAX};
use crate::aliases::AliasError;
use weir_storage::CutOff;
use weir_types::{DeviceChoice, LabelsError, ModelId, Name, Version};

/// An error while reading or changing the registry of models.
#[derive(Debug, thiserror::Error)]
pub enum ModelsError {
    /// The tenant has no model with this name.
    #[error("there is no model {0}; `weir models list` lists them")]
    NoModel(Name),
    /// The model exists, but not in the requested version.
    #[error("model {name} has no version {version}; it has {have}")]
    NoVersion {
        /// The model's name.
        name: Name,
        /// The requested version.
        version: Version,
        /// The existing versions, separated by commas.
        have: String,
    },
    /// A push of an existing version has different content or settings.
    #[error(
        "version {version} of model {name} exists with another file or other settings; versions never change, push another number"
    )]
    Exists {
        /// The model's name.
        name: Name,
        /// The existing version.
        version: Version,
    },
    /// The active version was deleted, and no other may replace it.
    #[error("model {0} has no active version; push one, or name a version")]
    NoActive(Name),
    /// The model has no canary, or not the expected one.
    #[error(
        "model {0} has no canary; push one with a share of the runs: weir models push {0} FILE --canary PERCENT"
    )]
    NoCanary(Name),
    /// The model has no shadow.
    #[error(
        "model {0} has no shadow; push one with a percentage of the inferences: weir models push {0} FILE --shadow PERCENT"
    )]
    NoShadow(Name),
    /// The version of a canary or shadow is not newer than all others.
    #[error(
        "version {version} of model {name} cannot be a canary or a shadow, which is newer than all other versions; push it without a number"
    )]
    NotNewer {
        /// The model's name.
        name: Name,
        /// The version.
        version: Version,
    },
    /// The deletion of a canary, of a shadow, or of the active version beside them, was requested.
    #[error(
        "version {version} of model {name} is the canary, the shadow, or the active version beside them; end these first: weir models rollback {name}"
    )]
    InTrial {
        /// The model's name.
        name: Name,
        /// The version.
        version: Version,
    },
    /// The deletion of a version was requested that only canaries that were rolled back could
    /// replace.
    #[error(
        "version {version} of model {name} is active, and no earlier version could replace it; push another version first, or delete the model"
    )]
    LastActive {
        /// The model's name.
        name: Name,
        /// The version.
        version: Version,
    },
    /// An alias names no version, or was not changed.
    #[error(transparent)]
    Alias(#[from] AliasError),
    /// The version's record or files are damaged.
    #[error("model {}:{} cannot be read on this node: {why}; push it again, or delete it", id.name, id.version)]
    Damaged {
        /// The damaged version.
        id: ModelId,
        /// The reason why the version cannot be read.
        why: String,
    },
    /// The push changes inputs or outputs of the active version.
    #[error("the push changes inputs or outputs of {name}:{active}: {changes}")]
    SignatureChanged {
        /// The model's name.
        name: Name,
        /// The active version.
        active: Version,
        /// The differences.
        changes: String,
    },
    /// The labels do not fit the model.
    #[error(transparent)]
    Labels(#[from] LabelsError),
    /// The name has reached the limit of versions.
    #[error("model {0} has {VERSIONS_MAX} versions; delete old ones first")]
    TooManyVersions(Name),
    /// The name has a version with the last number.
    #[error("model {0} has version {max}, the last number; push with a lower number that is free: weir models push {0} FILE --version N", max = u32::MAX)]
    NoNextVersion(Name),
    /// A concurrent change of the same model was first.
    #[error("another request changed model {0} at the same time; try again")]
    Conflict(Name),
    /// The name belongs to the other kind of content, a model or a kernel graph.
    #[error("{1} with the name {0} exists; choose another name, or remove it first")]
    OtherKind(Name, &'static str),
    /// The tenant has no kernel graph with this name.
    #[error("there is no kernel graph {0}; `weir kernel-graphs` lists them")]
    NoKernelGraph(Name),
    /// The node does not accept kernel graphs.
    #[error(
        "kernel graphs are disabled on this node, because they run users' code on a device; the operator enables them with `[node.kernel_graphs] enabled = true` in weir.toml"
    )]
    KernelGraphsOff,
    /// A rollback was requested, and the name has no version before its active one.
    #[error("{0} has no version before its active one to roll back to")]
    NothingBefore(Name),
    /// No device that the manifest allows can run the model.
    #[error("the model cannot run on device = \"{0}\": {1}")]
    NotThere(DeviceChoice, String),
    /// The model was not prepared, stored or read.
    #[error(transparent)]
    Push(#[from] ModelPushError),
    /// The autosize settings in the manifest are invalid.
    #[error(transparent)]
    Autosize(#[from] weir_types::AutosizeError),
    /// The batching settings in the manifest are invalid.
    #[error(transparent)]
    Batching(#[from] weir_types::BatchingError),
    /// A request to the datastore failed.
    #[error(transparent)]
    Datastore(#[from] weir_datastore::Error),
    /// The change was not completed, because it panicked or the node stopped.
    #[error(transparent)]
    CutOff(#[from] CutOff),
}
