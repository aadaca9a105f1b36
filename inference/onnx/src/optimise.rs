//! Optimisation of an upload into loadable forms. Runs in the child process, under its limits.
//!
//! ```text
//! upload --scan--> --ONNX Runtime--> skeleton + weights in one file
//!   --split--> skeleton, blobs by hash --try--> Variant
//! ```
//!
//! The pipeline runs twice: once for any processor (EXTENDED), and once for the current processor
//! (ALL). ALL lays out the weights of convolutions for the processor's vector registers, and runs
//! such networks a fifth faster. A node with a different processor loads the first form. Hashes are
//! computed after the optimisation, because it changes weights.

use crate::onnx;
use crate::operators::check_operators;
use crate::processor::processor;
use crate::protocol::CheckTask;
use crate::runtime::Runtime;
use crate::scan::scan;
use crate::signature::signature;
use crate::split::{SplitFiles, distinct_bytes, invalid, placeholder_hash, split, whole};
use crate::store::WeightStore;
use crate::weights::SessionWeights;
use crate::{memory, message, session};
use bytes::Bytes;
use ort::ErrorCode;
use ort::session::Session;
use ort::session::builder::{GraphOptimizationLevel, PrepackedWeights};
use std::fs;
use weir_inference::{FormMaker, MappedFile, PrepareError, Prepared, Unsupported, UploadRefusal, Variant};
use weir_types::Signature;

/// File with the memory of this process, which the trial load reads.
pub(crate) const MEMORY_STATUS: &str = "/proc/self/status";

/// Weights of at least this size are stored in their own files, once for all sessions; smaller
/// weights are stored in the skeleton.
const BESIDE_BYTES_MIN: u64 = 1 << 10;

/// Checks and optimises a model, and writes its files.
pub(crate) fn prepare(
    runtime: &Runtime,
    task: &CheckTask,
    forms: &[FormMaker],
    memory_bytes_max: u64,
) -> Result<Prepared, PrepareError> {
    let file = task.model.as_path();
    let out = task.out.as_path();
    let upload = MappedFile::open(file).map_err(|error| PrepareError::io("read", file, error))?;
    let upload = Bytes::from_owner(upload);
    let scanned = scan(upload.clone(), memory_bytes_max)?;
    check_operators(&scanned, &task.operators_allowed)?;
    if let Some(port) = scanned.graph.iter().flat_map(|graph| &graph.inputs).find(|port| has_no_rank(port)) {
        let what = "a tensor without a declared number of dimensions".to_owned();
        return Err(UploadRefusal::UnsupportedPort { port: port.name.clone(), what }.into());
    }
    drop(scanned);

    let files = SplitFiles { out };
    // Optimisations beyond EXTENDED depend on the processor.
    let (signature, everywhere) = variant(runtime, &upload, &files, GraphOptimizationLevel::Level2, None)?;
    let weight_bytes = everywhere.weight_bytes;
    let mut resident_bytes = everywhere.resident_bytes;
    let mut variants = vec![everywhere];
    match variant(runtime, &upload, &files, GraphOptimizationLevel::All, Some(processor())) {
        Ok((_, here)) if (here.skeleton, &here.weights) != (variants[0].skeleton, &variants[0].weights) => {
            resident_bytes = resident_bytes.max(here.resident_bytes);
            variants.insert(0, here);
        }
        // If the second form is equal or impossible, the model runs in the first form.
        Ok(_) | Err(PrepareError::Refused(_)) => {}
        Err(error) => return Err(error),
    }
    files.settle_placeholder(&variants)?;
    let unsupported = add_forms(forms, &upload, task, &mut variants)?;
    Ok(Prepared { signature, weight_bytes, resident_bytes, variants, unsupported })
}

/// Adds the forms for other platforms to `variants`. Returns the platforms on which the model
/// cannot run.
fn add_forms(
    forms: &[FormMaker],
    upload: &Bytes,
    task: &CheckTask,
    variants: &mut Vec<Variant>,
) -> Result<Vec<Unsupported>, PrepareError> {
    let mut unsupported = Vec::new();
    for FormMaker { platform, make } in forms {
        match make(upload.clone(), task.precision, &task.out)? {
            Ok(form) => variants.push(form),
            Err(why) => unsupported.push(Unsupported { platform: *platform, why }),
        }
    }
    Ok(unsupported)
}

