//! The node's side of preparing a model: starts a child process and returns its result.

use crate::child::PREPARE_COMMAND;
use crate::config::OnnxRuntimeConfig;
use crate::library::LibraryError;
use crate::protocol::{CheckReply, CheckTask};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weir_child::{ChildCommand, ChildFailure, Limits};
use weir_inference::{PrepareError, Prepared, UploadRefusal};
use weir_types::Precision;

/// Prepares the model in `file` in a child process. Forms for GPUs compute in `precision`. Dropping
/// the future kills the child.
pub(crate) async fn prepare(
    config: &OnnxRuntimeConfig,
    library: &Path,
    (file, precision): (&Path, Precision),
    out: &Path,
) -> Result<Prepared, PrepareError> {
    let command = match &config.prepare_command {
        Some((program, arguments)) => ChildCommand::new(program, arguments.clone()),
        None => ChildCommand::this_program(PREPARE_COMMAND),
    };
    let task = CheckTask {
        library: absolute(library)?,
        model: absolute(file)?,
        precision,
        operators_allowed: config.operators_allowed.clone(),
        out: absolute(out)?,
    };
    let limits =
        Limits { memory_bytes_max: config.prepare_memory_bytes_max, cpu_ms_max: config.prepare_cpu_ms_max };
    match command.run(limits, &task).await {
        Ok(CheckReply::Prepared(prepared)) => Ok(prepared),
        Ok(CheckReply::Refused(refusal)) => Err(refusal.into()),
        Ok(CheckReply::Library { path, why }) => Err(LibraryError::Unusable { path, why }.into()),
        Ok(CheckReply::Failed { action, why }) => Err(io_error(&action, io::Error::other(why))),
        Err(ChildFailure::OverTime) => Err(UploadRefusal::OverTime { cpu_ms_max: limits.cpu_ms_max }.into()),
        Err(ChildFailure::OverMemory) => {
            Err(UploadRefusal::OverMemory { bytes_max: limits.memory_bytes_max }.into())
        }
        Err(ChildFailure::Crashed { how }) => Err(UploadRefusal::Crashed { how }.into()),
        Err(ChildFailure::Io(error)) => Err(io_error("run the process that checks models", error)),
    }
}

fn absolute(path: &Path) -> Result<PathBuf, PrepareError> {
    std::path::absolute(path).map_err(|error| PrepareError::io("find", path, error))
}

fn io_error(action: &str, source: io::Error) -> PrepareError {
    PrepareError::Io { action: action.to_owned(), source: Arc::new(source) }
}
