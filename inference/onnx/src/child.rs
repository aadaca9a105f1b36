//! The child process that reads an untrusted upload.

use crate::library::LibraryError;
use crate::optimise;
use crate::protocol::{CheckReply, CheckTask};
use crate::runtime::Runtime;
use std::io;
use std::process::ExitCode;
use weir_child::Confinement;
use weir_inference::{FormMaker, PrepareError, UploadRefusal};

/// Argument that makes `weir` a child process that prepares a model: it then only calls
/// [`prepare_main`].
pub const PREPARE_COMMAND: &str = "__prepare-model";

/// Main function of the child process that prepares one model: the only work of a process started
/// with [`PREPARE_COMMAND`]. The model also gets the forms that `forms` makes.
#[must_use]
pub fn prepare_main(forms: &[FormMaker]) -> ExitCode {
    let access = |task: &CheckTask| {
        // An error is reported when the library is opened.
        let _ = Runtime::preload(&task.library);
        let readable = vec![task.library.clone(), task.model.clone(), optimise::MEMORY_STATUS.into()];
        Some(Confinement { readable, writable: vec![task.out.clone()] })
    };
    weir_child::serve(access, |task: CheckTask, limits| prepare(&task, forms, limits.memory_bytes_max))
}

fn prepare(task: &CheckTask, forms: &[FormMaker], memory_bytes_max: u64) -> CheckReply {
    let runtime = match Runtime::open(&task.library, memory_bytes_max) {
        Ok(runtime) => runtime,
        Err(error) => return CheckReply::Library { path: task.library.clone(), why: why(error) },
    };
    match optimise::prepare(runtime, task, forms, memory_bytes_max) {
        Ok(prepared) => CheckReply::Prepared(prepared),
        Err(PrepareError::Refused(UploadRefusal::OverMemory { .. })) => {
            CheckReply::Refused(UploadRefusal::OverMemory { bytes_max: memory_bytes_max })
        }
        Err(PrepareError::Refused(refusal)) => CheckReply::Refused(refusal),
        Err(PrepareError::Io { source, .. }) if source.kind() == io::ErrorKind::OutOfMemory => {
            CheckReply::Refused(UploadRefusal::OverMemory { bytes_max: memory_bytes_max })
        }
        Err(PrepareError::Io { action, source }) => CheckReply::Failed { action, why: source.to_string() },
        Err(PrepareError::Compiler(why)) => {
            CheckReply::Failed { action: "compile kernels".to_owned(), why: why.as_ref().to_owned() }
        }
        Err(PrepareError::Library(error)) => {
            CheckReply::Failed { action: "use ONNX Runtime".to_owned(), why: error.as_ref().to_owned() }
        }
    }
}

fn why(error: LibraryError) -> String {
    match error {
        LibraryError::Unusable { why, .. } => why,
        other => other.to_string(),
    }
}
