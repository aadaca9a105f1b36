//! The one ONNX Runtime of the process.
#![allow(unsafe_code, reason = "ONNX Runtime is given an allocator, which it calls through pointers")]

use super::library::LibraryError;
use ort::AsPointer;
use ort::environment::Environment;
use ort::memory::{AllocationDevice, AllocatorType, MemoryInfo, MemoryType};
use ort::sys;
use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, PoisonError};
use tracing::{debug, info};
use weir_device::Arena;

/// ONNX Runtime, loaded. There is one in a process, and it stays until the process ends: the library cannot be unloaded safely.
pub(super) struct Runtime {
    library: PathBuf,
    environment: Environment,
    scratch: Arena,
}

static RUNTIME: Mutex<Option<&'static Runtime>> = Mutex::new(None);

impl Runtime {
    /// Load ONNX Runtime from `library`, whose runs may use `scratch_bytes_max` bytes together; or get what was loaded from there before.
    pub(super) fn open(library: &Path, scratch_bytes_max: u64) -> Result<&'static Self, LibraryError> {
        let unusable = |why: String| LibraryError::Unusable { path: library.to_owned(), why };
        let library = library.canonicalize().map_err(|error| unusable(error.to_string()))?;
        let mut runtime = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
        match *runtime {
            Some(loaded) if loaded.library == library => Ok(loaded),
            Some(loaded) => Err(unusable(format!("{} is in use already", loaded.library.display()))),
            None => {
                let loaded = Self::load(library.clone(), Arena::new(scratch_bytes_max)).map_err(unusable)?;
                *runtime = Some(loaded);
                Ok(loaded)
            }
        }
    }

    /// What was loaded, if anything was.
    pub(super) fn opened() -> Option<&'static Self> {
        *RUNTIME.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn load(library: PathBuf, scratch: Arena) -> Result<&'static Self, String> {
        // Checks the version, so that no call of `ort` can find an older interface than it knows.
        let builder = ort::init_from(&library).map_err(|error| error.to_string())?;
        let log: ort::logging::LoggerFunction = Arc::new(|_, category, _, place, message| {
            // What matters comes back as an error as well.
            debug!(category, place, message, "onnx runtime");
        });
        let environment = builder.with_name("weir").with_telemetry(false).with_logger(log).build();
        let environment = environment.map_err(|error| error.to_string())?;
        environment.set_log_level(ort::logging::LogLevel::Warning);
        register_allocator(&environment, scratch.clone()).map_err(|error| error.to_string())?;
        info!(path = %library.display(), "onnx runtime loaded");
        Ok(Box::leak(Box::new(Self { library, environment, scratch })))
    }

    /// What sessions are made in.
    pub(super) fn environment(&self) -> &Environment {
        &self.environment
    }

    /// The memory that runs use between their inputs and outputs.
    pub(super) fn scratch(&self) -> &Arena {
        &self.scratch
    }
}

/// Gives ONNX Runtime memory from an arena: bounded, whatever a model asks for, and pooled, so that a run does not fault in what the one
/// before it gave back.
#[repr(C)]
struct ScratchAllocator {
    /// First, so that a pointer to it is one to the whole.
    interface: sys::OrtAllocator,
    memory: MemoryInfo<'static>,
    arena: Arena,
}

fn register_allocator(environment: &Environment, arena: Arena) -> Result<(), ort::Error> {
    let memory = MemoryInfo::new(AllocationDevice::CPU, 0, AllocatorType::Device, MemoryType::Default)?;
    // SAFETY: `default` only leaves the functions unset, and those that must be set are.
    let interface = sys::OrtAllocator {
        Alloc: Some(allocate),
        Free: Some(free),
        Info: Some(memory_info),
        Reserve: Some(reserve),
        ..unsafe { sys::OrtAllocator::default() }
    };
    // The environment keeps the pointer for as long as it lives, which is until the process ends.
    let allocator = Box::leak(Box::new(ScratchAllocator { interface, memory, arena }));
    let environment = environment.ptr().cast_mut();
    // SAFETY: both pointers are valid, and stay so.
    unsafe {
        ort::Error::result_from_status((ort::api().RegisterAllocator)(
            environment,
            &raw mut allocator.interface,
        ))
    }
}

unsafe extern "system" fn allocate(this: *mut sys::OrtAllocator, size: usize) -> *mut c_void {
    // SAFETY: ONNX Runtime hands back the pointer that it was given, which is one to the whole.
    let allocator = unsafe { &*this.cast::<ScratchAllocator>() };
    if size == 0 {
        return ptr::null_mut();
    }
    allocator.arena.allocate(size).map_or(ptr::null_mut(), |address| address.as_ptr().cast())
}

unsafe extern "system" fn reserve(this: *const sys::OrtAllocator, size: usize) -> *mut c_void {
    // SAFETY: as for `allocate`, which changes nothing through the pointer.
    unsafe { allocate(this.cast_mut(), size) }
}

unsafe extern "system" fn free(this: *mut sys::OrtAllocator, address: *mut c_void) {
    // SAFETY: ONNX Runtime hands back the pointer that it was given, which is one to the whole.
    let allocator = unsafe { &*this.cast::<ScratchAllocator>() };
    if let Some(address) = NonNull::new(address) {
        // SAFETY: it frees what it got from `allocate`, once.
        unsafe { allocator.arena.release(address.cast()) };
    }
}

unsafe extern "system" fn memory_info(this: *const sys::OrtAllocator) -> *const sys::OrtMemoryInfo {
    // SAFETY: ONNX Runtime hands back the pointer that it was given, which is one to the whole.
    unsafe { (*this.cast::<ScratchAllocator>()).memory.ptr() }
}
