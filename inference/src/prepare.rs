//! Results of validating and optimising a model at upload.

use crate::footprint::{Footprint, SharedPart};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use weir_types::{ContentHash, ElementType, ErrorCode, Platform, Platforms, Precision, Signature};

/// A validated and optimised model. The registry stores this record with the model. The record
/// lists every file that a load needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prepared {
    /// Inputs and outputs of the model.
    pub signature: Signature,
    /// Bytes of the model's weights after optimisation.
    pub weight_bytes: u64,
    /// Bytes of device memory that the model took in its trial load.
    pub resident_bytes: u64,
    /// Loadable forms of the model; for each platform, the best form first.
    pub variants: Vec<Variant>,
    /// Requested platforms on which the model cannot run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unsupported: Vec<Unsupported>,
}

/// Why a model does not run on the devices of one platform.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unsupported {
    /// The platform.
    pub platform: Platform,
    /// The reason, such as a missing operator.
    pub why: String,
}

/// One loadable form of a model: for one platform, optimised for one kind of processor or for all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variant {
    /// The platform that loads this form.
    #[serde(default)]
    pub platform: Platform,
    /// Format of the skeleton file.
    #[serde(default, skip_serializing_if = "Content::is_network")]
    pub content: Content,
    /// The kind of processor and runtime that can load this form; `None`: all kinds.
    pub only_on: Option<String>,
    /// Precision of the computation, where the platform leaves a choice.
    #[serde(default, skip_serializing_if = "Precision::is_default")]
    pub precision: Precision,
    /// File with the optimised graph, without its large weights.
    pub skeleton: ContentHash,
    /// Weights stored in their own files.
    pub weights: Vec<Weight>,
    /// A file that must exist for loading, although loading reads nothing from it.
    pub placeholder: Option<ContentHash>,
    /// Bytes of the weights.
    pub weight_bytes: u64,
    /// Bytes of device memory that this form took in its trial load.
    pub resident_bytes: u64,
    /// The part of `resident_bytes` that one more session over the same weights took; `None` if not
    /// measured.
    #[serde(default)]
    pub session_bytes: Option<u64>,
}

/// Format of a model file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Content {
    /// A graph of operators.
    #[default]
    Network,
    /// A graph of custom kernels, supplied by the owner.
    KernelGraph,
}

impl Content {
    fn is_network(&self) -> bool {
        *self == Self::Network
    }
}

/// One weight of a model. Each large weight has its own file, so that models with equal weights
/// share the file; the small weights of a model share one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Weight {
    /// Name of the weight in the graph.
    pub name: String,
    /// Element type.
    pub element_type: ElementType,
    /// Size of each dimension.
    pub dimensions: Vec<i64>,
    /// File that holds the weight.
    pub hash: ContentHash,
    /// Offset of the weight in the file, in bytes.
    pub offset: u64,
    /// Length of the weight, in bytes.
    pub bytes: u64,
}

/// A weight file that several models can share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shareable {
    /// Hash of the file.
    pub hash: ContentHash,
    /// Bytes that all models with this file share.
    pub bytes: u64,
    /// Additional bytes for the copy in the layout that kernels want (packed weights). Only models
    /// of one tenant with most of their weights in common share this copy.
    pub packed_bytes: u64,
}

impl Prepared {
    /// Every file that loading any form of the model needs, without duplicates.
    pub fn blobs(&self) -> impl Iterator<Item = ContentHash> {
        each_once(self.variants.iter())
    }

    /// Every file that loading the forms for `platform` needs, without duplicates.
    pub fn blobs_for(&self, platform: Platform) -> impl Iterator<Item = ContentHash> {
        each_once(self.variants_for(platform))
    }

    /// Forms for one platform, the best first.
    pub fn variants_for(&self, platform: Platform) -> impl Iterator<Item = &Variant> {
        self.variants.iter().filter(move |variant| variant.platform == platform)
    }

    /// Platforms for which the model has a form.
    #[must_use]
    pub fn platforms(&self) -> Platforms {
        self.variants.iter().map(|variant| variant.platform).collect()
    }

    /// Format of the model file. All forms of a model have the same format.
    #[must_use]
    pub fn content(&self) -> Content {
        self.variants.first().map(|variant| variant.content).unwrap_or_default()
    }

    /// Why the model has no form for `platform`, if the reason is known.
    #[must_use]
    pub fn why_not(&self, platform: Platform) -> Option<&str> {
        let unsupported = self.unsupported.iter().find(|unsupported| unsupported.platform == platform)?;
        Some(&unsupported.why)
    }

