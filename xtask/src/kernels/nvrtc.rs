//! Bindings to NVRTC, NVIDIA's runtime compiler, which needs neither a device nor its headers.
#![allow(unsafe_code, reason = "NVRTC has an interface in C, and only developers run it")]

use anyhow::{Context as _, Result, bail};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::ffi::{CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr;

/// Source file or header.
pub(super) struct KernelSource {
    pub(super) name: String,
    pub(super) text: String,
}

/// The loaded library.
pub(super) struct NvrtcLibrary {
    library: Library,
    // Loaded first, because NVRTC searches for it by name. Both stay loaded.
    _builtins: Library,
}

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

impl NvrtcLibrary {
    /// Loads NVRTC from the Python environment in `folder`.
    pub(super) fn open(folder: &Path) -> Result<Self> {
        let load = |beginning: &str| -> Result<Library> {
            let file = find(folder, beginning)?;
            // SAFETY: the initialisers of these libraries do not affect this program's state.
            let library = unsafe { Library::open(Some(&file), RTLD_NOW | RTLD_GLOBAL) };
            library.with_context(|| format!("cannot load {}", file.display()))
        };
        let builtins = load("libnvrtc-builtins.so.")?;
        Ok(Self { library: load("libnvrtc.so.")?, _builtins: builtins })
    }

    /// Compiles `source` to PTX.
    pub(super) fn ptx(
        &self,
        source: &KernelSource,
        headers: &[KernelSource],
        options: &[&str],
    ) -> Result<String> {
        self.compile(source, headers, options)?.text(b"nvrtcGetPTXSize\0", b"nvrtcGetPTX\0")
    }

    fn compile(
        &self,
        source: &KernelSource,
        headers: &[KernelSource],
        options: &[&str],
    ) -> Result<Compilation<'_>> {
        let text = CString::new(source.text.as_str())?;
        let name = CString::new(source.name.as_str())?;
        let strings = |strings: &mut dyn Iterator<Item = &str>| -> Result<Vec<CString>> {
            strings.map(|text| Ok(CString::new(text)?)).collect()
        };
        let texts = strings(&mut headers.iter().map(|header| header.text.as_str()))?;
        let names = strings(&mut headers.iter().map(|header| header.name.as_str()))?;
        let options = strings(&mut options.iter().copied())?;
        let pointers = |strings: &[CString]| strings.iter().map(|text| text.as_ptr()).collect::<Vec<_>>();
        let texts_at = pointers(&texts);
        let names_at = pointers(&names);
        let options_at = pointers(&options);

        let mut made = Compilation { nvrtc: self, program: ptr::null_mut() };
        // SAFETY: the declaration matches NVRTC's documentation; all strings live until after the
        // call, which copies them.
        let code = unsafe {
            self.symbol::<Create>(b"nvrtcCreateProgram\0")?(
                &mut made.program,
                text.as_ptr(),
                name.as_ptr(),
                headers.len() as c_int,
                texts_at.as_ptr(),
                names_at.as_ptr(),
            )
        };
        expect(code, "nvrtcCreateProgram")?;
        // SAFETY: the program was created above, and the strings live until after the call.
        let code = unsafe {
            self.symbol::<Compile>(b"nvrtcCompileProgram\0")?(
                made.program,
                options.len() as c_int,
                options_at.as_ptr(),
            )
        };
        if code != 0 {
            bail!("{} does not compile:\n{}", source.name, made.log().unwrap_or_default());
        }
        Ok(made)
    }

    /// Looks up a function by name.
    ///
    /// # Safety
    /// The function must have the type `T`.
    unsafe fn symbol<T: Copy>(&self, name: &[u8]) -> Result<T> {
        // SAFETY: the caller guarantees the type.
        let symbol = unsafe { self.library.get::<T>(name) };
        symbol
            .map(|symbol| *symbol)
            .with_context(|| format!("NVRTC has no {}", String::from_utf8_lossy(name)))
    }
}

/// Compiled program.
struct Compilation<'a> {
    nvrtc: &'a NvrtcLibrary,
    program: Program,
}

impl Compilation<'_> {
    fn log(&self) -> Result<String> {
        self.text(b"nvrtcGetProgramLogSize\0", b"nvrtcGetProgramLog\0")
    }

    /// Reads a text that NVRTC returns as its size and its null-terminated bytes.
    fn text(&self, size_name: &[u8], get_name: &[u8]) -> Result<String> {
        let mut size = 0;
        // SAFETY: both functions have these types for every kind of text, and the buffer has the
        // size that NVRTC reported.
        let buffer = unsafe {
            expect(self.nvrtc.symbol::<Size>(size_name)?(self.program, &mut size), "the size of a text")?;
            let mut buffer = vec![0_u8; size];
            expect(self.nvrtc.symbol::<Get>(get_name)?(self.program, buffer.as_mut_ptr().cast()), "a text")?;
            buffer
        };
        Ok(String::from_utf8_lossy(&buffer).trim_end_matches('\0').to_owned())
    }
}

impl Drop for Compilation<'_> {
    fn drop(&mut self) {
        // SAFETY: the program was created, or is null, which NVRTC rejects; it is not used after
        // this.
        if let Ok(destroy) = unsafe { self.nvrtc.symbol::<Destroy>(b"nvrtcDestroyProgram\0") } {
            // SAFETY: as above.
            unsafe { destroy(&mut self.program) };
        }
    }
}

fn expect(code: c_int, what: &str) -> Result<()> {
    if code == 0 { Ok(()) } else { bail!("NVRTC: error {code} at {what}") }
}

/// Finds the library whose file name starts with `beginning` in the packages that pip installed
/// below `folder`.
fn find(folder: &Path, beginning: &str) -> Result<PathBuf> {
    for packages in site_packages(folder)? {
        let Ok(files) = std::fs::read_dir(packages.join("nvidia/cuda_nvrtc/lib")) else { continue };
        let mut files = files.flatten().map(|entry| entry.path());
        let named = |path: &PathBuf| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(beginning))
        };
        if let Some(file) = files.find(named) {
            return Ok(file);
        }
    }
    bail!("there is no {beginning} below {}", folder.display())
}

/// Package folders of the Python environment in `folder`, one per Python version.
pub(super) fn site_packages(folder: &Path) -> Result<Vec<PathBuf>> {
    let pythons = std::fs::read_dir(folder.join("lib"))?.flatten();
    Ok(pythons.map(|python| python.path().join("site-packages")).collect())
}
