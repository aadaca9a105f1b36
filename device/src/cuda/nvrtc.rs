//! NVIDIA's runtime compiler for CUDA C (NVRTC), where it is installed.
#![allow(unsafe_code, reason = "NVRTC has an interface in C")]

mod functions;

use super::library::{Library, find_library, open_library};
use super::search::Search;
use super::unavailable::Unavailable;
use functions::{Get, NvrtcFunctions, NvrtcProgram, SizeFn};
use libloading::os::unix::{Library as Opened, RTLD_GLOBAL, RTLD_NOW};
use std::ffi::{CString, c_char, c_int};
use std::path::Path;
use std::ptr;

/// Options for code that runs on every device from this compute capability on.
const PORTABLE: [&str; 2] = ["--gpu-architecture=compute_75", "--std=c++17"];
/// The most bytes that are kept of the compiler's log.
const LOG_BYTES_MAX: usize = 64 << 10;
/// The most architectures that a version may list; current versions list about twenty.
const ARCHITECTURES_MAX: usize = 1 << 10;

/// NVRTC, loaded. It parses its input in C++: unless the source is Weir's own, use it in a process
/// that may crash.
pub struct Nvrtc {
    functions: NvrtcFunctions,
    version: [u32; 2],
    /// Compute capabilities that the compiler supports, as 90 for 9.0.
    architectures: Vec<u32>,
}

/// Source to compile.
#[derive(Debug, Clone, Copy)]
pub struct CudaSource<'a> {
    /// File name in the compiler's messages.
    pub name: &'a str,
    /// The source text.
    pub text: &'a str,
    /// Headers that the source may include: names and texts.
    pub headers: &'a [(&'a str, &'a str)],
}

/// Target of a compilation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompileTarget {
    /// Machine code for devices of this compute capability: any driver with the compiler's major
    /// version loads it.
    Cubin(u32),
    /// PTX for devices of this compute capability and later ones. The driver compiles it, if it is
    /// as new as the compiler.
    Ptx(u32),
}

/// Result of a compilation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompiledCode {
    /// Image for [`Module::load`](super::Module::load).
    pub image: Vec<u8>,
    /// The compiler's log.
    pub log: String,
}

impl Nvrtc {
    /// Finds NVRTC and opens it for the lifetime of the process.
    pub fn find(search: &Search) -> Result<Self, Unavailable> {
        Self::opened(&find_library(Library::Nvrtc, search)?)
    }

    /// Opens the file at `path` for the lifetime of the process.
    pub fn open(path: &Path) -> Result<Self, Unavailable> {
        open_library(Library::Nvrtc, path)?;
        Self::opened(path)
    }

