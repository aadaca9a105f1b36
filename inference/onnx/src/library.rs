//! Search for ONNX Runtime, which is loaded at run time. A node starts without it; when a model
//! needs it, the error explains how to install it.

use std::env;
use std::path::{Path, PathBuf};
use weir_inference::{InferenceError, PrepareError};

/// File name of the library.
const FILE_NAME: &str = "libonnxruntime.so";

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
/// search covers the executable's folder, `../lib` from there, `.weir/lib` of the current folder or
/// one above it, `~/.local/share/weir/lib`, and the folders of the system's loader.
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
    let found = places.iter().map(|folder| folder.join(FILE_NAME)).find(|path| path.is_file());
    found.ok_or_else(|| {
        let places = places.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(", ");
        LibraryError::NotFound { places }
    })
}

fn places() -> Vec<PathBuf> {
    let mut places = Vec::new();
    if let Some(folder) = env::current_exe().ok().as_deref().and_then(Path::parent) {
        places.push(folder.to_owned());
        places.extend(folder.parent().map(|above| above.join("lib")));
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
