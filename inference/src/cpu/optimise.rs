//! Turning an upload into what is loaded later. Runs in the child, under its limits.
//!
//! ```text
//! upload --scan--> --ONNX Runtime, EXTENDED--> skeleton + weights in one file --split--> skeleton, blobs by hash --try--> Prepared
//! ```
//!
//! Hashes are taken after the optimisation, which changes weights: equal uploads still come out equal, since the level does not depend on
//! the processor.

use super::onnx::{self, WholeModel};
use super::runtime::Runtime;
use super::scan::scan;
use super::signature::signature;
use super::value::element_type_numbered;
use super::weights::{Mapping, Weights};
use super::{memory, message, session};
use crate::prepare::{PrepareError, Prepared, Refusal, Weight};
use bytes::Bytes;
use ort::ErrorCode;
use ort::session::Session;
use ort::session::builder::{GraphOptimizationLevel, PrepackedWeights};
use prost::Message;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use weir_types::{ContentHash, Signature};

/// Weights from this size on are kept beside the skeleton, once for all sessions; smaller ones within it.
const BESIDE_BYTES_MIN: u64 = 1 << 10;

/// Weights from this size on have a file of their own, to be shared with other models. Smaller ones have one together: each file takes a
/// mapping, of which a process may have some 65,000.
const OWN_FILE_BYTES_MIN: u64 = 64 << 10;

/// Where a weight may start in a file: whatever reads it may want it aligned.
const ALIGNMENT_BYTES: usize = 64;

/// The name under which ONNX Runtime first writes the skeleton.
const SKELETON_DRAFT: &str = "skeleton.draft";

/// Check and optimise the model in `file`, and write its files to `out`.
pub(super) fn prepare(
    runtime: &Runtime,
    file: &Path,
    out: &Path,
    memory_bytes_max: u64,
) -> Result<Prepared, PrepareError> {
    let upload = Mapping::of(file).map_err(|error| PrepareError::io("read", file, error))?;
    let upload = Bytes::from_owner(upload);
    let scanned = scan(upload.clone(), memory_bytes_max)?;
    if let Some(port) = scanned.graph.iter().flat_map(|graph| &graph.inputs).find(|port| has_no_rank(port)) {
        let what = "a tensor that does not say how many dimensions it has".to_owned();
        return Err(Refusal::UnsupportedPort { port: port.name.clone(), what }.into());
    }
    drop(scanned);

    let files = Files { out };
    let beside = optimise(runtime, &upload, &files, true)?;
    let mut prepared = match split(&files, &beside)? {
        Some(prepared) => prepared,
        // Its weights cannot be told apart by name: each session gets its own.
        None => {
            let within = optimise(runtime, &upload, &files, false)?;
            whole(&files, &within)?
        }
    };
    drop(upload);
    prepared.resident_bytes = try_out(runtime, &prepared, out)?.max(prepared.weight_bytes);
    Ok(prepared)
}

/// The files that are written.
struct Files<'a> {
    out: &'a Path,
}

impl Files<'_> {
    /// ONNX Runtime insists that the file exists to which a skeleton refers for its weights, though it reads none of them from there. It is
    /// empty in the end, and so named by the hash of nothing; before that, it is where ONNX Runtime writes the weights.
    fn placeholder(&self) -> PathBuf {
        self.blob(placeholder_hash())
    }

    fn skeleton_draft(&self) -> PathBuf {
        self.out.join(SKELETON_DRAFT)
    }

    fn blob(&self, hash: ContentHash) -> PathBuf {
        self.out.join(hash.to_string())
    }

    fn write_blob(&self, bytes: &[u8]) -> Result<ContentHash, PrepareError> {
        let hash = ContentHash::of(bytes);
        let path = self.blob(hash);
        // Equal weights are written once.
        if !path.exists() {
            fs::write(&path, bytes).map_err(|error| PrepareError::io("write", &path, error))?;
        }
        Ok(hash)
    }
}

fn placeholder_hash() -> ContentHash {
    ContentHash::of(b"")
}

/// Have ONNX Runtime write the optimised model, with its larger weights beside it or all of them within.
fn optimise(
    runtime: &Runtime,
    upload: &[u8],
    files: &Files<'_>,
    beside: bool,
) -> Result<Signature, PrepareError> {
    // EXTENDED: what comes after that depends on the processor.
    let builder = session::options(runtime, GraphOptimizationLevel::Level2).and_then(|builder| {
        let mut builder =
            builder.with_prepacking(false)?.with_optimized_model_path(files.skeleton_draft())?;
        if beside {
            builder = builder
                .with_config_entry(
                    "session.optimized_model_external_initializers_file_name",
                    placeholder_hash().to_string(),
                )?
                .with_config_entry(
                    "session.optimized_model_external_initializers_min_size_in_bytes",
                    BESIDE_BYTES_MIN.to_string(),
                )?;
        }
        Ok(builder)
    });
    let session = builder
        .and_then(|mut builder| builder.commit_from_memory(upload))
        .map_err(|error| refusal(&error))?;
    Ok(signature(&session)?)
}

