//! NVIDIA's libraries, which are loaded at run time: a node starts without them, and reports the
//! missing ones.
#![allow(
    unsafe_code,
    reason = "libraries stay open for the lifetime of the process, so that later lookups by name get these"
)]

use super::search::Search;
use super::unavailable::Unavailable;
use libloading::os::unix::{Library as Opened, RTLD_GLOBAL, RTLD_NOW};
use std::error::Error as _;
use std::path::{Path, PathBuf};

/// File name of the driver, and its soname.
pub(super) const DRIVER: &str = "libcuda.so.1";

/// The oldest driver that accepts Weir's machine-independent code, by the version of CUDA that it
/// implements.
pub(super) const DRIVER_VERSION_MIN: u32 = 12_040;

/// An NVIDIA library other than the driver. Weir has more functions, or is faster, with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Library {
    /// The compiler for kernels.
    Nvrtc,
    /// Matrix products.
    CublasLt,
}

impl Library {
    fn stem(self) -> &'static str {
        match self {
            Self::Nvrtc => "libnvrtc.so",
            Self::CublasLt => "libcublasLt.so",
        }
    }

    fn what(self) -> &'static str {
        match self {
            Self::Nvrtc => "compiler for kernels (NVRTC)",
            Self::CublasLt => "cuBLASLt",
        }
    }

    /// Checks that a file has a version that Weir knows, whatever its name.
    pub(super) fn check_major(self, path: &Path, found: u32) -> Result<(), Unavailable> {
        if MAJORS.contains(&found) {
            return Ok(());
        }
        Err(Unavailable::WrongVersion { path: path.to_owned(), found, known: KNOWN, advice: self.advice() })
    }

    fn advice(self) -> &'static str {
        match self {
            Self::Nvrtc => {
                "get it with `pip install nvidia-cuda-nvrtc-cu12`, or name its folder in WEIR_CUDA_LIBRARY_PATH"
            }
            Self::CublasLt => {
                "get it with `pip install nvidia-cublas-cu12`, or name its folder in WEIR_CUDA_LIBRARY_PATH"
            }
        }
    }
}

/// The major versions of the libraries that Weir knows, the preferred one first.
const MAJORS: [u32; 2] = [13, 12];
/// The same in words.
const KNOWN: &str = "12 and 13";

/// The driver's file, if the search names it or a folder contains it. Opens nothing.
pub(super) fn find_driver(search: &Search) -> Result<Option<PathBuf>, Unavailable> {
    if let Some(path) = &search.driver {
        let there = path.is_file();
        return if there {
            Ok(Some(path.clone()))
        } else {
            Err(Unavailable::NotWhereSet { path: path.clone() })
        };
    }
    Ok(search.folders.iter().map(|folder| folder.join(DRIVER)).find(|path| path.is_file()))
}

