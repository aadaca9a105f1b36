//! The process-wide ONNX Runtime.
#![allow(unsafe_code, reason = "ONNX Runtime's memory is set up through its C interface")]

use crate::library::LibraryError;
use crate::{memory, session};
use ort::AsPointer;
use ort::environment::Environment;
use ort::memory::{AllocationDevice, Allocator, AllocatorType, MemoryInfo, MemoryType};
use ort::session::builder::GraphOptimizationLevel;
use ort::session::{RunOptions, Session};
use ort::sys;
use ort::value::TensorRef;
use parking_lot::Mutex;
use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;
use tracing::{debug, info, warn};

/// ONNX Runtime, loaded. Each process has at most one, and it stays until the process ends: the
/// library cannot be unloaded safely.
pub(crate) struct Runtime {
    library: PathBuf,
    environment: Environment,
    trimmer: Mutex<Trimmer>,
}

static RUNTIME: Mutex<Option<&'static Runtime>> = Mutex::new(None);

impl Runtime {
    /// Loads ONNX Runtime from `library`, with a limit of `run_memory_bytes_max` on the memory of
    /// all runs, or returns the instance already loaded from there.
    pub(crate) fn open(library: &Path, run_memory_bytes_max: u64) -> Result<&'static Self, LibraryError> {
        let unusable = |why: String| LibraryError::Unusable { path: library.to_owned(), why };
        let library = library.canonicalize().map_err(|error| unusable(error.to_string()))?;
        let mut runtime = RUNTIME.lock();
        match *runtime {
            Some(loaded) if loaded.library == library => Ok(loaded),
            Some(loaded) => Err(unusable(format!("{} is in use already", loaded.library.display()))),
            None => {
                let loaded = Self::load(library.clone(), run_memory_bytes_max).map_err(unusable)?;
                *runtime = Some(loaded);
                Ok(loaded)
            }
        }
    }

    /// Loads the library of a later [`Self::open`], with the libraries that it depends on.
    pub(crate) fn preload(library: &Path) -> Result<(), LibraryError> {
        let loaded = ort::init_from(library);
        loaded
            .map(drop)
            .map_err(|error| LibraryError::Unusable { path: library.to_owned(), why: error.to_string() })
    }

    /// The loaded instance, if any.
    pub(crate) fn opened() -> Option<&'static Self> {
        *RUNTIME.lock()
    }

    fn load(library: PathBuf, run_memory_bytes_max: u64) -> Result<&'static Self, String> {
        memory::return_large_blocks();
        // Checks the version, so that `ort` never calls an interface older than the one it knows.
        let builder = ort::init_from(&library).map_err(|error| error.to_string())?;
        let log: ort::logging::LoggerFunction = Arc::new(|_, category, _, place, message| {
            // Relevant problems are also returned as errors.
            debug!(category, place, message, "onnx runtime");
        });
        let environment = builder.with_name("weir").with_telemetry(false).with_logger(log).build();
        let environment = environment.map_err(|error| error.to_string())?;
        environment.set_log_level(ort::logging::LogLevel::Warning);
        register_arena(&environment, run_memory_bytes_max).map_err(|error| error.to_string())?;
        let trimmer = Trimmer::new(&environment).map_err(|error| error.to_string())?;
        info!(path = %library.display(), "onnx runtime loaded");
        Ok(Box::leak(Box::new(Self { library, environment, trimmer: Mutex::new(trimmer) })))
    }

    /// The environment for new sessions.
    pub(crate) fn environment(&self) -> &Environment {
        &self.environment
    }

    /// Memory that runs hold for intermediate tensors, in use or idle; 0 if unknown. Waits for a
    /// trim.
    pub(crate) fn run_memory_bytes(&self) -> u64 {
        let trimmer = self.trimmer.lock();
        trimmer
            .arena_bytes()
            .inspect_err(|error| debug!(%error, "reading the size of the run memory failed"))
            .unwrap_or_default()
    }

    /// Returns the idle part of the runs' memory to the system.
    pub(crate) fn trim(&self) {
        if let Err(error) = self.trimmer.lock().trim() {
            warn!(%error, "trimming the run memory failed");
        }
    }
}