/// Write each weight beside the skeleton to the file of its hash. None where two different weights have the same name.
fn split(files: &Files<'_>, signature: &Signature) -> Result<Option<Prepared>, PrepareError> {
    let draft = read_draft(files)?;
    let model = onnx::Model::decode(draft.clone()).map_err(|error| invalid(&error.to_string()))?;
    let mut external = Vec::new();
    model.graph.iter().for_each(|graph| collect_external(graph, &mut external));
    let mut weights: Vec<Weight> = Vec::with_capacity(external.len());
    let mut placeholder = None;
    if !external.is_empty() {
        let path = files.placeholder();
        let io = |error| PrepareError::io("read", &path, error);
        let written = Mapping::of(&path).map_err(io)?;
        let Some(found) = place_weights(files, written.bytes(), &external)? else { return Ok(None) };
        weights = found;
        drop(written);
        // From now on, it is what its name says.
        fs::write(&path, b"").map_err(io)?;
        placeholder = Some(placeholder_hash());
    }
    let skeleton = write_skeleton(files, draft, signature)?;
    let weight_bytes = distinct_bytes(&weights) + within_bytes(files, skeleton);
    let signature = signature.clone();
    Ok(Some(Prepared { signature, weight_bytes, resident_bytes: 0, skeleton, weights, placeholder }))
}

/// Write a model whose weights are all within it.
fn whole(files: &Files<'_>, signature: &Signature) -> Result<Prepared, PrepareError> {
    let _ = fs::remove_file(files.placeholder());
    let skeleton = write_skeleton(files, read_draft(files)?, signature)?;
    let (weights, placeholder, signature) = (Vec::new(), None, signature.clone());
    let weight_bytes = within_bytes(files, skeleton);
    Ok(Prepared { signature, weight_bytes, resident_bytes: 0, skeleton, weights, placeholder })
}

fn place_weights(
    files: &Files<'_>,
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
        let content = ContentHash::of(bytes);
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
            // The file is not whole yet: its hash follows.
            (placeholder_hash(), place)
        };
        let (name, dimensions) = (tensor.name.clone(), tensor.dimensions.clone());
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

/// Load the prepared model as a node would, and see what it takes.
fn try_out(runtime: &Runtime, prepared: &Prepared, out: &Path) -> Result<u64, PrepareError> {
    runtime.trim();
    memory::release_free();
    let before = anonymous_bytes();
    let weights = Weights::map(prepared, out).map_err(|error| invalid(&error.to_string()))?;
    let prepacked = PrepackedWeights::new();
    let skeleton = out.join(prepared.skeleton.to_string());
    let session = session::open(runtime, &skeleton, &weights, &prepacked).map_err(|error| refusal(&error))?;
    check_unchanged(&session, &prepared.signature)?;
    let mapped_bytes = distinct_bytes(&prepared.weights);
    Ok(mapped_bytes + anonymous_bytes().saturating_sub(before))
}

/// The optimised model must take and give what the upload did.
fn check_unchanged(session: &Session, before: &Signature) -> Result<(), Refusal> {
    let after = signature(session)?;
    let names = |signature: &Signature| -> Vec<String> {
        signature.inputs.iter().chain(&signature.outputs).map(|port| port.name.clone()).collect()
    };
    if names(&after) == names(before) {
        return Ok(());
    }
    Err(invalid("optimising it changed its inputs or outputs"))
}

fn read_draft(files: &Files<'_>) -> Result<Bytes, PrepareError> {
    let path = files.skeleton_draft();
    fs::read(&path).map(Bytes::from).map_err(|error| PrepareError::io("read", &path, error))
}

/// Write the skeleton without inputs that only stood for initialisers: in old files every initialiser is an input too, and one that the
/// optimisation has done away with would be left as an input that nobody knows.
fn write_skeleton(
    files: &Files<'_>,
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

fn has_no_rank(port: &onnx::ValueInfo) -> bool {
    let tensor = port.value_type.as_ref().and_then(|value| value.tensor.as_ref());
    tensor.is_some_and(|tensor| tensor.shape.is_none())
}

fn distinct_bytes(weights: &[Weight]) -> u64 {
    let places: HashMap<_, _> =
        weights.iter().map(|weight| ((weight.hash, weight.offset), weight.bytes)).collect();
    places.values().sum()
}

fn within_bytes(files: &Files<'_>, skeleton: ContentHash) -> u64 {
    fs::metadata(files.blob(skeleton)).map_or(0, |file| file.len())
}

/// Memory of this process that no file stands behind.
fn anonymous_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or_default() << 10
}

fn invalid(why: &str) -> Refusal {
    Refusal::Invalid { why: why.to_owned() }
}

/// What ONNX Runtime found wrong with the model.
fn refusal(error: &ort::Error) -> Refusal {
    let why = message::plain(error.message());
    if message::is_out_of_memory(&why) {
        // The child's caller knows how many.
        return Refusal::OverMemory { bytes_max: 0 };
    }
    match error.code() {
        ErrorCode::InvalidProtobuf => Refusal::Malformed { why },
        ErrorCode::NotImplemented => Refusal::UnsupportedOperator { why },
        _ if message::is_unsupported(&why) => Refusal::UnsupportedOperator { why },
        _ => Refusal::Invalid { why },
    }
}
