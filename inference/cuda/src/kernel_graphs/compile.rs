//! Compilation of CUDA C in a limited child process. The compiler gets only the source, and its log
//! goes to the author of the source.

use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use weir_child::{ChildCommand, ChildFailure, Limits};
use weir_device::cuda::{Nvrtc, Search};
use weir_inference::{PrepareError, UploadRefusal};

/// Hidden subcommand with which a node starts itself as a compiler.
pub const COMPILE_COMMAND: &str = "__compile-kernels";

/// Resource limits of a compilation.
#[derive(Debug, Clone, Copy)]
pub(super) struct CompileLimits {
    pub(super) memory_bytes_max: u64,
    pub(super) cpu_ms_max: u64,
}

/// Task of the child.
#[derive(Debug, Serialize, Deserialize)]
struct KernelCompileTask {
    /// Search path of NVRTC.
    folders: Vec<PathBuf>,
    /// Sources by file name.
    sources: Vec<(String, String)>,
}

/// Result of the child.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum CompileReply {
    /// PTX by file name of the source.
    Compiled(Vec<(String, String)>),
    /// A source does not compile.
    Refused { name: String, log: String },
    /// No compiler is available.
    NoCompiler(String),
}

/// Compiles these sources in a child, which is killed when the future is dropped.
pub(super) async fn compile(
    sources: Vec<(String, String)>,
    limits: CompileLimits,
) -> Result<Vec<(String, String)>, PrepareError> {
    let task = KernelCompileTask { folders: Search::from_environment().folders, sources };
    let CompileLimits { memory_bytes_max, cpu_ms_max } = limits;
    let limits = Limits { memory_bytes_max, cpu_ms_max };
    let source_name = task.sources.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
    let over = |log: String| Err(UploadRefusal::Compile { source_name, log }.into());
    match ChildCommand::this_program(COMPILE_COMMAND).run(limits, &task).await {
        Ok(CompileReply::Compiled(compiled)) => Ok(compiled),
        Ok(CompileReply::Refused { name, log }) => {
            Err(UploadRefusal::Compile { source_name: name, log }.into())
        }
        Ok(CompileReply::NoCompiler(why)) => Err(PrepareError::Compiler(why.into())),
        Err(ChildFailure::OverTime) => {
            over(format!("it takes more than {cpu_ms_max} ms of CPU time (kernel_graphs.compile_cpu_ms_max)"))
        }
        Err(ChildFailure::OverMemory) => over(format!(
            "it takes more than {memory_bytes_max} bytes of memory (kernel_graphs.compile_memory_bytes_max)"
        )),
        Err(ChildFailure::Crashed { how }) => over(format!("it crashed the compiler: {how}")),
        Err(ChildFailure::Io(error)) => Err(PrepareError::Io {
            action: "run the process that compiles kernels".to_owned(),
            source: Arc::new(io::Error::other(error)),
        }),
    }
}

/// Entry point of a process started with [`COMPILE_COMMAND`].
#[must_use]
pub fn compile_main() -> ExitCode {
    // NVRTC finds its parts by itself.
    weir_child::serve(|_| None, |task: KernelCompileTask, _| compile_here(&task))
}

fn compile_here(KernelCompileTask { folders, sources }: &KernelCompileTask) -> CompileReply {
    let search = Search { folders: folders.clone(), ..Search::default() };
    let nvrtc = match Nvrtc::find(&search) {
        Ok(nvrtc) => nvrtc,
        Err(unavailable) => {
            let why = format!("{unavailable}; or push PTX, as `nvcc -ptx -arch=compute_75` makes it");
            return CompileReply::NoCompiler(why);
        }
    };
    let mut compiled = Vec::with_capacity(sources.len());
    for (name, text) in sources {
        match nvrtc.ptx(name, text) {
            Ok(ptx) => compiled.push((name.clone(), ptx)),
            Err(log) => return CompileReply::Refused { name: name.clone(), log },
        }
    }
    CompileReply::Compiled(compiled)
}