    /// Weight files that other models can share with this model, in the best form for `platform`,
    /// with the device memory of each. Empty if the model has no form for the platform.
    #[must_use]
    pub fn shareable(&self, platform: Platform) -> Vec<Shareable> {
        let Some(variant) = self.variants_for(platform).next() else { return Vec::new() };
        variant.shareable()
    }

    /// The best form for a kind of processor.
    #[must_use]
    pub fn variant_for(&self, processor: &str) -> Option<&Variant> {
        let fits = |variant: &&Variant| variant.only_on.as_deref().is_none_or(|only| only == processor);
        self.variants_for(Platform::Cpu).find(fits)
    }
}

fn each_once<'a>(variants: impl Iterator<Item = &'a Variant>) -> impl Iterator<Item = ContentHash> {
    let mut hashes: Vec<_> = variants.flat_map(Variant::blobs).collect();
    hashes.sort_unstable();
    hashes.dedup();
    hashes.into_iter()
}

impl Variant {
    /// Weight files, each with the number of bytes to read from its start.
    #[must_use]
    pub fn weight_files(&self) -> BTreeMap<ContentHash, u64> {
        let mut files = BTreeMap::new();
        for weight in &self.weights {
            let bytes: &mut u64 = files.entry(weight.hash).or_default();
            *bytes = weight.offset.saturating_add(weight.bytes).max(*bytes);
        }
        files
    }

    /// Device memory of this form. Raw weights count once over all models that have them, and
    /// packed weights count once over all models of a `family`; the memory of an additional session
    /// is the model's own.
    #[must_use]
    pub fn footprint(&self, family: u64) -> Footprint {
        let files = self.shareable();
        let as_they_are = files.iter().map(|file| (SharedPart { hash: file.hash, family: None }, file.bytes));
        let packed = files
            .iter()
            .map(|file| (SharedPart { hash: file.hash, family: Some(family) }, file.packed_bytes));
        let parts: Vec<_> = as_they_are.chain(packed.filter(|(_, bytes)| *bytes > 0)).collect();
        Footprint::new(0, parts).at_least(self.resident_bytes.max(self.weight_bytes))
    }

    fn shareable(&self) -> Vec<Shareable> {
        let files = self.weight_files();
        let file_bytes: u64 = files.values().sum();
        let beside = self.resident_bytes.saturating_sub(file_bytes);
        // If session memory was not measured, only the files count as shared.
        let packed_bytes = self.session_bytes.map_or(0, |session_bytes| beside.saturating_sub(session_bytes));
        let of_file = |(hash, bytes): (ContentHash, u64)| {
            // At most the packed bytes: the product of two sizes in memory fits into 128 bits.
            let share = u128::from(packed_bytes) * u128::from(bytes) / u128::from(file_bytes.max(1));
            Shareable { hash, bytes, packed_bytes: u64::try_from(share).unwrap_or(u64::MAX) }
        };
        files.into_iter().map(of_file).collect()
    }

    fn blobs(&self) -> impl Iterator<Item = ContentHash> {
        self.weights.iter().map(|weight| weight.hash).chain([self.skeleton]).chain(self.placeholder)
    }
}

/// Makes the form of a model for one platform, in the process that checks the upload. Each engine
/// other than ONNX Runtime provides one. The process that checks uploads runs all of them.
#[derive(Debug, Clone, Copy)]
pub struct FormMaker {
    /// The platform.
    pub platform: Platform,
    /// Writes the files of the form of an upload to a folder, named by hash, with weights stored
    /// for the precision.
    pub make: fn(Bytes, Precision, &Path) -> FormResult,
}

/// The form of a model for a platform, or why the model cannot run on the platform.
pub type FormResult = Result<Result<Variant, String>, PrepareError>;

