//! The child that reads what nobody has vouched for. It limits itself before it looks at the model, and ends with its parent.

use super::library::LibraryError;
use super::optimise;
use super::protocol::{Answer, Request};
use super::runtime::Runtime;
use crate::prepare::{PrepareError, Refusal};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::io::{self, BufRead, Read, Write};
use std::process::ExitCode;

/// Files that the child may have open at once.
const OPEN_FILES_MAX: u64 = 64;

/// Be the child that prepares one model: the whole of what a process does that was started with [`PREPARE_COMMAND`](super::PREPARE_COMMAND).
///
/// Reads the request from standard input, which must stay open: the process exits when it closes. Writes the answer to standard output.
#[must_use]
pub fn prepare_main() -> ExitCode {
    let mut line = String::new();
    let request =
        io::stdin().lock().read_line(&mut line).and_then(|_| Ok(serde_json::from_str::<Request>(&line)?));
    let answer = request.and_then(|request| {
        limit(&request)?;
        end_with_parent()?;
        Ok(prepare(&request))
    });
    let written = answer.and_then(|answer| {
        let mut line = serde_json::to_vec(&answer)?;
        line.push(b'\n');
        io::stdout().write_all(&line)
    });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing but standard error is left to say it on; the parent reads it.
            let _ = writeln!(io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

fn prepare(request: &Request) -> Answer {
    let runtime = match Runtime::open(&request.library, request.memory_bytes_max) {
        Ok(runtime) => runtime,
        Err(error) => return Answer::Library { path: request.library.clone(), why: why(error) },
    };
    match optimise::prepare(runtime, &request.model, &request.out, request.memory_bytes_max) {
        Ok(prepared) => Answer::Prepared(prepared),
        Err(PrepareError::Refused(Refusal::OverMemory { .. })) => {
            Answer::Refused(Refusal::OverMemory { bytes_max: request.memory_bytes_max })
        }
        Err(PrepareError::Refused(refusal)) => Answer::Refused(refusal),
        Err(PrepareError::Io { source, .. }) if source.kind() == io::ErrorKind::OutOfMemory => {
            Answer::Refused(Refusal::OverMemory { bytes_max: request.memory_bytes_max })
        }
        Err(PrepareError::Io { action, source }) => Answer::Failed { action, why: source.to_string() },
        Err(PrepareError::Library(error)) => {
            Answer::Failed { action: "use ONNX Runtime".to_owned(), why: error.to_string() }
        }
    }
}

fn why(error: LibraryError) -> String {
    match error {
        LibraryError::Unusable { why, .. } => why,
        other => other.to_string(),
    }
}

/// Take no more than the request allows, whatever happens.
fn limit(request: &Request) -> io::Result<()> {
    let exactly = |limit: u64| Rlimit { current: Some(limit), maximum: Some(limit) };
    let seconds = request.time_ms_max.div_ceil(1000).max(1);
    setrlimit(Resource::Core, exactly(0))?;
    setrlimit(Resource::Nofile, exactly(OPEN_FILES_MAX))?;
    setrlimit(Resource::As, exactly(request.memory_bytes_max))?;
    // A small file can unfold into large weights, which are written from memory.
    setrlimit(Resource::Fsize, exactly(request.memory_bytes_max))?;
    // The first kills with a signal that says why; the second, a second later, is for whoever blocks that.
    setrlimit(Resource::Cpu, Rlimit { current: Some(seconds), maximum: Some(seconds.saturating_add(1)) })?;
    Ok(())
}

/// Exit when standard input closes, as it does when the parent dies.
fn end_with_parent() -> io::Result<()> {
    let wait = || {
        let _ = io::stdin().lock().read_to_end(&mut Vec::new());
        std::process::exit(1);
    };
    std::thread::Builder::new().name("parent".to_owned()).stack_size(64 << 10).spawn(wait)?;
    Ok(())
}
