//! Compiling CUDA C, in a limited child: the compiler is told nothing but the source, and its words are for the source's author.

use crate::prepare::{PrepareError, Refusal};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use weir_child::{Command, Failure, Limits};
use weir_device::cuda::{Nvrtc, Search};

/// The hidden subcommand that a node starts itself with.
pub const COMPILE_COMMAND: &str = "__compile-kernels";

/// What a compilation may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct CompileLimits {
    pub(super) memory_bytes_max: u64,
    pub(super) time_ms_max: u64,
}

/// What the child is to do.
#[derive(Debug, Serialize, Deserialize)]
struct Task {
    /// Where NVRTC may be.
    folders: Vec<PathBuf>,
    /// Files by name.
    sources: Vec<(String, String)>,
}

/// What came of it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Answer {
    /// The PTX of each.
    Compiled(Vec<(String, String)>),
    /// One does not compile.
    Refused { name: String, log: String },
    /// There is no compiler.
    NoCompiler(String),
}

/// Have a child compile these files. It is killed when the future drops.
pub(super) async fn compile(
    sources: Vec<(String, String)>,
    limits: CompileLimits,
) -> Result<Vec<(String, String)>, PrepareError> {
    let task = Task { folders: Search::from_environment().folders, sources };
    let CompileLimits { memory_bytes_max, time_ms_max } = limits;
    let limits = Limits { memory_bytes_max, cpu_time_ms_max: time_ms_max };
    let source_name = task.sources.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
    let over = |log: String| Err(Refusal::Compile { source_name, log }.into());
    match Command::this_program(COMPILE_COMMAND).run(limits, &task).await {
        Ok(Answer::Compiled(compiled)) => Ok(compiled),
        Ok(Answer::Refused { name, log }) => Err(Refusal::Compile { source_name: name, log }.into()),
        Ok(Answer::NoCompiler(why)) => Err(PrepareError::Compiler(why.into())),
        Err(Failure::OverTime) => {
            over(format!("it takes longer than {time_ms_max} ms (kernel_graphs.compile_time_ms_max)"))
        }
        Err(Failure::OverMemory) => over(format!(
            "it takes more than {memory_bytes_max} bytes of memory (kernel_graphs.compile_memory_bytes_max)"
        )),
        Err(Failure::Crashed { how }) => over(format!("it crashed the compiler: {how}")),
        Err(Failure::Io(error)) => Err(PrepareError::Io {
            action: "run the process that compiles kernels".to_owned(),
            source: Arc::new(io::Error::other(error)),
        }),
    }
}

/// Be the child that compiles kernels: the whole of what a process does that was started with [`COMPILE_COMMAND`].
#[must_use]
pub fn compile_main() -> ExitCode {
    weir_child::serve(|task: Task, _| compile_here(&task))
}

fn compile_here(Task { folders, sources }: &Task) -> Answer {
    let search = Search { folders: folders.clone(), ..Search::default() };
    let nvrtc = match Nvrtc::find(&search) {
        Ok(nvrtc) => nvrtc,
        Err(unavailable) => {
            let why = format!("{unavailable}; or push PTX, as `nvcc -ptx -arch=compute_75` makes it");
            return Answer::NoCompiler(why);
        }
    };
    let mut compiled = Vec::with_capacity(sources.len());
    for (name, text) in sources {
        match nvrtc.ptx(name, text) {
            Ok(ptx) => compiled.push((name.clone(), ptx)),
            Err(log) => return Answer::Refused { name: name.clone(), log },
        }
    }
    Answer::Compiled(compiled)
}
