//! Matrix products with NVIDIA's cuBLASLt, where it is installed.
//!
//! [`CublasLt`] is the opened library. [`Products`] is its handle for one context. A [`Gemm`] is
//! one prepared shape of product: descriptors, and an algorithm. The library's heuristic selects the
//! algorithm for the first product of a shape; later products use it again. A launch is one call that
//! adds kernels to a
//! stream, or to a graph that is being recorded.
//!
//! The library allocates no memory: the caller supplies the workspace of an algorithm, with a
//! stated size. Algorithms that accumulate in a precision other than fp32 are excluded, and none is
//! selected by timing: the same shape on the same device gives the same bits in every run.
#![allow(unsafe_code, reason = "cuBLASLt has an interface in C")]

mod descriptors;
mod functions;
mod product;
pub use product::{Gemm, ProductBuffers, ProductMatrix, ProductShape};

use super::context::Context;
use super::error::CudaError;
use super::library::Library;
use super::unavailable::Unavailable;
use cudarc::cublaslt::sys::{cublasLtHandle_t, libraryPropertyType_t as Property};
use functions::CublasLtFunctions;
use libloading::os::unix::{Library as Opened, RTLD_LOCAL, RTLD_NOW};
use parking_lot::Mutex;
use product::{AlgorithmKey, SelectedAlgorithm};
use std::collections::HashMap;
use std::path::Path;
use std::ptr;
use std::sync::Arc;

/// cuBLASLt, opened for the lifetime of the process.
pub struct CublasLt {
    functions: CublasLtFunctions,
    version: [u32; 3],
}

/// Handle of cuBLASLt for one context. Usable from any thread.
pub struct Products {
    library: CublasLt,
    context: Arc<Context>,
    handle: cublasLtHandle_t,
    /// Algorithms by shape; `None` if the library has no algorithm for the shape. Cleared when full.
    algorithms: Mutex<HashMap<AlgorithmKey, Option<SelectedAlgorithm>>>,
}

/// Maximum number of remembered algorithms, of about 200 bytes each.
const ALGORITHMS_MAX: usize = 4096;

// SAFETY: the library's handles may be used by several threads at once.
unsafe impl Send for Products {}
// SAFETY: as above.
unsafe impl Sync for Products {}

impl CublasLt {
    /// Opens the file at `path`, which must have a version that Weir knows. The driver must be open
    /// already: the library uses the loaded one.
    pub fn open(path: &Path) -> Result<Self, Unavailable> {
        let unusable = |why: String| Unavailable::Unusable { path: path.to_owned(), why };
        // SAFETY: opening NVIDIA's libraries runs their initialisers, which have no preconditions.
        let opened = unsafe { Opened::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
        let library = opened.map_err(|error| unusable(error.to_string()))?;
        let functions = CublasLtFunctions::from_library(&library);
        let functions = functions.map_err(|missing| unusable(format!("it lacks {}", missing.join(", "))))?;
        // Never closed: its state for a device lives until the process ends.
        std::mem::forget(library);
        let number = |property| {
            let mut number = 0;
            // SAFETY: `number` outlives the call.
            let asked = unsafe { functions.cublasLtGetProperty(property, &mut number) };
            asked.map_err(|error| unusable(error.to_string()))?;
            Ok(u32::try_from(number).unwrap_or_default())
        };
        let version = [
            number(Property::MAJOR_VERSION)?,
            number(Property::MINOR_VERSION)?,
            number(Property::PATCH_LEVEL)?,
        ];
        Library::CublasLt.check_major(path, version[0])?;
        Ok(Self { functions, version })
    }

    /// Version of the library, as `12.8.4`.
    #[must_use]
    pub fn version(&self) -> String {
        self.version.map(|number| number.to_string()).join(".")
    }
}

impl Products {
    /// Sets up the library for a context.
    pub fn new(library: CublasLt, context: &Arc<Context>) -> Result<Self, CudaError> {
        context.make_current()?;
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` outlives the call; the created handle is destroyed on drop.
        unsafe { library.functions.cublasLtCreate(&mut handle) }?;
        Ok(Self { library, context: context.clone(), handle, algorithms: Mutex::default() })
    }

    /// The library.
    #[must_use]
    pub fn library(&self) -> &CublasLt {
        &self.library
    }

    /// Returns the algorithm for a key, and selects one if the key is new.
    fn algorithm(
        &self,
        key: AlgorithmKey,
        select: impl FnOnce() -> Result<Option<SelectedAlgorithm>, CudaError>,
    ) -> Result<Option<SelectedAlgorithm>, CudaError> {
        if let Some(known) = self.algorithms.lock().get(&key) {
            return Ok(*known);
        }
        // Not locked: two threads may select the same algorithm at once.
        let selected = select()?;
        let mut algorithms = self.algorithms.lock();
        if algorithms.len() >= ALGORITHMS_MAX {
            algorithms.clear();
        }
        algorithms.insert(key, selected);
        Ok(selected)
    }

    fn functions(&self) -> &CublasLtFunctions {
        &self.library.functions
    }

    /// Calls the library with the context current. If a fault has ended the context, returns the
    /// driver's error instead of the library's.
    fn call<T>(&self, call: impl FnOnce(&CublasLtFunctions) -> Result<T, CudaError>) -> Result<T, CudaError> {
        self.context.make_current()?;
        call(self.functions()).map_err(|error| match self.context.memory() {
            Err(fault) if fault.is_context_lost() => fault,
            _ => error,
        })
    }
}

impl Drop for Products {
    fn drop(&mut self) {
        if self.context.make_current().is_ok() {
            // SAFETY: created in `new`. All products hold an `Arc` of this handle, so all of them
            // were dropped.
            let _ = unsafe { self.functions().cublasLtDestroy(self.handle) };
        }
    }
}
