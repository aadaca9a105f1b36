//! What comes of checking a model at upload.

use crate::footprint::{Footprint, Part};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use weir_types::{ContentHash, ElementType, ErrorCode, Platform, Platforms, Precision, Signature};

/// A model that was checked and optimised. Kept beside it in the registry; names every file that loading needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prepared {
    /// What the model takes and gives.
    pub signature: Signature,
    /// The bytes of its weights after optimisation.
    pub weight_bytes: u64,
    /// The bytes of device memory that it took when it was tried out.
    pub resident_bytes: u64,
    /// The model in the forms that it can be loaded in, the best first of each platform.
    pub variants: Vec<Variant>,
    /// The platforms that it was to run on, and cannot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unsupported: Vec<Unsupported>,
}

/// Why a model does not run on the devices of one platform.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unsupported {
    /// Which.
    pub platform: Platform,
    /// What it lacks there.
    pub why: String,
}

/// A model in the form that one platform takes, optimised for one kind of processor or for all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variant {
    /// What loads it.
    #[serde(default)]
    pub platform: Platform,
    /// What the skeleton is.
    #[serde(default, skip_serializing_if = "Content::is_network")]
    pub content: Content,
    /// The kind of processor, and of runtime, that it can be loaded on; none for all.
    pub only_on: Option<String>,
    /// What it computes in, where its platform leaves a choice.
    #[serde(default, skip_serializing_if = "Precision::is_default")]
    pub precision: Precision,
    /// The file with the optimised graph, without its large weights.
    pub skeleton: ContentHash,
    /// The weights that are kept beside the skeleton.
    pub weights: Vec<Weight>,
    /// A file that loading needs though nothing is read from it, if there is one.
    pub placeholder: Option<ContentHash>,
    /// The bytes of its weights.
    pub weight_bytes: u64,
    /// The bytes of device memory that it took when it was tried out.
    pub resident_bytes: u64,
    /// Those of them that one more session over the same weights took; none where that was not measured.
    #[serde(default)]
    pub session_bytes: Option<u64>,
}

/// What the file of a model is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Content {
    /// A graph of operators.
    #[default]
    Network,
    /// A graph of kernels that its owner brought.
    KernelGraph,
}

impl Content {
    fn is_network(&self) -> bool {
        *self == Self::Network
    }
}

/// One weight of a model. Large ones have a file each, so that equal weights of different models are stored once; the small ones of a
/// model share a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Weight {
    /// Its name in the graph.
    pub name: String,
    /// The type of its elements.
    pub element_type: ElementType,
    /// The size of each dimension.
    pub dimensions: Vec<i64>,
    /// The file that holds it.
    pub hash: ContentHash,
    /// Where in the file it starts.
    pub offset: u64,
    /// How long it is.
    pub bytes: u64,
}

/// A file of weights that models can have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shareable {
    /// Which.
    pub hash: ContentHash,
    /// What all models that have it share.
    pub bytes: u64,
    /// What it takes besides in the form that kernels want, which only models of a tenant share that have most of their weights in common.
    pub packed_bytes: u64,
}

impl Prepared {
    /// Every file that loading the model needs, in whichever form, each once.
    pub fn blobs(&self) -> impl Iterator<Item = ContentHash> {
        each_once(self.variants.iter())
    }

    /// The same for one platform.
    pub fn blobs_for(&self, platform: Platform) -> impl Iterator<Item = ContentHash> {
        each_once(self.variants_for(platform))
    }

    /// The forms for one platform, the best first.
    pub fn variants_for(&self, platform: Platform) -> impl Iterator<Item = &Variant> {
        self.variants.iter().filter(move |variant| variant.platform == platform)
    }

    /// The platforms that it has a form for.
    #[must_use]
    pub fn platforms(&self) -> Platforms {
        self.variants.iter().map(|variant| variant.platform).collect()
    }

    /// What it was made of: all of its forms are of one kind.
    #[must_use]
    pub fn content(&self) -> Content {
        self.variants.first().map(|variant| variant.content).unwrap_or_default()
    }

    /// Why it has no form for a platform, if that is known.
    #[must_use]
    pub fn why_not(&self, platform: Platform) -> Option<&str> {
        let unsupported = self.unsupported.iter().find(|unsupported| unsupported.platform == platform)?;
        Some(&unsupported.why)
    }

    /// What several models can have in common with it, in the form of one platform: the files of its weights, and what each takes of a
    /// device's memory. None where there is no form for that platform.
    #[must_use]
    pub fn shareable(&self, platform: Platform) -> Vec<Shareable> {
        let Some(variant) = self.variants_for(platform).next() else { return Vec::new() };
        variant.shareable()
    }