/// Optimises the upload to a level, and loads the result in a trial.
fn variant(
    runtime: &Runtime,
    upload: &[u8],
    files: &SplitFiles<'_>,
    level: GraphOptimizationLevel,
    only_on: Option<String>,
) -> Result<(Signature, Variant), PrepareError> {
    let signature = optimise(runtime, upload, files, level, true)?;
    let mut variant = match split(files, &signature)? {
        Some(variant) => variant,
        // Weights with ambiguous names cannot be shared: each session gets a copy.
        None => whole(files, &optimise(runtime, upload, files, level, false)?)?,
    };
    let tried = try_out(runtime, &variant, &signature, files)?;
    variant.resident_bytes = tried.resident_bytes.max(variant.weight_bytes);
    variant.session_bytes = Some(tried.session_bytes);
    variant.only_on = only_on;
    Ok((signature, variant))
}

/// Lets ONNX Runtime write the optimised model, with its larger weights in separate files or with
/// all weights inside.
fn optimise(
    runtime: &Runtime,
    upload: &[u8],
    files: &SplitFiles<'_>,
    level: GraphOptimizationLevel,
    beside: bool,
) -> Result<Signature, PrepareError> {
    let builder = session::options(runtime.environment(), level, 1).and_then(|builder| {
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

/// Memory of a model in the trial.
struct Tried {
    resident_bytes: u64,
    /// Memory of one more session.
    session_bytes: u64,
}

/// Loads the prepared model as a node would, and measures its memory.
fn try_out(
    runtime: &Runtime,
    variant: &Variant,
    signature: &Signature,
    files: &SplitFiles<'_>,
) -> Result<Tried, PrepareError> {
    runtime.trim();
    memory::release_free();
    let before = anonymous_bytes();
    let weights = SessionWeights::map(variant, files.out, &WeightStore::default())
        .map_err(|error| invalid(&error.to_string()))?;
    let prepacked = PrepackedWeights::new();
    let skeleton = files.blob(variant.skeleton);
    let open = || session::open(runtime, &skeleton, &weights, &prepacked, 1).map_err(|error| refusal(&error));
    let first = open()?;
    check_unchanged(&first, signature)?;
    // As a node does after it creates a session.
    memory::release_free();
    let with_one = anonymous_bytes();
    // The second session shares all weights in both layouts: its memory is that of another model of
    // the family.
    let second = open()?;
    memory::release_free();
    let session_bytes = anonymous_bytes().saturating_sub(with_one);
    drop(second);
    let resident_bytes = distinct_bytes(&variant.weights) + with_one.saturating_sub(before);
    Ok(Tried { resident_bytes, session_bytes })
}

/// Checks that the optimised model has the same inputs and outputs as the upload.
fn check_unchanged(session: &Session, before: &Signature) -> Result<(), UploadRefusal> {
    let after = signature(session)?;
    let names = |signature: &Signature| -> Vec<String> {
        signature.inputs.iter().chain(&signature.outputs).map(|port| port.name.clone()).collect()
    };
    if names(&after) == names(before) {
        return Ok(());
    }
    Err(invalid("optimising it changed its inputs or outputs"))
}

fn has_no_rank(port: &onnx::ValueInfo) -> bool {
    let tensor = port.value_type.as_ref().and_then(|value| value.tensor.as_ref());
    tensor.is_some_and(|tensor| tensor.shape.is_none())
}

/// Memory of this process that is not backed by a file.
fn anonymous_bytes() -> u64 {
    let status = fs::read_to_string(MEMORY_STATUS).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or_default() << 10
}

fn with_remedy(why: String) -> String {
    match message::remedy(&why) {
        Some(remedy) => format!("{why}; {remedy}"),
        None => why,
    }
}

/// The refusal for an error of ONNX Runtime.
fn refusal(error: &ort::Error) -> UploadRefusal {
    let why = message::plain(error.message());
    if message::is_out_of_memory(&why) {
        // The parent process fills in the limit.
        return UploadRefusal::OverMemory { bytes_max: 0 };
    }
    match error.code() {
        ErrorCode::InvalidProtobuf => UploadRefusal::Malformed { why },
        ErrorCode::NotImplemented => UploadRefusal::UnsupportedOperator { why },
        _ if message::is_unsupported(&why) => UploadRefusal::UnsupportedOperator { why },
        _ => UploadRefusal::Invalid { why: with_remedy(why) },
    }
}
