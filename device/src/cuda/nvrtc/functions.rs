//! Functions of NVRTC.

use libloading::os::unix::Library;
use std::ffi::{c_char, c_int, c_void};

pub(super) type NvrtcProgram = *mut c_void;
pub(super) type SizeFn = unsafe extern "C" fn(NvrtcProgram, *mut usize) -> c_int;
pub(super) type Get = unsafe extern "C" fn(NvrtcProgram, *mut c_char) -> c_int;
type Create = unsafe extern "C" fn(
    *mut NvrtcProgram,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type Compile = unsafe extern "C" fn(NvrtcProgram, c_int, *const *const c_char) -> c_int;
type Destroy = unsafe extern "C" fn(*mut NvrtcProgram) -> c_int;
type Version = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
type Numbers = unsafe extern "C" fn(*mut c_int) -> c_int;

macro_rules! functions {
    ($($field:ident: $function:ident, $name:literal;)*) => {
        /// The functions, looked up by name.
        pub(super) struct NvrtcFunctions {
            $(pub(super) $field: $function,)*
        }

        impl NvrtcFunctions {
            /// Looks up the functions of a library that stays open; on failure returns the names of
            /// the missing ones.
            pub(super) fn from_library(library: &Library) -> Result<Self, Vec<&'static str>> {
                let mut missing = Vec::new();
                $(
                    // SAFETY: NVRTC's documentation gives this function this type.
                    let $field = unsafe { library.get::<$function>($name) };
                    let $field = $field.map(|function| *function).map_err(|_| missing.push($name)).ok();
                )*
                match ($($field,)*) {
                    ($(Some($field),)*) => Ok(Self { $($field,)* }),
                    _ => Err(missing),
                }
            }
        }
    };
}

functions! {
    create: Create, "nvrtcCreateProgram";
    compile: Compile, "nvrtcCompileProgram";
    ptx_size: SizeFn, "nvrtcGetPTXSize";
    ptx: Get, "nvrtcGetPTX";
    cubin_size: SizeFn, "nvrtcGetCUBINSize";
    cubin: Get, "nvrtcGetCUBIN";
    log_size: SizeFn, "nvrtcGetProgramLogSize";
    log: Get, "nvrtcGetProgramLog";
    destroy: Destroy, "nvrtcDestroyProgram";
    version: Version, "nvrtcVersion";
    architectures_len: Numbers, "nvrtcGetNumSupportedArchs";
    architectures: Numbers, "nvrtcGetSupportedArchs";
}
