//! Compiles a component in a child process with resource limits: `weir __compile`. The child writes
//! the artefact to the requested path.

use super::ComponentLoadError;
use super::compile_cache::CompiledFunctions;
use super::inspect::{Outline, outline};
use super::policy;
use crate::engine::{Generation, compiling_engine};
use crate::instance::{LinkError, LinkedComponent, linker};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;
use wasmtime::CacheStore;
use wasmtime::component::Component;
use weir_child::{ChildCommand, ChildFailure, Confinement, Limits};
use weir_storage::{DiskFull, is_disk_full};
use weir_types::{ErrorCode, FunctionKind, FunctionManifest};

/// The hidden subcommand that [`main`] serves.
pub const SUBCOMMAND: &str = "__compile";

/// A compilation request to the child.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CompileTask {
    /// The path of the component.
    pub(crate) component: PathBuf,
    /// The path to write the artefact to.
    pub(crate) artefact: PathBuf,
    /// The cache of compiled functions, if the component is compiled with one.
    pub(crate) cache: Option<CacheTask>,
}

/// The files of a cache of compiled functions.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CacheTask {
    /// The path of the cache, if there is one.
    pub(crate) stored: Option<PathBuf>,
    /// The path to write a new cache to. It stays empty if it would hardly differ.
    pub(crate) updated: PathBuf,
    /// The limit of the new cache.
    pub(crate) bytes_max: u64,
}

/// The child's result.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CompiledComponent {
    /// The kind of function, which determines how it is called.
    pub kind: FunctionKind,
    /// The imported interfaces, such as `wasi:http/types@0.2.4`.
    pub imports: Vec<String>,
    /// The wall-clock time of the compilation in the child.
    pub compile_time_ms: u64,
    /// Whether the component has debug information.
    pub has_debug_info: bool,
    /// Hits and misses in the cache of compiled functions; zeroes without a cache.
    pub cache: CacheCounts,
}

/// Functions of a component that was compiled with a cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheCounts {
    /// Functions whose code was in the cache, or that equal another one of the component.
    pub hits: u64,
    /// Functions that were compiled.
    pub misses: u64,
}

/// The reason why a component cannot be deployed.
#[derive(Debug, Clone, Serialize, Deserialize, thiserror::Error)]
#[error("{text}")]
pub struct CompileError {
    /// The code of the API error.
    pub code: ErrorCode,
    /// The message for the client.
    pub text: String,
}