/// Why an upload cannot be served as a model. Every case is the uploader's to fix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "refusal", rename_all = "kebab-case")]
pub enum UploadRefusal {
    /// The bytes are not a model, or end early.
    #[error("the file is not a model: {why}")]
    Malformed {
        /// The defect.
        why: String,
    },
    /// The graph, or the call graph of its functions, has a cycle.
    #[error("the model's graph has a cycle through {through:?}")]
    Cyclic {
        /// A node or function on the cycle.
        through: String,
    },
    /// The model keeps weights in another file.
    #[error("weight {tensor:?} is kept outside the model's file; save the model with all its weights inside")]
    ExternalData {
        /// Name of the weight.
        tensor: String,
    },
    /// A dimension, or the product of several dimensions, is implausibly large.
    #[error("the shape of {tensor:?} is too large: {dimensions:?}")]
    HugeDimension {
        /// Name of the tensor.
        tensor: String,
        /// Its shape.
        dimensions: Vec<i64>,
    },
    /// The model uses an operator that the backend does not have.
    #[error("the model uses an operator that cannot run here: {why}")]
    UnsupportedOperator {
        /// The backend's message.
        why: String,
    },
    /// The node does not allow an operator.
    #[error(
        "the model uses the operator {operator:?} of the domain {domain:?}, which this node does not allow; its operator can with models.operators_allowed = [\"{domain}.{operator}\"]"
    )]
    OperatorNotAllowed {
        /// Name of the operator.
        operator: String,
        /// Its domain.
        domain: String,
    },
    /// An input or output is not a tensor of a type that Weir carries.
    #[error(
        "{port:?} is {what}; only tensors of the Open Inference Protocol's types can go in and out{}",
        port_hint(what)
    )]
    UnsupportedPort {
        /// Name of the input or output.
        port: String,
        /// Its type.
        what: String,
    },
    /// The file is a model, but an inconsistent one.
    #[error("the model is not valid: {why}")]
    Invalid {
        /// The backend's message.
        why: String,
    },
    /// The upload is not a kernel graph, or is an inconsistent one.
    #[error("{why}")]
    KernelGraph {
        /// The defect.
        why: String,
    },
    /// A kernel does not compile.
    #[error("{source_name} does not compile:\n{log}")]
    Compile {
        /// Name of the source file.
        source_name: String,
        /// Output of the compiler.
        log: String,
    },
    /// Preparing the model needs more memory than allowed.
    #[error("preparing the model takes more than {bytes_max} bytes of memory")]
    OverMemory {
        /// The limit.
        bytes_max: u64,
    },
    /// Preparing the model takes more CPU time than allowed.
    #[error("preparing the model takes more than {cpu_ms_max} ms of CPU time")]
    OverTime {
        /// The limit.
        cpu_ms_max: u64,
    },
    /// The process that prepared the model died.
    #[error("the model crashed the process that checked it: {how}")]
    Crashed {
        /// How the process died.
        how: String,
    },
}

/// The remedy for an input or output of type `what`, if there is one.
fn port_hint(what: &str) -> &'static str {
    // The probabilities of classifiers of scikit-learn, one map per item.
    if what.starts_with("Sequence<Map<") {
        "; export models of scikit-learn with options={\"zipmap\": False}"
    } else {
        ""
    }
}

/// Why a model was not prepared.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PrepareError {
    /// The model is at fault.
    #[error(transparent)]
    Refused(#[from] UploadRefusal),
    /// The node has no compiler for the model's kernels.
    #[error("CUDA C cannot be compiled on this node: {0}")]
    Compiler(Arc<str>),
    /// The node lacks a library that checks the model; the text says how to install it.
    #[error("{0}")]
    Library(Arc<str>),
    /// The node is at fault.
    #[error("cannot {action}: {source}")]
    Io {
        /// The operation that failed.
        action: String,
        /// The cause.
        source: Arc<std::io::Error>,
    },
}

impl PrepareError {
    /// The node failed to `action` the file at `path`.
    #[must_use]
    pub fn io(action: &str, path: &Path, source: std::io::Error) -> Self {
        Self::Io { action: format!("{action} {}", path.display()), source: Arc::new(source) }
    }

    /// Error code for the management API.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Refused(UploadRefusal::ExternalData { .. }) => ErrorCode::ExternalData,
            Self::Refused(UploadRefusal::OperatorNotAllowed { .. }) => ErrorCode::OperatorNotAllowed,
            Self::Refused(UploadRefusal::OverMemory { .. } | UploadRefusal::OverTime { .. }) => {
                ErrorCode::ModelLimit
            }
            Self::Refused(UploadRefusal::KernelGraph { .. } | UploadRefusal::Compile { .. }) => {
                ErrorCode::InvalidKernelGraph
            }
            Self::Refused(_) => ErrorCode::InvalidModel,
            Self::Compiler(_) => ErrorCode::NotSupported,
            Self::Library(_) => ErrorCode::Unavailable,
            Self::Io { .. } => ErrorCode::Internal,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_of_maps_names_the_option_of_the_exporter() {
        let text = |what: &str| {
            UploadRefusal::UnsupportedPort { port: "p".to_owned(), what: what.to_owned() }.to_string()
        };
        let maps = text("Sequence<Map<Int64, Float32>>");
        assert!(maps.ends_with("; export models of scikit-learn with options={\"zipmap\": False}"), "{maps}");
        let tensors = text("Sequence<Tensor<Float32>(dyn)>");
        assert!(tensors.ends_with("can go in and out"), "{tensors}");
    }
}
