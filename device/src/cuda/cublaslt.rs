//! NVIDIA's library for products of matrices, where it is installed.
//!
//! [`CublasLt`] is the library, opened; [`Products`] what a context holds of it; a [`Product`] is one shape of product made ready: descriptors, and the
//! algorithm that the library's heuristic gives for it, once and for good. Launching it is one call that puts kernels into a stream, in order with all
//! else there, or into a graph that is recorded.
//!
//! The library is asked for no memory: what an algorithm works in is the caller's, of a stated size. Algorithms that add up parts in another precision
//! than fp32 are left out, and none is chosen by time: the same shape on the same device gives the same bits in every run.
#![allow(unsafe_code, reason = "cuBLASLt has an interface in C")]

mod functions;
mod held;
mod product;
pub use product::{Product, ProductBuffers, ProductMatrix, ProductShape};

use super::context::Context;
use super::error::CudaError;
use super::library::Library;
use super::unavailable::Unavailable;
use cudarc::cublaslt::sys::{cublasLtHandle_t, libraryPropertyType_t as Property};
use functions::Functions;
use libloading::os::unix::{Library as Opened, RTLD_LOCAL, RTLD_NOW};
use std::path::Path;
use std::ptr;
use std::sync::Arc;

/// cuBLASLt, opened for good.
pub struct CublasLt {
    functions: Functions,
    version: [u32; 3],
}

/// What a context holds of cuBLASLt. Used by any thread.
pub struct Products {
    library: CublasLt,
    context: Arc<Context>,
    handle: cublasLtHandle_t,
}

// SAFETY: the library's handles may be used by any thread, and by several.
unsafe impl Send for Products {}
// SAFETY: as above.
unsafe impl Sync for Products {}

impl CublasLt {
    /// Open the file at `path`, of a version that Weir knows. The driver is open before: the library takes the one that is there.
    pub fn open(path: &Path) -> Result<Self, Unavailable> {
        let unusable = |why: String| Unavailable::Unusable { path: path.to_owned(), why };
        // SAFETY: opening NVIDIA's libraries runs their initialisers, which ask nothing of us.
        let opened = unsafe { Opened::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
        let library = opened.map_err(|error| unusable(error.to_string()))?;
        let functions = Functions::of(&library);
        let functions = functions.map_err(|missing| unusable(format!("it lacks {}", missing.join(", "))))?;
        // What it sets up for a device does not end before the process.
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

    /// Its version, as `12.8.4`.
    #[must_use]
    pub fn version(&self) -> String {
        self.version.map(|number| number.to_string()).join(".")
    }
}

impl Products {
    /// Set the library up for a context.
    pub fn new(library: CublasLt, context: &Arc<Context>) -> Result<Self, CudaError> {
        context.make_current()?;
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` outlives the call; what is created is destroyed on drop.
        unsafe { library.functions.cublasLtCreate(&mut handle) }?;
        Ok(Self { library, context: Arc::clone(context), handle })
    }

    /// The library.
    #[must_use]
    pub fn library(&self) -> &CublasLt {
        &self.library
    }

    fn functions(&self) -> &Functions {
        &self.library.functions
    }

    /// Call the library with the context as the thread's own. Where a fault has ended the context, the driver's word counts, not the library's.
    fn call<T>(&self, call: impl FnOnce(&Functions) -> Result<T, CudaError>) -> Result<T, CudaError> {
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
            // SAFETY: created in `new`; products hold an `Arc` of us, and so are gone.
            let _ = unsafe { self.functions().cublasLtDestroy(self.handle) };
        }
    }
}