/// Returns the idle memory of the runs' arena to the system. ONNX Runtime shrinks the arena only at
/// the end of a run with `memory.enable_memory_arena_shrinkage`, so the trimmer runs a model of one
/// node with this option.
struct Trimmer {
    /// The arena, as seen by its session; declared first, so that it drops before the session.
    arena: Allocator,
    session: Session,
    options: RunOptions,
}

impl Trimmer {
    fn new(environment: &Environment) -> Result<Self, ort::Error> {
        let session = session::options(environment, GraphOptimizationLevel::Disable, 1)?
            .commit_from_memory(TRIMMER_MODEL)?;
        let mut options = RunOptions::new()?;
        options.set("memory.enable_memory_arena_shrinkage", "cpu:0")?;
        let arena = Allocator::new(&session, arena_memory()?)?;
        Ok(Self { arena, session, options })
    }

    fn trim(&mut self) -> Result<(), ort::Error> {
        let input = TensorRef::from_array_view(([1_usize], &[0.0_f32][..]))?;
        self.session.run_with_options(ort::inputs![input], &self.options).map(drop)
    }

    /// Bytes that the arena holds, in use or idle.
    fn arena_bytes(&self) -> Result<u64, ort::Error> {
        let api = ort::api();
        let mut stats = ptr::null_mut();
        // SAFETY: the arena lives as long as `self`, and on return the pairs belong to this
        // function.
        check(unsafe { (api.AllocatorGetStats)(self.arena.ptr().cast_mut(), &raw mut stats) })?;
        // SAFETY: the pairs were just created, the key is NUL-terminated, and the value lives as
        // long as the pairs: it is read before they are released.
        let bytes = unsafe {
            let found = (api.GetKeyValue)(stats, c"TotalAllocated".as_ptr());
            let text = if found.is_null() { None } else { CStr::from_ptr(found).to_str().ok() };
            text.and_then(|text| text.parse().ok())
        };
        // SAFETY: the pairs are not used after this call.
        unsafe { (api.ReleaseKeyValuePairs)(stats) };
        Ok(bytes.unwrap_or_default())
    }
}

/// y = Identity(x), one fp32. Written by `tests/fixtures/generate.py`.
const TRIMMER_MODEL: &[u8] = include_bytes!("trimmer.onnx");

/// Registers one arena of at most `bytes_max` for all sessions, so that a run with excessive
/// demands fails alone. A custom allocator could not refuse memory, since ONNX Runtime does not
/// check the returned pointer.
fn register_arena(environment: &Environment, bytes_max: u64) -> Result<(), ort::Error> {
    let keys = [c"max_mem", c"arena_extend_strategy"].map(CStr::as_ptr);
    // Extends by the requested size, not by the next power of two.
    let values = [usize::try_from(bytes_max).unwrap_or(usize::MAX), 1];
    let memory = arena_memory()?;
    let api = ort::api();
    let mut config = ptr::null_mut();
    // SAFETY: `keys` and `values` have the stated length, and the pointers are valid for the call.
    check(unsafe { (api.CreateArenaCfgV2)(keys.as_ptr(), values.as_ptr(), keys.len(), &raw mut config) })?;
    // SAFETY: environment, memory and configuration are valid; the call copies the configuration.
    let registered = check(unsafe {
        (api.CreateAndRegisterAllocator)(environment.ptr().cast_mut(), memory.ptr(), config)
    });
    // SAFETY: the configuration was just created, and is not used after this call.
    unsafe { (api.ReleaseArenaCfg)(config) };
    registered
}

fn arena_memory() -> Result<MemoryInfo<'static>, ort::Error> {
    MemoryInfo::new(AllocationDevice::CPU, 0, AllocatorType::Arena, MemoryType::Default)
}

/// Consumes the status returned by a call.
fn check(status: sys::OrtStatusPtr) -> Result<(), ort::Error> {
    // SAFETY: every status in this module comes directly from a call, and is consumed here.
    unsafe { ort::Error::result_from_status(status) }
}
