//! Functions of the CUDA driver, looked up by name when its library is opened.
//!
//! The crate `cudarc` declares their types. Its loader is not used: it takes the first library with
//! a matching name that the system's loader finds, which may differ from the one chosen here, and
//! it panics at the first call of a missing function. Results are plain numbers, since newer
//! drivers may return numbers outside of any declared enum.
#![allow(unsafe_code, reason = "functions of the driver are looked up and called here")]

use super::error::{CudaError, NO_DEVICE};
use super::library::{DRIVER, find_driver, no_driver, reason};
use super::search::Search;
use super::unavailable::Unavailable;
use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction, CUfunction_attribute, CUgraph,
    CUgraphEdgeData, CUgraphExec, CUgraphNode, CUjit_option, CUmemAccessDesc,
    CUmemAllocationGranularity_flags, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemGenericAllocationHandle, CUmodule, CUstream, CUstreamCaptureMode,
};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};
use std::path::{Path, PathBuf};
use std::ptr;

macro_rules! functions {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {
        #[allow(non_snake_case, reason = "the driver's own names")]
        struct DriverFunctions {
            $($name: unsafe extern "C" fn($($type),*) -> u32,)*
        }

        impl DriverFunctions {
            /// Looks up all functions; on failure returns the names of the missing ones.
            #[allow(non_snake_case, reason = "the driver's own names")]
            fn from_library(library: &Library) -> Result<Self, Vec<&'static str>> {
                let mut missing = Vec::new();
                // SAFETY: the driver has these functions with these types under these names.
                $(let $name = unsafe { symbol(library, stringify!($name), &mut missing) };)*
                match ($($name,)*) {
                    ($(Some($name),)*) => Ok(Self { $($name),* }),
                    _ => Err(missing),
                }
            }
        }

        #[allow(non_snake_case, clippy::too_many_arguments, reason = "the driver's own names and arguments")]
        #[allow(dead_code, reason = "error names and texts are looked up without these wrappers")]
        impl Driver {
            $(
                /// # Safety
                /// As NVIDIA documents the function of this name.
                pub(super) unsafe fn $name(&self, $($argument: $type),*) -> Result<(), CudaError> {
                    // SAFETY: guaranteed by the caller.
                    self.check(stringify!($name), unsafe { (self.functions.$name)($($argument),*) })
                }
            )*
        }
    };
}

