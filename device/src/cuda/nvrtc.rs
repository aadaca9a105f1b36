//! NVIDIA's compiler for CUDA C, where it is installed.
#![allow(unsafe_code, reason = "NVRTC has an interface in C")]

use super::library::{Library, find_library};
use super::search::Search;
use super::unavailable::Unavailable;
use libloading::os::unix::{Library as Opened, RTLD_GLOBAL, RTLD_NOW};
use std::ffi::{CString, c_char, c_int, c_void};
use std::path::PathBuf;
use std::ptr;

/// What is compiled for: every device from this on.
const OPTIONS: [&std::ffi::CStr; 2] = [c"--gpu-architecture=compute_75", c"--std=c++17"];
/// The most that is kept of what the compiler says.
const LOG_BYTES_MAX: usize = 64 << 10;

type Program = *mut c_void;
type Create = unsafe extern "C" fn(
    *mut Program,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type Get = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
type Destroy = unsafe extern "C" fn(*mut Program) -> c_int;

/// NVRTC, loaded. It parses what it is given in C++: let it do so in a process that may crash.
pub struct Nvrtc {
    create: Create,
    compile: Compile,
    ptx_size: Size,
    ptx: Get,
    log_size: Size,
    log: Get,
    destroy: Destroy,
}

impl Nvrtc {
    /// Find it and open it for good.
    pub fn find(search: &Search) -> Result<Self, Unavailable> {
        let path = find_library(Library::Nvrtc, search)?;
        let unusable = |path: PathBuf| {
            move |error: libloading::Error| Unavailable::Unusable { path, why: error.to_string() }
        };
        // SAFETY: opened a second time, it sets up nothing.
        let library =
            unsafe { Opened::open(Some(&path), RTLD_NOW | RTLD_GLOBAL) }.map_err(unusable(path.clone()))?;
        // SAFETY: NVRTC's documentation gives these functions these types; the library stays open.
        let nvrtc = unsafe {
            let open = || -> Result<Self, libloading::Error> {
                Ok(Self {
                    create: *library.get(b"nvrtcCreateProgram\0")?,
                    compile: *library.get(b"nvrtcCompileProgram\0")?,
                    ptx_size: *library.get(b"nvrtcGetPTXSize\0")?,
                    ptx: *library.get(b"nvrtcGetPTX\0")?,
                    log_size: *library.get(b"nvrtcGetProgramLogSize\0")?,
                    log: *library.get(b"nvrtcGetProgramLog\0")?,
                    destroy: *library.get(b"nvrtcDestroyProgram\0")?,
                })
            };
            open().map_err(unusable(path))
        };
        std::mem::forget(library);
        nvrtc
    }

    /// The PTX of a source, whose file has this name; or what the compiler has against it.
    pub fn ptx(&self, name: &str, source: &str) -> Result<String, String> {
        let text = |text: &str| CString::new(text).map_err(|_| "a source has no zero bytes".to_owned());
        let (name, source) = (text(name)?, text(source)?);
        let mut made = Compilation { nvrtc: self, program: ptr::null_mut() };
        // SAFETY: the texts outlive the call, which copies them; there are no headers.
        let code = unsafe {
            (self.create)(&mut made.program, source.as_ptr(), name.as_ptr(), 0, ptr::null(), ptr::null())
        };
        expect(code)?;
        let options = OPTIONS.map(std::ffi::CStr::as_ptr);
        // SAFETY: the program is one that was created, and the options are texts that stay.
        let code = unsafe { (self.compile)(made.program, options.len() as c_int, options.as_ptr()) };
        if code != 0 {
            let mut log = made.text(self.log_size, self.log)?;
            log.truncate(log.floor_char_boundary(LOG_BYTES_MAX));
            return Err(log.trim_end().to_owned());
        }
        made.text(self.ptx_size, self.ptx)
    }
}

/// A program that is compiled.
struct Compilation<'a> {
    nvrtc: &'a Nvrtc,
    program: Program,
}

impl Compilation<'_> {
    /// A text that NVRTC hands out by its size and then its bytes, the last of which is 0.
    fn text(&self, size: Size, get: Get) -> Result<String, String> {
        let mut bytes = 0;
        // SAFETY: the program is one that was created; `bytes` outlives the call.
        expect(unsafe { size(self.program, &mut bytes) })?;
        let mut buffer = vec![0_u8; bytes];
        // SAFETY: the buffer is as large as NVRTC says.
        expect(unsafe { get(self.program, buffer.as_mut_ptr().cast()) })?;
        Ok(String::from_utf8_lossy(&buffer).trim_end_matches('\0').to_owned())
    }
}

impl Drop for Compilation<'_> {
    fn drop(&mut self) {
        if !self.program.is_null() {
            // SAFETY: it was created, and nobody uses it after this.
            unsafe { (self.nvrtc.destroy)(&mut self.program) };
        }
    }
}

fn expect(code: c_int) -> Result<(), String> {
    if code == 0 { Ok(()) } else { Err(format!("NVRTC fails with error {code}")) }
}
