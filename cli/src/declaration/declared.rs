//! The declared state, complete with the contents of the files that the declaration names.

use clap::ValueEnum;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use weir_types::api::{Canary, TriggerSpec};
use weir_types::{Alias, ContentHash, Cost, FunctionManifest, ModelManifest, ModelRef, Name, Version};

/// Kind of a declared item, in the order in which changes are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    #[value(name = "models")]
    Model,
    #[value(name = "functions")]
    Function,
    #[value(name = "workflows")]
    Workflow,
    /// The aliases of an item. They are deleted with it.
    #[value(skip)]
    Aliases,
    #[value(name = "triggers")]
    Trigger,
}

impl Kind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Function => "function",
            Self::Workflow => "workflow",
            Self::Aliases => "aliases",
            Self::Trigger => "trigger",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Everything that the files of a declaration list.
#[derive(Debug, Clone, Default)]
pub(crate) struct Declared {
    pub(crate) models: BTreeMap<Name, DeclaredModel>,
    pub(crate) functions: BTreeMap<Name, DeclaredFunction>,
    pub(crate) workflows: BTreeMap<Name, DeclaredWorkflow>,
    pub(crate) triggers: BTreeMap<Name, TriggerSpec>,
    /// The aliases of entries that list them.
    pub(crate) aliases: BTreeMap<Aliased, DeclaredAliases>,
}

/// The versions that aliases name.
pub(crate) type DeclaredAliases = BTreeMap<Alias, Version>;

/// An item whose versions have aliases.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Aliased {
    /// Path segment of the collection, such as `models`.
    pub(crate) collection: &'static str,
    pub(crate) name: Name,
}

impl Aliased {
    pub(crate) const MODELS: &'static str = "models";
    pub(crate) const FUNCTIONS: &'static str = "functions";
    pub(crate) const WORKFLOWS: &'static str = "workflows";

    pub(crate) fn new(collection: &'static str, name: &Name) -> Self {
        Self { collection, name: name.clone() }
    }
}

/// A component or a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Content {
    /// A file on this machine.
    File {
        path: PathBuf,
        /// SHA-256 of the bytes that an upload sends.
        digest: ContentHash,
        /// Length of the upload.
        bytes: u64,
    },
    /// The content with this hash, which the node has.
    Stored(ContentHash),
}

impl Content {
    pub(crate) fn digest(&self) -> ContentHash {
        match self {
            Self::File { digest, .. } | Self::Stored(digest) => *digest,
        }
    }

    /// Length of an upload; `None` if there is no file to upload.
    pub(crate) fn bytes(&self) -> Option<u64> {
        match self {
            Self::File { bytes, .. } => Some(*bytes),
            Self::Stored(_) => None,
        }
    }
}

/// A declared function.
#[derive(Debug, Clone)]
pub(crate) struct DeclaredFunction {
    pub(crate) content: Content,
    pub(crate) manifest: FunctionManifest,
    /// The share of the calls that the function gets beside an active version that differs.
    pub(crate) canary: Option<DeclaredCanary>,
}

/// A share of the calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeclaredCanary {
    pub(crate) percent: u8,
    pub(crate) promote_after_ms: Option<u64>,
}

impl DeclaredCanary {
    pub(crate) fn is_share_of(self, canary: &Canary) -> bool {
        self.percent == canary.percent && self.promote_after_ms == canary.promote_after_ms
    }

    /// The query of a deployment.
    pub(crate) fn query(self) -> Vec<(&'static str, String)> {
        let after = self.promote_after_ms.map(|after_ms| ("promote_after_ms", after_ms.to_string()));
        [("canary", self.percent.to_string())].into_iter().chain(after).collect()
    }
}

/// A declared model.
#[derive(Debug, Clone)]
pub(crate) struct DeclaredModel {
    pub(crate) content: Content,
    pub(crate) manifest: ModelManifest,
}

/// A declared workflow.
#[derive(Debug, Clone)]
pub(crate) struct DeclaredWorkflow {
    /// Text of the document, as it is sent.
    pub(crate) document: String,
    pub(crate) slo_ms: Option<u64>,
    pub(crate) cost_slo: Option<Cost>,
    /// Models, functions and workflows that the steps run.
    pub(crate) runs: BTreeSet<ModelRef>,
    /// Whether the steps keep the versions that they run, although newer ones exist.
    pub(crate) keeps_versions: bool,
}
