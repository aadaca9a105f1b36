//! Functions of cuBLASLt, looked up by name when the library is opened. Results are plain numbers,
//! since newer versions may return values outside of any declared enum.

use crate::cuda::driver::symbol;
use crate::cuda::error::CudaError;
use cudarc::cublaslt::sys::{
    cublasComputeType_t, cublasLtHandle_t, cublasLtMatmulAlgo_t, cublasLtMatmulDesc_t,
    cublasLtMatmulDescAttributes_t, cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t,
    cublasLtMatrixLayout_t, cublasLtMatrixLayoutAttribute_t, cudaDataType_t, libraryPropertyType_t,
};
use cudarc::driver::sys::CUstream;
use libloading::os::unix::Library;
use std::ffi::{CStr, c_char, c_int, c_void};

/// `CUBLAS_STATUS_NOT_SUPPORTED`: the library has no kernel for the request.
pub(super) const NOT_SUPPORTED: u32 = 15;

/// `cublasLtMatmulHeuristicResult_t`, with a status that may be outside of the declared enum.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Heuristic {
    pub(super) algorithm: cublasLtMatmulAlgo_t,
    pub(super) workspace_bytes: usize,
    pub(super) status: u32,
    waves: f32,
    reserved: [c_int; 4],
}

impl Heuristic {
    pub(super) const NONE: Self = Self {
        algorithm: cublasLtMatmulAlgo_t { data: [0; 8] },
        workspace_bytes: 0,
        status: NOT_SUPPORTED,
        waves: 0.0,
        reserved: [0; 4],
    };
}

macro_rules! functions {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {
        #[allow(non_snake_case, reason = "the library's own names")]
        pub(super) struct CublasLtFunctions {
            $($name: unsafe extern "C" fn($($type),*) -> u32,)*
            name: unsafe extern "C" fn(u32) -> *const c_char,
            text: unsafe extern "C" fn(u32) -> *const c_char,
        }

        impl CublasLtFunctions {
            /// Looks up all functions; on failure returns the names of the missing ones.
            #[allow(non_snake_case, reason = "the library's own names")]
            pub(super) fn from_library(library: &Library) -> Result<Self, Vec<&'static str>> {
                let mut missing = Vec::new();
                // SAFETY: cuBLASLt has these functions with these types under these names, in
                // versions 12 and 13.
                $(let $name = unsafe { symbol(library, stringify!($name), &mut missing) };)*
                // SAFETY: as above.
                let name = unsafe { symbol(library, "cublasLtGetStatusName", &mut missing) };
                // SAFETY: as above.
                let text = unsafe { symbol(library, "cublasLtGetStatusString", &mut missing) };
                match ($($name,)* name, text) {
                    ($(Some($name),)* Some(name), Some(text)) => Ok(Self { $($name,)* name, text }),
                    _ => Err(missing),
                }
            }
        }

        #[allow(non_snake_case, clippy::too_many_arguments, reason = "the library's own names and arguments")]
        impl CublasLtFunctions {
            $(
                /// # Safety
                /// As NVIDIA documents the function of this name.
                pub(super) unsafe fn $name(&self, $($argument: $type),*) -> Result<(), CudaError> {
                    // SAFETY: guaranteed by the caller.
                    self.check(stringify!($name), unsafe { (self.$name)($($argument),*) })
                }
            )*
        }
    };
}

functions! {
    cublasLtGetProperty(property: libraryPropertyType_t, value: *mut c_int);
    cublasLtCreate(handle: *mut cublasLtHandle_t);
    cublasLtDestroy(handle: cublasLtHandle_t);

    cublasLtMatmulDescCreate(descriptor: *mut cublasLtMatmulDesc_t, compute: cublasComputeType_t, scale: cudaDataType_t);
    cublasLtMatmulDescDestroy(descriptor: cublasLtMatmulDesc_t);
    cublasLtMatmulDescSetAttribute(descriptor: cublasLtMatmulDesc_t, attribute: cublasLtMatmulDescAttributes_t, value: *const c_void, bytes: usize);
    cublasLtMatrixLayoutCreate(layout: *mut cublasLtMatrixLayout_t, element_type: cudaDataType_t, rows: u64, columns: u64, stride: i64);
    cublasLtMatrixLayoutDestroy(layout: cublasLtMatrixLayout_t);
    cublasLtMatrixLayoutSetAttribute(layout: cublasLtMatrixLayout_t, attribute: cublasLtMatrixLayoutAttribute_t, value: *const c_void, bytes: usize);
    cublasLtMatmulPreferenceCreate(preference: *mut cublasLtMatmulPreference_t);
    cublasLtMatmulPreferenceDestroy(preference: cublasLtMatmulPreference_t);
    cublasLtMatmulPreferenceSetAttribute(preference: cublasLtMatmulPreference_t, attribute: cublasLtMatmulPreferenceAttributes_t, value: *const c_void, bytes: usize);

    cublasLtMatmulAlgoGetHeuristic(handle: cublasLtHandle_t, descriptor: cublasLtMatmulDesc_t, a: cublasLtMatrixLayout_t, b: cublasLtMatrixLayout_t,
        c: cublasLtMatrixLayout_t, d: cublasLtMatrixLayout_t, preference: cublasLtMatmulPreference_t, wanted: c_int, found: *mut Heuristic, count: *mut c_int);
    cublasLtMatmul(handle: cublasLtHandle_t, descriptor: cublasLtMatmulDesc_t, alpha: *const c_void, a: u64, a_layout: cublasLtMatrixLayout_t, b: u64,
        b_layout: cublasLtMatrixLayout_t, beta: *const c_void, c: u64, c_layout: cublasLtMatrixLayout_t, d: u64, d_layout: cublasLtMatrixLayout_t,
        algorithm: *const cublasLtMatmulAlgo_t, workspace: u64, workspace_bytes: usize, stream: CUstream);
}

impl CublasLtFunctions {
    fn check(&self, call: &'static str, status: u32) -> Result<(), CudaError> {
        if status == 0 { Ok(()) } else { Err(self.error(call, status)) }
    }

    #[cold]
    fn error(&self, call: &'static str, status: u32) -> CudaError {
        let text = |ask: unsafe extern "C" fn(u32) -> *const c_char| {
            // SAFETY: every number is accepted.
            let text = unsafe { ask(status) };
            // SAFETY: the result is a constant string, or null.
            (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        let name = text(self.name).unwrap_or_else(|| format!("status {status}"));
        let what = text(self.text).unwrap_or_else(|| "unknown to this version".to_owned());
        // Never classified as a fault by this number, which is not a driver error code: the driver
        // is queried for faults.
        CudaError::Failed { call, code: status, name, what }
    }
}
