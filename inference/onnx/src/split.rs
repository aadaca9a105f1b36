//! Stored form of an optimised model: a skeleton, and weights in files named by their hash.

use crate::onnx::{self, WholeModel};
use crate::value::element_type_numbered;
use bytes::Bytes;
use prost::Message;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use weir_inference::{Content, MappedFile, PrepareError, UploadRefusal, Variant, Weight};
use weir_types::{ContentHash, Platform, Precision, Signature};

/// Weights of at least this size have separate files, in order to be shared with other models.
/// Smaller weights of a model share one file: each file needs a mapping, and a process can have
/// about 65,000 mappings.
const OWN_FILE_BYTES_MIN: u64 = 64 << 10;

/// Alignment of each weight in its file, since readers may need it.
const ALIGNMENT_BYTES: usize = 64;

/// Name of the skeleton as ONNX Runtime first writes it.
const SKELETON_DRAFT: &str = "skeleton.draft";

/// The output folder and its files.
pub(crate) struct SplitFiles<'a> {
    pub(crate) out: &'a Path,
}

impl SplitFiles<'_> {
    /// Path of the placeholder. ONNX Runtime requires the file that a skeleton names for its
    /// weights to exist, although it reads nothing from it. The final file is empty, and so named
    /// by the hash of nothing; before that, ONNX Runtime writes the weights there.
    pub(crate) fn placeholder(&self) -> PathBuf {
        self.blob(placeholder_hash())
    }

    /// Empties the placeholder, or removes it if no variant needs it.
    pub(crate) fn settle_placeholder(&self, variants: &[Variant]) -> Result<(), PrepareError> {
        let path = self.placeholder();
        let settled = if variants.iter().any(|variant| variant.placeholder.is_some()) {
            fs::write(&path, b"")
        } else {
            fs::remove_file(&path)
                .or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
        };
        settled.map_err(|error| PrepareError::io("write", &path, error))
    }

    pub(crate) fn skeleton_draft(&self) -> PathBuf {
        self.out.join(SKELETON_DRAFT)
    }

    pub(crate) fn blob(&self, hash: ContentHash) -> PathBuf {
        self.out.join(hash.to_string())
    }

    fn write_blob(&self, bytes: &[u8]) -> Result<ContentHash, PrepareError> {
        let hash = ContentHash::from_content(bytes);
        let path = self.blob(hash);
        // Equal weights are written once.
        if !path.exists() {
            fs::write(&path, bytes).map_err(|error| PrepareError::io("write", &path, error))?;
        }
        Ok(hash)
    }
}

pub(crate) fn placeholder_hash() -> ContentHash {
    ContentHash::from_content(b"")
}

/// Writes each external weight of the draft to the file named by its hash. `None` if two different
/// weights have the same name.
pub(crate) fn split(files: &SplitFiles<'_>, signature: &Signature) -> Result<Option<Variant>, PrepareError> {
    let draft = read_draft(files)?;
    let model = onnx::Model::decode(draft.clone()).map_err(|error| invalid(&error.to_string()))?;
    let mut external = Vec::new();
    model.graph.iter().for_each(|graph| collect_external(graph, &mut external));
    let mut weights: Vec<Weight> = Vec::with_capacity(external.len());
    let mut placeholder = None;
    if !external.is_empty() {
        let path = files.placeholder();
        let io = |error| PrepareError::io("read", &path, error);
        let written = MappedFile::open(&path).map_err(io)?;
        let Some(found) = place_weights(files, written.bytes(), &external)? else { return Ok(None) };
        weights = found;
        drop(written);
        // The empty file now matches its name.
        fs::write(&path, b"").map_err(io)?;
        placeholder = Some(placeholder_hash());
    }
    let skeleton = write_skeleton(files, draft, signature)?;
    let weight_bytes = distinct_bytes(&weights) + within_bytes(files, skeleton);
    let platform = Platform::Cpu;
    let only_on = None;
    let resident_bytes = 0;
    let session_bytes = None;
    Ok(Some(Variant {
        platform,
        content: Content::Network,
        precision: Precision::default(),
        only_on,
        skeleton,
        weights,
        placeholder,
        weight_bytes,
        resident_bytes,
        session_bytes,
    }))
}

/// Writes a model with all weights inside the skeleton.
pub(crate) fn whole(files: &SplitFiles<'_>, signature: &Signature) -> Result<Variant, PrepareError> {
    let skeleton = write_skeleton(files, read_draft(files)?, signature)?;
    let weight_bytes = within_bytes(files, skeleton);
    Ok(Variant {
        platform: Platform::Cpu,
        content: Content::Network,
        only_on: None,
        precision: Precision::default(),
        skeleton,
        weights: Vec::new(),
        placeholder: None,
        weight_bytes,
        resident_bytes: 0,
        session_bytes: None,
    })
}