    fn opened(path: &Path) -> Result<Self, Unavailable> {
        let unusable = |why: String| Unavailable::Unusable { path: path.to_owned(), why };
        // SAFETY: the library is already open, so no initialisers run.
        let library = unsafe { Opened::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
        let library = library.map_err(|error| unusable(error.to_string()))?;
        let functions = NvrtcFunctions::from_library(&library);
        let functions = functions.map_err(|missing| unusable(format!("it lacks {}", missing.join(", "))))?;
        // Never closed: other libraries may have found it by name.
        std::mem::forget(library);
        let mut major = 0;
        let mut minor = 0;
        // SAFETY: both outlive the call.
        expect(unsafe { (functions.version)(&mut major, &mut minor) }).map_err(&unusable)?;
        let version = [major, minor].map(|number| u32::try_from(number).unwrap_or_default());
        Library::Nvrtc.check_major(path, version[0])?;
        let architectures = architectures(&functions).map_err(&unusable)?;
        Ok(Self { functions, version, architectures })
    }

    /// Version of the compiler, as `12.4`.
    #[must_use]
    pub fn version(&self) -> String {
        self.version.map(|number| number.to_string()).join(".")
    }

    /// The best target for devices of a compute capability: machine code, or PTX of the newest
    /// known capability before it; `None` if the compiler only knows newer devices.
    #[must_use]
    pub fn target(&self, compute_capability: u32) -> Option<CompileTarget> {
        let known = self.architectures.iter().copied().filter(|known| *known <= compute_capability).max()?;
        Some(if known == compute_capability {
            CompileTarget::Cubin(known)
        } else {
            CompileTarget::Ptx(known)
        })
    }

    /// Compiles a source, whose file is called `name`, to PTX. The error is the compiler's log.
    pub fn ptx(&self, name: &str, source: &str) -> Result<String, String> {
        let made =
            self.run(&CudaSource { name, text: source, headers: &[] }, &PORTABLE.map(str::to_owned))?;
        let ptx = made.bytes(self.functions.ptx_size, self.functions.ptx)?;
        Ok(String::from_utf8_lossy(&ptx).trim_end_matches('\0').to_owned())
    }

    /// Compiles a source with further options. The error is the compiler's log.
    pub fn compile(
        &self,
        source: &CudaSource<'_>,
        target: CompileTarget,
        options: &[&str],
    ) -> Result<CompiledCode, String> {
        let architecture = match target {
            CompileTarget::Cubin(capability) => format!("--gpu-architecture=sm_{capability}"),
            CompileTarget::Ptx(capability) => format!("--gpu-architecture=compute_{capability}"),
        };
        let options = options.iter().map(|option| (*option).to_owned()).chain([architecture]);
        let made = self.run(source, &options.collect::<Vec<_>>())?;
        let NvrtcFunctions { cubin_size, cubin, ptx_size, ptx, .. } = self.functions;
        let image = match target {
            CompileTarget::Cubin(_) => made.bytes(cubin_size, cubin),
            CompileTarget::Ptx(_) => made.bytes(ptx_size, ptx),
        };
        Ok(CompiledCode { image: image?, log: made.log()? })
    }

    fn run(&self, source: &CudaSource<'_>, options: &[String]) -> Result<Compilation<'_>, String> {
        let name = c_text(source.name)?;
        let text = c_text(source.text)?;
        let names = source.headers.iter().map(|(name, _)| c_text(name)).collect::<Result<Vec<_>, _>>()?;
        let texts = source.headers.iter().map(|(_, text)| c_text(text)).collect::<Result<Vec<_>, _>>()?;
        let options = options.iter().map(|option| c_text(option)).collect::<Result<Vec<_>, _>>()?;
        let names = pointers(&names);
        let texts = pointers(&texts);
        let options_at = pointers(&options);
        let count = |items: &[*const c_char]| c_int::try_from(items.len()).map_err(|error| error.to_string());

        let mut made = Compilation { functions: &self.functions, program: ptr::null_mut() };
        // SAFETY: all texts outlive the call, which copies them; there are as many header names as
        // header texts.
        let code = unsafe {
            (self.functions.create)(
                &mut made.program,
                text.as_ptr(),
                name.as_ptr(),
                count(&names)?,
                texts.as_ptr(),
                names.as_ptr(),
            )
        };
        expect(code)?;
        // SAFETY: the program was created above, and the options outlive the call.
        let code =
            unsafe { (self.functions.compile)(made.program, count(&options_at)?, options_at.as_ptr()) };
        if code == 0 { Ok(made) } else { Err(made.log()?) }
    }
}

/// A program being compiled.
struct Compilation<'a> {
    functions: &'a NvrtcFunctions,
    program: NvrtcProgram,
}

impl Compilation<'_> {
    /// The compiler's log.
    fn log(&self) -> Result<String, String> {
        let log = self.bytes(self.functions.log_size, self.functions.log)?;
        let mut log = String::from_utf8_lossy(&log).trim_end_matches('\0').to_owned();
        log.truncate(log.floor_char_boundary(LOG_BYTES_MAX));
        Ok(log.trim_end().to_owned())
    }

    /// Reads data that NVRTC returns by its size and then its bytes.
    fn bytes(&self, size: SizeFn, get: Get) -> Result<Vec<u8>, String> {
        let mut bytes = 0;
        // SAFETY: the program was created; `bytes` outlives the call.
        expect(unsafe { size(self.program, &mut bytes) })?;
        let mut buffer = vec![0_u8; bytes];
        // SAFETY: the buffer is as large as NVRTC states.
        expect(unsafe { get(self.program, buffer.as_mut_ptr().cast()) })?;
        Ok(buffer)
    }
}

impl Drop for Compilation<'_> {
    fn drop(&mut self) {
        if !self.program.is_null() {
            // SAFETY: the program was created, and is not used after this call.
            unsafe { (self.functions.destroy)(&mut self.program) };
        }
    }
}

fn architectures(functions: &NvrtcFunctions) -> Result<Vec<u32>, String> {
    let mut count = 0;
    // SAFETY: `count` outlives the call.
    expect(unsafe { (functions.architectures_len)(&mut count) })?;
    let len = usize::try_from(count).ok().filter(|len| *len <= ARCHITECTURES_MAX);
    let mut architectures = vec![0; len.ok_or_else(|| format!("it knows {count} architectures"))?];
    // SAFETY: there is room for the number that NVRTC states.
    expect(unsafe { (functions.architectures)(architectures.as_mut_ptr()) })?;
    Ok(architectures.into_iter().filter_map(|known| u32::try_from(known).ok()).collect())
}

fn c_text(text: &str) -> Result<CString, String> {
    CString::new(text).map_err(|_| "a source has no zero bytes".to_owned())
}

fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).collect()
}

fn expect(code: c_int) -> Result<(), String> {
    if code == 0 { Ok(()) } else { Err(format!("NVRTC fails with error {code}")) }
}