functions! {
    cuInit(flags: c_uint);
    cuDriverGetVersion(version: *mut c_int);
    cuGetErrorName(code: u32, name: *mut *const c_char);
    cuGetErrorString(code: u32, text: *mut *const c_char);

    cuDeviceGetCount(count: *mut c_int);
    cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
    cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice);
    cuDeviceGetPCIBusId(id: *mut c_char, len: c_int, device: CUdevice);
    cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
    cuDeviceGetAttribute(value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice);
    cuDeviceCanAccessPeer(can: *mut c_int, device: CUdevice, peer: CUdevice);

    cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    cuCtxSetCurrent(context: CUcontext);
    cuCtxSynchronize();
    cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int);
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize);

    cuStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, priority: c_int);
    cuStreamDestroy_v2(stream: CUstream);
    cuStreamSynchronize(stream: CUstream);
    cuStreamQuery(stream: CUstream);
    cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
    cuEventCreate(event: *mut CUevent, flags: c_uint);
    cuEventDestroy_v2(event: CUevent);
    cuEventRecord(event: CUevent, stream: CUstream);
    cuEventQuery(event: CUevent);
    cuEventSynchronize(event: CUevent);
    cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent);

    cuModuleLoadDataEx(module: *mut CUmodule, image: *const c_void, count: c_uint, options: *mut CUjit_option, values: *mut *mut c_void);
    cuModuleUnload(module: CUmodule);
    cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
    cuFuncGetAttribute(value: *mut c_int, attribute: CUfunction_attribute, function: CUfunction);
    cuFuncSetAttribute(function: CUfunction, attribute: CUfunction_attribute, value: c_int);
    cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: *mut c_int, function: CUfunction, threads: c_int, shared_bytes: usize);
    cuLaunchKernel(function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared_bytes: c_uint, stream: CUstream, parameters: *mut *mut c_void, extra: *mut *mut c_void);

    cuStreamBeginCapture_v2(stream: CUstream, mode: CUstreamCaptureMode);
    cuStreamGetCaptureInfo_v3(stream: CUstream, status: *mut c_uint, id: *mut c_ulonglong, graph: *mut CUgraph,
        nodes: *mut *const CUgraphNode, edges: *mut *const CUgraphEdgeData, count: *mut usize);
    cuStreamUpdateCaptureDependencies_v2(stream: CUstream, nodes: *mut CUgraphNode, edges: *const CUgraphEdgeData, count: usize, flags: c_uint);
    cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
    cuGraphGetNodes(graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize);
    cuGraphInstantiateWithFlags(executable: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong);
    cuGraphUpload(executable: CUgraphExec, stream: CUstream);
    cuGraphLaunch(executable: CUgraphExec, stream: CUstream);
    cuGraphExecDestroy(executable: CUgraphExec);
    cuGraphDestroy(graph: CUgraph);

    cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize);
    cuMemFree_v2(address: CUdeviceptr);
    cuMemHostAlloc(address: *mut *mut c_void, bytes: usize, flags: c_uint);
    cuMemFreeHost(address: *mut c_void);
    cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
    cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
    cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
    cuMemcpyPeerAsync(to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext, bytes: usize, stream: CUstream);
    cuMemsetD8Async(address: CUdeviceptr, value: c_uchar, bytes: usize, stream: CUstream);

    cuMemGetAllocationGranularity(bytes: *mut usize, properties: *const CUmemAllocationProp, option: CUmemAllocationGranularity_flags);
    cuMemAddressReserve(address: *mut CUdeviceptr, bytes: usize, alignment: usize, wanted: CUdeviceptr, flags: c_ulonglong);
    cuMemAddressFree(address: CUdeviceptr, bytes: usize);
    cuMemCreate(handle: *mut CUmemGenericAllocationHandle, bytes: usize, properties: *const CUmemAllocationProp, flags: c_ulonglong);
    cuMemRelease(handle: CUmemGenericAllocationHandle);
    cuMemMap(address: CUdeviceptr, bytes: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: c_ulonglong);
    cuMemUnmap(address: CUdeviceptr, bytes: usize);
    cuMemSetAccess(address: CUdeviceptr, bytes: usize, accesses: *const CUmemAccessDesc, count: usize);
    cuMemExportToShareableHandle(shareable: *mut c_void, handle: CUmemGenericAllocationHandle, kind: CUmemAllocationHandleType, flags: c_ulonglong);
    cuMemImportFromShareableHandle(handle: *mut CUmemGenericAllocationHandle, shareable: *mut c_void, kind: CUmemAllocationHandleType);
}

/// The opened driver. It stays open while any object on a device exists.
pub(super) struct Driver {
    functions: DriverFunctions,
    /// The version of CUDA that the driver implements, as `1000 * major + 10 * minor`.
    version: u32,
    /// Path of the library.
    path: PathBuf,
    _library: Library,
}

impl Driver {
    /// Opens the driver that `search` finds, and initialises it.
    pub(super) fn find(search: &Search) -> Result<Self, Unavailable> {
        if let Some(path) = find_driver(search)? {
            return match open(&path) {
                Ok(library) => Self::start(library, &path),
                Err(error) => Err(Unavailable::Unusable { path, why: reason(&error) }),
            };
        }
        if !search.loader {
            return Err(no_driver(search, None));
        }
        let library = open(Path::new(DRIVER)).map_err(|error| no_driver(search, Some(&error)))?;
        let path = file_of(&library).unwrap_or_else(|| DRIVER.into());
        Self::start(library, &path)
    }

    fn start(library: Library, path: &Path) -> Result<Self, Unavailable> {
        let unusable = |why: String| Unavailable::Unusable { path: path.to_owned(), why };
        let functions = DriverFunctions::from_library(&library);
        let functions = functions.map_err(|missing| Unavailable::MissingFunctions {
            path: path.to_owned(),
            functions: missing.join(", "),
        })?;
        let mut driver = Self { functions, version: 0, path: path.to_owned(), _library: library };
        // SAFETY: the first call of the driver; repeating it is allowed.
        unsafe { driver.cuInit(0) }.map_err(|error| match error {
            error if error.is(NO_DEVICE) => Unavailable::NoDevice { path: path.to_owned() },
            error => unusable(error.to_string()),
        })?;
        let mut version = 0;
        // SAFETY: `version` outlives the call.
        unsafe { driver.cuDriverGetVersion(&mut version) }.map_err(|error| unusable(error.to_string()))?;
        driver.version = u32::try_from(version).unwrap_or_default();
        Ok(driver)
    }