fn place_weights(
    files: &SplitFiles<'_>,
    written: &[u8],
    external: &[&onnx::Tensor],
) -> Result<Option<Vec<Weight>>, PrepareError> {
    let mut weights: Vec<Weight> = Vec::with_capacity(external.len());
    let mut small = Vec::new();
    let mut small_places: HashMap<ContentHash, u64> = HashMap::new();
    let mut known: HashMap<&str, ContentHash> = HashMap::new();
    for tensor in external {
        let Some(element_type) = element_type_numbered(tensor.data_type) else { return Ok(None) };
        let bytes =
            external_bytes(tensor, written).ok_or_else(|| invalid("a weight lies outside its file"))?;
        let content = ContentHash::from_content(bytes);
        match known.insert(&tensor.name, content) {
            None => {}
            Some(same) if same == content => continue,
            Some(_) => return Ok(None),
        }
        let (hash, offset) = if bytes.len() as u64 >= OWN_FILE_BYTES_MIN {
            (files.write_blob(bytes)?, 0)
        } else {
            let place = *small_places.entry(content).or_insert_with(|| {
                small.resize(small.len().next_multiple_of(ALIGNMENT_BYTES), 0);
                let start = small.len() as u64;
                small.extend_from_slice(bytes);
                start
            });
            // The file is not complete yet; its hash is set later.
            (placeholder_hash(), place)
        };
        let name = tensor.name.clone();
        let dimensions = tensor.dimensions.clone();
        weights.push(Weight { name, element_type, dimensions, hash, offset, bytes: bytes.len() as u64 });
    }
    if !small.is_empty() {
        let hash = files.write_blob(&small)?;
        weights
            .iter_mut()
            .filter(|weight| weight.hash == placeholder_hash())
            .for_each(|weight| weight.hash = hash);
    }
    Ok(Some(weights))
}

fn read_draft(files: &SplitFiles<'_>) -> Result<Bytes, PrepareError> {
    let path = files.skeleton_draft();
    fs::read(&path).map(Bytes::from).map_err(|error| PrepareError::io("read", &path, error))
}

/// Writes the skeleton without inputs that only declare initialisers. In old files every
/// initialiser is also an input; an initialiser that the optimisation removed would remain as an
/// unknown input.
fn write_skeleton(
    files: &SplitFiles<'_>,
    draft: Bytes,
    signature: &Signature,
) -> Result<ContentHash, PrepareError> {
    let mut model = WholeModel::decode(draft).map_err(|error| invalid(&error.to_string()))?;
    let known: HashSet<&str> = signature.inputs.iter().map(|port| port.name.as_str()).collect();
    if let Some(graph) = &mut model.graph {
        graph.inputs.retain(|input| match onnx::ValueInfo::decode(input.clone()) {
            Ok(input) => known.contains(input.name.as_str()),
            Err(_) => true,
        });
    }
    let skeleton = files.write_blob(&model.encode_to_vec())?;
    let draft = files.skeleton_draft();
    fs::remove_file(&draft).map_err(|error| PrepareError::io("remove", &draft, error))?;
    Ok(skeleton)
}

fn collect_external<'a>(graph: &'a onnx::Graph, found: &mut Vec<&'a onnx::Tensor>) {
    found.extend(graph.initialisers.iter().filter(|tensor| tensor.is_external()));
    graph.nodes.iter().flat_map(onnx::Node::graphs).for_each(|graph| collect_external(graph, found));
}

fn external_bytes<'a>(tensor: &onnx::Tensor, written: &'a [u8]) -> Option<&'a [u8]> {
    let start = usize::try_from(tensor.external_number("offset")?).ok()?;
    let len = usize::try_from(tensor.external_number("length")?).ok()?;
    written.get(start..start.checked_add(len)?)
}

pub(crate) fn distinct_bytes(weights: &[Weight]) -> u64 {
    let places: HashMap<_, _> =
        weights.iter().map(|weight| ((weight.hash, weight.offset), weight.bytes)).collect();
    places.values().sum()
}

fn within_bytes(files: &SplitFiles<'_>, skeleton: ContentHash) -> u64 {
    fs::metadata(files.blob(skeleton)).map_or(0, |file| file.len())
}

pub(crate) fn invalid(why: &str) -> UploadRefusal {
    UploadRefusal::Invalid { why: why.to_owned() }
}