/// The loader's message about a library that it could not open.
pub(super) fn reason(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// The error if no folder has a driver, with the loader's message if the loader was asked.
pub(super) fn no_driver(search: &Search, loader: Option<&libloading::Error>) -> Unavailable {
    let loader =
        loader.map(|error| format!(", and by the loader, which says: {}", reason(error))).unwrap_or_default();
    Unavailable::NotFound {
        what: "NVIDIA driver",
        file: DRIVER.to_owned(),
        places: places(search) + &loader,
        advice: "Weir runs models on the CPU without one; if there is a GPU, install its driver, or name the file in WEIR_CUDA_LIBRARY",
    }
}

/// Finds `library` and opens it for the lifetime of the process, so that later lookups by name get
/// this one. Returns its path.
///
/// A version that the driver does not support is detected at its use, and not here.
pub fn find_library(library: Library, search: &Search) -> Result<PathBuf, Unavailable> {
    let path = newest(library, search, u32::MAX)?;
    open_library(library, &path)?;
    Ok(path)
}

/// Opens the file of `library`, with its parts, for the lifetime of the process.
pub(super) fn open_library(library: Library, path: &Path) -> Result<(), Unavailable> {
    if library == Library::Nvrtc {
        // The loader would not find NVRTC's parts in the same folder in every version.
        if let Some(builtins) = path.parent().and_then(|folder| file_starting(folder, "libnvrtc-builtins.so"))
        {
            open(&builtins)?;
        }
    }
    open(path)
}

/// The file of `library` for a driver with this major version of CUDA: a library needs a driver
/// that is as new. Opens nothing.
pub fn locate_library(library: Library, search: &Search, driver_major: u32) -> Result<PathBuf, Unavailable> {
    newest(library, search, driver_major)
}

/// The file of `library` with the preferred version up to `major_max`, in the first folder that has
/// one.
fn newest(library: Library, search: &Search, major_max: u32) -> Result<PathBuf, Unavailable> {
    let named = |major: u32| {
        let name = format!("{}.{major}", library.stem());
        search.folders.iter().map(|folder| folder.join(&name)).find(|path| path.is_file())
    };
    if let Some(path) = MAJORS.into_iter().filter(|major| *major <= major_max).find_map(named) {
        return Ok(path);
    }
    if let Some((found, path)) = MAJORS.into_iter().find_map(|major| Some((major, named(major)?))) {
        return Err(Unavailable::TooNewForDriver { path, found, driver: major_max });
    }
    // A wrong version gets a more specific error than a missing library.
    let others = (1..100).rev().find_map(|major| Some((named(major)?, major)));
    Err(match others {
        Some((path, found)) => {
            Unavailable::WrongVersion { path, found, known: KNOWN, advice: library.advice() }
        }
        None => Unavailable::NotFound {
            what: library.what(),
            file: format!("{}.13 or .12", library.stem()),
            places: places(search),
            advice: library.advice(),
        },
    })
}

fn file_starting(folder: &Path, start: &str) -> Option<PathBuf> {
    let names = folder.read_dir().ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    // The folder also has variants for other purposes, called `*.alt.so*`, which start differently.
    names.filter(|name| name.starts_with(start)).max().map(|name| folder.join(name))
}

fn open(path: &Path) -> Result<(), Unavailable> {
    // SAFETY: opening NVIDIA's libraries runs their initialisers, which have no preconditions.
    let opened = unsafe { Opened::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
    let opened =
        opened.map_err(|error| Unavailable::Unusable { path: path.to_owned(), why: reason(&error) })?;
    // Never closed: other libraries may have found it by name.
    std::mem::forget(opened);
    Ok(())
}

fn places(search: &Search) -> String {
    let places: Vec<_> = search.folders.iter().map(|folder| folder.display().to_string()).collect();
    if places.is_empty() { "no folder at all".to_owned() } else { places.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(folder: &Path) -> Search {
        Search { folders: vec![folder.to_owned()], ..Search::default() }
    }

    #[test]
    fn missing_driver_error_names_places_and_remedy() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(find_driver(&search(folder.path())), Ok(None));
        let text = no_driver(&search(folder.path()), None).to_string();
        assert!(text.contains("libcuda.so.1") && text.contains("WEIR_CUDA_LIBRARY"), "{text}");
        assert!(text.contains(&folder.path().display().to_string()), "{text}");
    }

    #[test]
    fn named_driver_is_binding() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(DRIVER), "").unwrap();
        let named = Search { driver: Some("/nowhere/libcuda.so.1".into()), ..search(folder.path()) };
        assert!(matches!(find_driver(&named), Err(Unavailable::NotWhereSet { .. })));
        assert_eq!(find_driver(&search(folder.path())), Ok(Some(folder.path().join(DRIVER))));
    }

    #[test]
    fn known_version_is_preferred_and_unknown_one_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let add = |name: &str| std::fs::write(folder.path().join(name), "").unwrap();
        assert!(matches!(
            newest(Library::Nvrtc, &search(folder.path()), 13),
            Err(Unavailable::NotFound { .. })
        ));
        add("libnvrtc.so.11");
        let error = newest(Library::Nvrtc, &search(folder.path()), 13).unwrap_err();
        assert!(matches!(error, Unavailable::WrongVersion { found: 11, .. }), "{error}");
        add("libnvrtc.so.12");
        let path = newest(Library::Nvrtc, &search(folder.path()), 13).unwrap();
        assert!(path.ends_with("libnvrtc.so.12"), "{path:?}");
    }

    #[test]
    fn library_is_not_newer_than_the_driver() {
        let folder = tempfile::tempdir().unwrap();
        let add = |name: &str| std::fs::write(folder.path().join(name), "").unwrap();
        let locate = |driver| locate_library(Library::CublasLt, &search(folder.path()), driver);
        add("libcublasLt.so.13");
        assert!(locate(13).unwrap().ends_with("libcublasLt.so.13"));
        let error = locate(12).unwrap_err();
        assert!(matches!(error, Unavailable::TooNewForDriver { found: 13, driver: 12, .. }), "{error}");
        add("libcublasLt.so.12");
        assert!(locate(12).unwrap().ends_with("libcublasLt.so.12"));
        assert!(locate(13).unwrap().ends_with("libcublasLt.so.13"));
    }

    #[test]
    fn invalid_library_file_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("libcublasLt.so.12"), "not a library").unwrap();
        let error = find_library(Library::CublasLt, &search(folder.path())).unwrap_err();
        assert!(matches!(error, Unavailable::Unusable { .. }), "{error}");
    }
}
