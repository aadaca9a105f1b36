//! Modules and functions: kernels loaded into a context.
#![allow(unsafe_code, reason = "the driver is called")]

use super::context::Context;
use super::error::CudaError;
use cudarc::driver::sys::{
    CUfunction, CUfunction_attribute, CUfunction_attribute_enum as Attribute, CUjit_option_enum as JitOption,
    CUmodule,
};
use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr;
use std::sync::Arc;

/// The most bytes that are kept of the driver compiler's log.
const LOG_BYTES_MAX: usize = 8 << 10;

/// Code on a device. Unloaded with its last [`Function`].
#[derive(Debug)]
pub struct Module {
    context: Arc<Context>,
    handle: CUmodule,
}

/// One kernel. Cheap to clone; keeps its module loaded.
#[derive(Debug, Clone)]
pub struct Function {
    module: Arc<Module>,
    handle: CUfunction,
}

/// Resources that a kernel takes on a multiprocessor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FunctionAttributes {
    /// Registers per thread.
    pub registers: u32,
    /// Spilled memory per thread, beyond the registers.
    pub local_bytes: u32,
    /// Static shared memory per block, in addition to a launch's dynamic shared memory.
    pub shared_bytes: u32,
    /// The most threads per block.
    pub block_threads_max: u32,
}

// SAFETY: the handle of a module may be used by several threads at once: the driver takes its own
// locks.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}
// SAFETY: as above, for a function.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Module {
    /// Loads machine code for the device (a cubin), or PTX. The driver compiles PTX, which takes
    /// some ten milliseconds per kernel unless the driver's cache has it.
    ///
    /// The image is trusted: a kernel can access everything on the device, and pinned host memory.
    pub fn load(context: &Arc<Context>, image: &[u8]) -> Result<Arc<Self>, CudaError> {
        // PTX is NUL-terminated text; machine code states its length.
        let mut terminated = Vec::with_capacity(image.len() + 1);
        terminated.extend_from_slice(image);
        terminated.push(0);
        let mut log = vec![0_u8; LOG_BYTES_MAX];
        let mut options = [JitOption::CU_JIT_ERROR_LOG_BUFFER, JitOption::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        // The driver takes numbers in place of addresses.
        let mut values: [*mut c_void; 2] =
            [log.as_mut_ptr().cast(), ptr::without_provenance_mut(LOG_BYTES_MAX - 1)];
        let mut module = ptr::null_mut();
        // SAFETY: image, log, options and values outlive the call, and the log is longer than
        // stated; the loaded module is unloaded on drop.
        let loaded = context.call(|driver| unsafe {
            let image = terminated.as_ptr().cast();
            driver.cuModuleLoadDataEx(&mut module, image, 2, options.as_mut_ptr(), values.as_mut_ptr())
        });
        loaded.map_err(|error| with_log(error, &log))?;
        Ok(Arc::new(Self { context: context.clone(), handle: module }))
    }

    /// The kernel called `name`.
    pub fn function(self: &Arc<Self>, name: &str) -> Result<Function, CudaError> {
        let c_name = CString::new(name)
            .map_err(|_| CudaError::Invalid(format!("{name:?} cannot be the name of a kernel")))?;
        let mut function = ptr::null_mut();
        // SAFETY: the name is NUL-terminated; both outlive the call.
        let found = self.context.call(|driver| unsafe {
            driver.cuModuleGetFunction(&mut function, self.handle, c_name.as_ptr())
        });
        found.map_err(|error| match error {
            CudaError::Failed { call, code, name: error, what } => {
                CudaError::Failed { call, code, name: error, what: format!("{what}: kernel {name:?}") }
            }
            other => other,
        })?;
        Ok(Function { module: self.clone(), handle: function })
    }
}

impl Function {
    /// Resources that the kernel takes on a multiprocessor.
    pub fn attributes(&self) -> Result<FunctionAttributes, CudaError> {
        Ok(FunctionAttributes {
            registers: self.attribute(Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            local_bytes: self.attribute(Attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
            shared_bytes: self.attribute(Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
            block_threads_max: self.attribute(Attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        })
    }

    /// Allows launches with up to `bytes` of dynamic shared memory. Without this call, a launch that
    /// uses more than [`DeviceInfo::shared_bytes`](super::DeviceInfo::shared_bytes) (48 KiB) fails.
    pub fn allow_shared_bytes(&self, bytes: u32) -> Result<(), CudaError> {
        let value = c_int::try_from(bytes).map_err(|error| CudaError::Invalid(error.to_string()))?;
        let attribute = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the handle is valid as long as the module.
        self.context().call(|driver| unsafe { driver.cuFuncSetAttribute(self.handle, attribute, value) })
    }

    /// Number of blocks with this many threads and this much shared memory that a multiprocessor
    /// runs at once.
    pub fn blocks_per_multiprocessor(&self, threads: u32, shared_bytes: u32) -> Result<u32, CudaError> {
        let threads = c_int::try_from(threads).map_err(|error| CudaError::Invalid(error.to_string()))?;
        let mut blocks = 0;
        // SAFETY: the handle is valid as long as the module; `blocks` outlives the call.
        self.context().call(|driver| unsafe {
            let shared_bytes = shared_bytes as usize;
            driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &mut blocks,
                self.handle,
                threads,
                shared_bytes,
            )
        })?;
        Ok(u32::try_from(blocks).unwrap_or(0))
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.module.context
    }

    pub(super) fn handle(&self) -> CUfunction {
        self.handle
    }

    fn attribute(&self, attribute: CUfunction_attribute) -> Result<u32, CudaError> {
        let mut value = 0;
        self.context().call(|driver| {
            // SAFETY: the handle is valid as long as the module; `value` outlives the call.
            unsafe { driver.cuFuncGetAttribute(&mut value, attribute, self.handle) }
        })?;
        Ok(u32::try_from(value).unwrap_or(0))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded in `load`; all of its functions have dropped.
        self.context.release("module", |driver| unsafe { driver.cuModuleUnload(self.handle) });
    }
}

/// Adds the log of the driver's compiler to an error.
fn with_log(error: CudaError, log: &[u8]) -> CudaError {
    let log = CStr::from_bytes_until_nul(log).map(CStr::to_string_lossy).unwrap_or_default();
    match error {
        CudaError::Failed { call, code, name, what } if !log.trim().is_empty() => {
            CudaError::Failed { call, code, name, what: format!("{what}: {}", log.trim()) }
        }
        other => other,
    }
}