    /// The version of CUDA that the driver implements, as `1000 * major + 10 * minor`.
    pub(super) fn version(&self) -> u32 {
        self.version
    }

    /// Path of the library.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn check(&self, call: &'static str, code: u32) -> Result<(), CudaError> {
        if code == 0 { Ok(()) } else { Err(self.error(call, code)) }
    }

    #[cold]
    fn error(&self, call: &'static str, code: u32) -> CudaError {
        let text = |ask: unsafe extern "C" fn(u32, *mut *const c_char) -> u32| {
            let mut text = ptr::null();
            // SAFETY: `text` outlives the call, which stores the address of a constant string
            // there, or null for an unknown code.
            let known = unsafe { ask(code, &mut text) } == 0 && !text.is_null();
            // SAFETY: as above.
            known.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        let name = text(self.functions.cuGetErrorName).unwrap_or_else(|| format!("error {code}"));
        let what =
            text(self.functions.cuGetErrorString).unwrap_or_else(|| "unknown to this driver".to_owned());
        CudaError::from_code(call, code, name, what)
    }
}

/// Opens the library at a path; for a bare name, the library that the system's loader finds.
fn open(path: &Path) -> Result<Library, libloading::Error> {
    // RTLD_GLOBAL, so that libraries with their own driver calls, such as cuBLASLt, use the same
    // driver.
    // SAFETY: opening NVIDIA's driver runs its initialisers, which have no preconditions.
    unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) }
}

/// Path of the file that the loader has mapped for the driver, found by the address of its first
/// function.
fn file_of(library: &Library) -> Option<PathBuf> {
    // SAFETY: the address is only compared, never used.
    let function = unsafe { library.get::<*const c_void>("cuInit") }.ok()?;
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    mapped_file(&maps, *function as usize)
}

/// The file that is mapped at an address, according to the kernel's list of mappings.
fn mapped_file(maps: &str, address: usize) -> Option<PathBuf> {
    let file = |line: &str| {
        // Addresses, permissions, offset, device and inode; the rest is the file.
        let mut rest = line;
        let mut field = || {
            let (field, behind) = rest.trim_start().split_once(' ')?;
            rest = behind;
            Some(field)
        };
        let (start, end) = field()?.split_once('-')?;
        (0..4).try_for_each(|_| field().map(drop))?;
        let bounds = usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?;
        let file = rest.trim_start();
        (bounds.contains(&address) && file.starts_with('/')).then(|| PathBuf::from(file))
    };
    maps.lines().find_map(file)
}

/// Looks up one function, and adds its name to `missing` if it does not exist.
///
/// # Safety
/// `F` is the type of the function of that name.
pub(super) unsafe fn symbol<F: Copy>(
    library: &Library,
    name: &'static str,
    missing: &mut Vec<&'static str>,
) -> Option<F> {
    // SAFETY: guaranteed by the caller; the library stays open as long as the functions are kept.
    let found = unsafe { library.get::<F>(name) };
    match found {
        Ok(function) => Some(*function),
        Err(_) => {
            missing.push(name);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_file_is_the_one_around_the_address() {
        let maps = "7f00-7f10 r--p 00000000 fe:01 131 /usr/lib/libc.so.6\n\
                    7f10-7f20 r-xp 00010000 fe:01 132                 /opt/a driver/libcuda.so.1\n\
                    7f20-7f30 rw-p 00000000 00:00 0 \n\
                    7f30-7f40 rw-p 00000000 00:00 0                 [heap]\n";
        assert_eq!(mapped_file(maps, 0x7f18), Some("/opt/a driver/libcuda.so.1".into()));
        for address in [0x7eff, 0x7f20, 0x7f38] {
            assert_eq!(mapped_file(maps, address), None, "{address:x}");
        }
    }
}
