//! Search paths of NVIDIA's libraries.

use std::env;
use std::path::{Path, PathBuf};

/// Environment variable that names the driver's library; binding.
pub(super) const DRIVER_VARIABLE: &str = "WEIR_CUDA_LIBRARY";

/// Environment variable with folders of NVIDIA's other libraries, which are searched first.
const FOLDERS_VARIABLE: &str = "WEIR_CUDA_LIBRARY_PATH";

/// The most folders that one pattern of a search yields.
const MATCHES_MAX: usize = 32;

/// Search settings for the driver and NVIDIA's other libraries. A plain value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Search {
    /// The driver's library, if configured; no other place is tried then.
    pub driver: Option<PathBuf>,
    /// Folders that may have libraries, the preferred ones first.
    pub folders: Vec<PathBuf>,
    /// Whether a driver outside of the folders is found by the loader's search: its cache
    /// (`ldconfig -p`) and the program's `RPATH`.
    pub loader: bool,
}

impl Search {
    /// Settings from the environment and the usual places: `WEIR_CUDA_LIBRARY` (the driver's file),
    /// `WEIR_CUDA_LIBRARY_PATH` and `LD_LIBRARY_PATH` (folders), NVIDIA's Python packages in the
    /// active environment, the home and the system, the loader's usual folders, and the CUDA
    /// toolkit; for the driver also the loader's search.
    ///
    /// Reads the environment and the names of folders; opens no file.
    #[must_use]
    pub fn from_environment() -> Self {
        let driver = env::var_os(DRIVER_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
        let mut folders = Vec::new();
        for variable in [FOLDERS_VARIABLE, "LD_LIBRARY_PATH"] {
            let set = env::var_os(variable).unwrap_or_default();
            folders.extend(env::split_paths(&set).filter(|folder| !folder.as_os_str().is_empty()));
        }
        for root in python_roots() {
            folders.extend(matches(&root, &["lib", "python3*", "*-packages", "nvidia", "*", "lib"]));
        }
        let usual = [
            "/usr/lib/x86_64-linux-gnu",
            "/usr/lib/aarch64-linux-gnu",
            "/lib/x86_64-linux-gnu",
            "/lib/aarch64-linux-gnu",
            "/usr/lib64",
            "/usr/lib",
            "/usr/local/nvidia/lib64",
            "/usr/lib/wsl/lib",
        ];
        folders.extend(usual.map(PathBuf::from));
        folders.extend(matches(Path::new("/usr/local"), &["cuda*", "lib64"]));
        Self { driver, folders, loader: true }
    }
}

/// Folders that may contain Python environments.
fn python_roots() -> Vec<PathBuf> {
    let set = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(env::var_os).map(PathBuf::from);
    let home = env::home_dir().map(|home| home.join(".local"));
    set.chain(home).chain(["/usr/local", "/usr"].map(PathBuf::from)).collect()
}

/// Folders below `root` that match `pattern`, whose parts may have one `*` each; sorted by name in
/// descending order, so that newer versions come first.
fn matches(root: &Path, pattern: &[&str]) -> Vec<PathBuf> {
    let Some((part, rest)) = pattern.split_first() else {
        return if root.is_dir() { vec![root.to_owned()] } else { Vec::new() };
    };
    let Some((start, end)) = part.split_once('*') else {
        return matches(&root.join(part), rest);
    };
    let Ok(entries) = root.read_dir() else { return Vec::new() };
    let fits =
        |name: &str| name.len() >= start.len() + end.len() && name.starts_with(start) && name.ends_with(end);
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<_> = names.filter(|name| fits(name)).collect();
    names.sort_unstable_by(|one, other| other.cmp(one));
    names.iter().flat_map(|name| matches(&root.join(name), rest)).take(MATCHES_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_packages_are_found_newest_first() {
        let root = tempfile::tempdir().unwrap();
        let folder = |path: &str| {
            let folder = root.path().join(path);
            std::fs::create_dir_all(&folder).unwrap();
            folder
        };
        let old = folder("lib/python3.10/site-packages/nvidia/cublas/lib");
        let new = folder("lib/python3.12/dist-packages/nvidia/cu13/lib");
        folder("lib/python2.7/site-packages/nvidia/cublas/lib");
        folder("lib/python3.12/dist-packages/other/cu13/lib");
        let found = matches(root.path(), &["lib", "python3*", "*-packages", "nvidia", "*", "lib"]);
        assert_eq!(found, [new, old]);
    }

    #[test]
    fn missing_folders_are_ignored() {
        assert!(matches(Path::new("/nowhere"), &["cuda*", "lib64"]).is_empty());
        assert!(matches(Path::new("/nowhere"), &["lib"]).is_empty());
    }
}