impl CompileError {
    pub(super) fn new(code: ErrorCode, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    /// A file operation failed, perhaps because the disk is full.
    pub(super) fn io(what: &str, error: &io::Error) -> Self {
        if is_disk_full(error) {
            return Self::new(ErrorCode::DiskFull, DiskFull::NoSpace.to_string());
        }
        Self::new(ErrorCode::Internal, format!("{what}: {error}"))
    }

    /// Compiling exceeded the node's limits.
    fn over(limits: Limits, what: &str) -> Self {
        let text = format!(
            "compiling the component took more {what} than the node allows ({} MiB, {} s); is it stripped and optimised?",
            limits.memory_bytes_max >> 20,
            limits.cpu_ms_max / 1_000
        );
        Self::new(ErrorCode::CompileLimit, text)
    }

    /// The node's engine does not accept the compiled component.
    pub fn unfit(error: &ComponentLoadError) -> Self {
        let text = format!(
            "the component compiles, but does not fit this node: {error}; make it smaller, or raise the node's sandbox.limit_caps"
        );
        Self::new(ErrorCode::LimitOverCap, text)
    }
}

/// Compiles in a child process. Dropping the future kills it.
pub async fn compile(task: &CompileTask, limits: Limits) -> Result<CompiledComponent, CompileError> {
    ChildCommand::this_program(SUBCOMMAND).run(limits, task).await.map_err(|failure| match failure {
        ChildFailure::OverTime => CompileError::over(limits, "time"),
        ChildFailure::OverMemory => CompileError::over(limits, "memory"),
        ChildFailure::Crashed { how } => CompileError::new(
            ErrorCode::InvalidComponent,
            format!("the component crashed the process that compiled it: {how}"),
        ),
        ChildFailure::Io(error) => {
            CompileError::new(ErrorCode::Internal, format!("cannot run the compiler process: {error}"))
        }
    })?
}

/// The child's side of [`compile`].
pub fn main() -> ExitCode {
    let access = |task: &CompileTask| {
        let CompileTask { component, artefact, cache } = task.clone();
        let mut files = Confinement { readable: vec![component], writable: vec![artefact] };
        if let Some(CacheTask { stored, updated, .. }) = cache {
            files.readable.extend(stored);
            files.writable.push(updated);
        }
        Some(files)
    };
    weir_child::serve(access, |task: CompileTask, limits| do_task(&task, limits))
}

fn do_task(task: &CompileTask, limits: Limits) -> Result<CompiledComponent, CompileError> {
    let started = Instant::now();
    let bytes = std::fs::read(&task.component).map_err(|error| match error.kind() {
        io::ErrorKind::OutOfMemory => CompileError::over(limits, "memory"),
        _ => CompileError::new(ErrorCode::Internal, format!("cannot read the component: {error}")),
    })?;
    let outline = outline(&bytes).map_err(|(code, text)| CompileError::new(code, text))?;
    refuse_unknown(&outline.imports)?;
    let functions = task.cache.as_ref().map(|cache| Arc::new(CompiledFunctions::open(cache)));
    let artefact = build(&bytes, outline.kind, functions.clone(), limits)?;
    write(&task.artefact, &artefact)
        .map_err(|error| CompileError::io("cannot write the artefact", &error))?;
    let counts = functions.as_deref().map(CompiledFunctions::counts).unwrap_or_default();
    if let (Some(functions), Some(cache)) = (functions, &task.cache) {
        // The component is compiled: without a new cache, the next compilation only takes longer.
        let _ = functions.update(&cache.updated);
    }
    let compile_time_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    let Outline { kind, imports, has_debug_info } = outline;
    Ok(CompiledComponent { kind, imports, compile_time_ms, has_debug_info, cache: counts })
}

fn refuse_unknown(imports: &[String]) -> Result<(), CompileError> {
    let none = FunctionManifest::default();
    let unknown = imports.iter().find(|name| policy::verdict(name, &none) == policy::ImportVerdict::Unknown);
    unknown.map_or(Ok(()), |name| {
        let text = format!("the component imports {name}, which Weir does not have: {}", policy::hint(name));
        Err(CompileError::new(ErrorCode::UnknownImport, text))
    })
}

fn build(
    bytes: &[u8],
    kind: FunctionKind,
    functions: Option<Arc<CompiledFunctions>>,
    limits: Limits,
) -> Result<Vec<u8>, CompileError> {
    let generation = Generation::for_kind(kind);
    let internal = |error: wasmtime::Error| match is_out_of_memory(&error) {
        true => CompileError::over(limits, "memory"),
        false => CompileError::new(ErrorCode::Internal, format!("{error:#}")),
    };
    let engine = compiling_engine(generation, functions.map(|functions| functions as Arc<dyn CacheStore>))
        .map_err(internal)?;
    let component = Component::new(&engine, bytes).map_err(|error| match is_out_of_memory(&error) {
        true => CompileError::over(limits, "memory"),
        false => CompileError::new(
            ErrorCode::InvalidComponent,
            format!("the component does not compile: {error:#}"),
        ),
    })?;
    // Linking here rejects components that the node could not start.
    let linker = linker(&engine, generation).map_err(internal)?;
    LinkedComponent::link(&linker, &component, kind).map_err(|error| {
        let code = match error {
            LinkError::Import(_) => ErrorCode::UnknownImport,
            LinkError::Export(_) => ErrorCode::NoEntryPoint,
        };
        CompileError::new(code, format!("the component does not fit this node: {error}"))
    })?;
    component.serialize().map_err(internal)
}

fn is_out_of_memory(error: &wasmtime::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::OutOfMemory)
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = std::fs::File::create(path)?;
    io::Write::write_all(&mut file, bytes)?;
    file.sync_all()
}
