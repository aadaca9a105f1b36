//! Search for ONNX Runtime, which is loaded at run time. A node starts without it; when a model
//! needs it, the error explains how to install it.

use std::env;
use std::path::{Path, PathBuf};
use weir_inference::{InferenceError, PrepareError};

/// File name of the library.
const FILE_NAME: &str = "libonnxruntime.so";

/// Folder with the library in the packages of Python.
const PYTHON_PACKAGE: &str = "onnxruntime/capi";

/// Folders of packages in an installation of Python.
const SITES: [&str; 2] = ["site-packages", "dist-packages"];

/// Environment variable with the library's path.
const VARIABLE: &str = "WEIR_ONNXRUNTIME";

/// Why ONNX Runtime is not available.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LibraryError {
    /// The configuration or the environment names a missing file.
    #[error("{FILE_NAME} is not at {path}, where {set_by} says it is")]
    NotWhereSet {
        /// The configured path.
        path: PathBuf,
        /// The setting that names the path.
        set_by: &'static str,
    },
    /// The library is in none of the searched places.
    #[error(
        "{FILE_NAME} was not found (looked for {places}); get it with `weir doctor --fix`, or `cargo xtask setup` in the repository"
    )]
    NotFound {
        /// The searched places.
        places: String,
    },
    /// The file exists, but cannot be used.
    #[error(
        "{path} cannot be used as ONNX Runtime: {why}; get one that can with `weir doctor --fix`, or `cargo xtask setup` in the repository"
    )]
    Unusable {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
}

impl From<LibraryError> for InferenceError {
    fn from(error: LibraryError) -> Self {
        Self::Library(error.to_string().into())
    }
}

impl From<LibraryError> for PrepareError {
    fn from(error: LibraryError) -> Self {
        Self::Library(error.to_string().into())
    }
}

/// Finds `libonnxruntime.so`. A path in `explicit` or `WEIR_ONNXRUNTIME` is binding. Otherwise the
/// search covers the executable's folder, `../lib` and `../lib/weir` from there, Python's package
/// `onnxruntime` that is installed next to the executable, `.weir/lib` of the current folder or one
/// above it, `~/.local/share/weir/lib`, and the folders of the system's loader.
///
/// Reads the file system, and the environment for the last two places; opens no file.
pub fn find_onnxruntime(explicit: Option<&Path>) -> Result<PathBuf, LibraryError> {
    let set = explicit.map(|path| (path.to_owned(), "the configuration"));
    let set = set.or_else(|| {
        env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(|path| (path.into(), VARIABLE))
    });
    if let Some((path, set_by)) = set {
        return if path.is_file() { Ok(path) } else { Err(LibraryError::NotWhereSet { path, set_by }) };
    }
    let places = places();
    let found = places.iter().find_map(|folder| library_in(folder));
    found.ok_or_else(|| {
        let places = places.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(", ");
        LibraryError::NotFound { places }
    })
}

/// The library in `folder`. Python's package has the version in the name of the file.
fn library_in(folder: &Path) -> Option<PathBuf> {
    let path = folder.join(FILE_NAME);
    if path.is_file() {
        return Some(path);
    }
    let is_python_package = folder.ends_with(PYTHON_PACKAGE);
    let mut files = is_python_package.then(|| folder.read_dir().ok()).flatten()?.flatten();
    let is_library = |name: &str| name.strip_prefix(FILE_NAME).is_some_and(|rest| rest.starts_with('.'));
    files.find(|entry| entry.file_name().to_str().is_some_and(is_library)).map(|entry| entry.path())
}

/// Folders with the library in the installations of Python below the folder `lib`.
fn python_packages(lib: &Path) -> Vec<PathBuf> {
    let entries = lib.read_dir().into_iter().flatten().flatten();
    let is_python = |name: &std::ffi::OsStr| name.to_str().is_some_and(|name| name.starts_with("python3"));
    let pythons = entries.filter(|entry| is_python(&entry.file_name()));
    pythons
        .flat_map(|python| SITES.map(|site| python.path().join(site).join(PYTHON_PACKAGE)))
        .filter(|folder| folder.is_dir())
        .collect()
}

fn places() -> Vec<PathBuf> {
    let mut places = Vec::new();
    if let Some(folder) = env::current_exe().ok().as_deref().and_then(Path::parent) {
        places.push(folder.to_owned());
        let lib = folder.parent().map(|above| above.join("lib"));
        places.extend(lib.iter().flat_map(|lib| [lib.clone(), lib.join("weir")]));
        places.extend(lib.iter().flat_map(|lib| python_packages(lib)));
    }
    if let Ok(current) = env::current_dir() {
        places.extend(current.ancestors().map(|folder| folder.join(".weir/lib")));
    }
    places.extend(env::home_dir().map(|home| home.join(".local/share/weir/lib")));
    let set = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    places.extend(env::split_paths(&set).filter(|folder| !folder.as_os_str().is_empty()));
    // The loader's default folders on the systems that the library is built for.
    let usual = [
        "/usr/local/lib",
        "/lib/x86_64-linux-gnu",
        "/usr/lib/x86_64-linux-gnu",
        "/lib64",
        "/usr/lib64",
        "/lib",
        "/usr/lib",
    ];
    places.extend(usual.map(PathBuf::from));
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates `path` with its folders below `top`.
    fn touch(top: &Path, path: &str) {
        let file = top.join(path);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, "").unwrap();
    }

    #[test]
    fn library_of_the_python_package_is_found() {
        let top = tempfile::tempdir().unwrap();
        let lib = top.path();
        for path in [
            "python3.11/site-packages/onnxruntime/capi/libonnxruntime_providers_shared.so",
            "python3.11/site-packages/onnxruntime/capi/libonnxruntime.so.1.31.1",
            "python3.12/site-packages/numpy/core.so",
            "systemd/onnxruntime/capi/libonnxruntime.so.1",
        ] {
            touch(lib, path);
        }
        let places = python_packages(lib);
        assert_eq!(places, [lib.join("python3.11/site-packages").join(PYTHON_PACKAGE)]);
        assert!(library_in(&places[0]).unwrap().ends_with("libonnxruntime.so.1.31.1"));
    }

    #[test]
    fn versions_of_the_library_are_only_accepted_from_the_python_package() {
        let folder = tempfile::tempdir().unwrap();
        touch(folder.path(), "libonnxruntime.so.1.31.1");
        assert_eq!(library_in(folder.path()), None);
        touch(folder.path(), "libonnxruntime.so");
        assert_eq!(library_in(folder.path()), Some(folder.path().join("libonnxruntime.so")));
    }
}
