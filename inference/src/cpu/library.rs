//! Finding ONNX Runtime, which is not linked in: a node starts without it, and says how to get it when a model needs it.

use std::env;
use std::path::{Path, PathBuf};

/// The library's file name.
pub(crate) const FILE_NAME: &str = "libonnxruntime.so";

/// The variable that says where the library is.
pub(crate) const VARIABLE: &str = "WEIR_ONNXRUNTIME";

/// Why there is no ONNX Runtime to use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LibraryError {
    /// The configuration or the environment names a file that is not there.
    #[error("{FILE_NAME} is not at {path}, where {set_by} says it is")]
    NotWhereSet {
        /// Where it should be.
        path: PathBuf,
        /// What says so.
        set_by: &'static str,
    },
    /// It is in none of the places where it is looked for.
    #[error(
        "{FILE_NAME} was not found (looked for {places}); get it with `weir doctor --fix`, or `cargo xtask setup` in the repository"
    )]
    NotFound {
        /// Where it was looked for.
        places: String,
    },
    /// The file is there, but cannot be used.
    #[error(
        "{path} cannot be used as ONNX Runtime: {why}; get one that can with `weir doctor --fix`, or `cargo xtask setup` in the repository"
    )]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

/// Find `libonnxruntime.so`: where `explicit` or `WEIR_ONNXRUNTIME` says, which are binding; else beside the executable, in `../lib` from
/// there, in `.weir/lib` of the current folder or one above it, in `~/.local/share/weir/lib`, or where the system's loader looks.
///
/// Reads the file system, and the environment for the last two; opens nothing.
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
    // Where the loader looks without being told, on the systems that the library is built for.
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