    /// The best form for a kind of processor.
    pub(crate) fn variant_for(&self, processor: &str) -> Option<&Variant> {
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
    /// The files of its weights, and what is read of each.
    pub(crate) fn weight_files(&self) -> BTreeMap<ContentHash, u64> {
        let mut files = BTreeMap::new();
        for weight in &self.weights {
            let bytes: &mut u64 = files.entry(weight.hash).or_default();
            *bytes = weight.offset.saturating_add(weight.bytes).max(*bytes);
        }
        files
    }

    /// What it takes of the memory of a device. Weights count once over all models that have them, and once over all of a `family` in the
    /// form that kernels want; what one more session took is its own.
    pub(crate) fn footprint(&self, family: u64) -> Footprint {
        let files = self.shareable();
        let as_they_are = files.iter().map(|file| (Part { hash: file.hash, family: None }, file.bytes));
        let packed =
            files.iter().map(|file| (Part { hash: file.hash, family: Some(family) }, file.packed_bytes));
        let parts: Vec<_> = as_they_are.chain(packed.filter(|(_, bytes)| *bytes > 0)).collect();
        Footprint::new(0, parts).at_least(self.resident_bytes.max(self.weight_bytes))
    }

    fn shareable(&self) -> Vec<Shareable> {
        let files = self.weight_files();
        let file_bytes: u64 = files.values().sum();
        let beside = self.resident_bytes.saturating_sub(file_bytes);
        // Where it was not measured, nothing but the files is taken to be shared.
        let packed_bytes = self.session_bytes.map_or(0, |session_bytes| beside.saturating_sub(session_bytes));
        let of_file = |(hash, bytes): (ContentHash, u64)| {
            // At most what was packed: a product of two sizes in memory fits.
            let share = u128::from(packed_bytes) * u128::from(bytes) / u128::from(file_bytes.max(1));
            Shareable { hash, bytes, packed_bytes: u64::try_from(share).unwrap_or(u64::MAX) }
        };
        files.into_iter().map(of_file).collect()
    }

    fn blobs(&self) -> impl Iterator<Item = ContentHash> {
        self.weights.iter().map(|weight| weight.hash).chain([self.skeleton]).chain(self.placeholder)
    }
}

/// Why bytes cannot be served as a model. Each is the uploader's to mend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "refusal", rename_all = "kebab-case")]
pub enum Refusal {
    /// The bytes are not a model at all, or end early.
    #[error("the file is not a model: {why}")]
    Malformed {
        /// What is wrong.
        why: String,
    },
    /// The graph, or its functions, lead back to themselves.
    #[error("the model's graph has a cycle through {through:?}")]
    Cyclic {
        /// A node or function on the cycle.
        through: String,
    },
    /// The model keeps weights in another file.
    #[error("weight {tensor:?} is kept outside the model's file; save the model with all its weights inside")]
    ExternalData {
        /// Which weight.
        tensor: String,
    },
    /// A dimension, or the product of several, is too large to be real.
    #[error("the shape of {tensor:?} is too large: {dimensions:?}")]
    HugeDimension {
        /// Whose shape.
        tensor: String,
        /// The shape.
        dimensions: Vec<i64>,
    },
    /// The model uses an operator that the backend does not have.
    #[error("the model uses an operator that cannot run here: {why}")]
    UnsupportedOperator {
        /// Which, in the backend's words.
        why: String,
    },
    /// An input or output is not a tensor of a type that Weir carries.
    #[error("{port:?} is {what}; only tensors of the Open Inference Protocol's types can go in and out")]
    UnsupportedPort {
        /// Which input or output.
        port: String,
        /// What it is.
        what: String,
    },
    /// It is a model, but one that contradicts itself.
    #[error("the model is not valid: {why}")]
    Invalid {
        /// What the backend said.
        why: String,
    },
    /// It is no kernel graph, or one that contradicts itself.
    #[error("{why}")]
    KernelGraph {
        /// What is wrong.
        why: String,
    },
    /// A kernel does not compile.
    #[error("{source_name} does not compile:\n{log}")]
    Compile {
        /// The file.
        source_name: String,
        /// What the compiler says.
        log: String,
    },
    /// Preparing it needs more memory than is allowed.
    #[error("preparing the model takes more than {bytes_max} bytes of memory")]
    OverMemory {
        /// What is allowed.
        bytes_max: u64,
    },
    /// Preparing it takes longer than is allowed.
    #[error("preparing the model takes longer than {time_ms_max} ms")]
    OverTime {
        /// What is allowed.
        time_ms_max: u64,
    },
    /// The process that prepared it died.
    #[error("the model crashed the process that checked it: {how}")]
    Crashed {
        /// How it died.
        how: String,
    },
}

/// Why a model was not prepared.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PrepareError {
    /// The model is at fault.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// There is no compiler for its kernels.
    #[error("CUDA C cannot be compiled on this node: {0}")]
    Compiler(Arc<str>),
    /// There is no ONNX Runtime to check it with.
    #[error(transparent)]
    Library(#[from] Arc<crate::cpu::LibraryError>),
    /// The node is at fault.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was tried.
        action: String,
        /// Why it failed.
        source: Arc<std::io::Error>,
    },
}

impl PrepareError {
    pub(crate) fn io(action: &str, path: &Path, source: std::io::Error) -> Self {
        Self::Io { action: format!("{action} {}", path.display()), source: Arc::new(source) }
    }

    /// The code for the management API.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Refused(Refusal::ExternalData { .. }) => ErrorCode::ExternalData,
            Self::Refused(Refusal::OverMemory { .. } | Refusal::OverTime { .. }) => ErrorCode::ModelLimit,
            Self::Refused(Refusal::KernelGraph { .. } | Refusal::Compile { .. }) => {
                ErrorCode::InvalidKernelGraph
            }
            Self::Refused(_) => ErrorCode::InvalidModel,
            Self::Compiler(_) => ErrorCode::NotSupported,
            Self::Library(_) => ErrorCode::Unavailable,
            Self::Io { .. } => ErrorCode::Internal,
        }
    }
}
