//! Standard route: `rustc` has the target's standard library next to the host's.

use super::{Route, TARGET, Toolchain, ToolchainError};
use crate::process::{self, ProcessFailure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Sysroot of the `rustc` that builds `folder`.
pub(crate) fn sysroot(folder: &Path) -> Result<PathBuf, ToolchainError> {
    let no_rust = |source| ToolchainError::NoRust { folder: folder.display().to_string(), source };
    match process::answer(rustc(folder).args(["--print", "sysroot"])) {
        Ok(path) => Ok(path.into()),
        Err(ProcessFailure::Start(source)) => Err(no_rust(source)),
        Err(ProcessFailure::Exit(said)) => Err(no_rust(std::io::Error::other(said))),
    }
}

/// Finds the standard library of the target.
pub(crate) fn find(folder: &Path, sysroot: &Path) -> Result<Toolchain, String> {
    let library = process::answer(rustc(folder).args(["--print", "target-libdir", "--target", TARGET]))
        .map_or_else(|_| sysroot.join("lib/rustlib").join(TARGET).join("lib"), PathBuf::from);
    if has_std(&library) {
        return Ok(Toolchain { route: Route::Rustc, env: Vec::new() });
    }
    Err(format!("rustc: {} has no standard library", library.display()))
}

/// Adds the target with rustup, to the toolchain that builds `folder`.
pub(crate) fn install(folder: &Path, on_step: &mut dyn FnMut(&str)) -> Result<(), String> {
    on_step(&format!("rustup target add {TARGET}"));
    process::answer(Command::new("rustup").current_dir(folder).args(["target", "add", TARGET]))
        .map(drop)
        .map_err(|why| format!("rustup target add {TARGET}: {why}"))
}

fn rustc(folder: &Path) -> Command {
    let mut command = Command::new("rustc");
    command.current_dir(folder);
    command
}

fn has_std(library: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(library) else { return false };
    entries.flatten().any(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.starts_with("libstd-") && name.ends_with(".rlib")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_folder_without_std_is_not_a_toolchain() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!has_std(folder.path()));
        assert!(!has_std(&folder.path().join("missing")));
        std::fs::write(folder.path().join("libcore-0.rlib"), "").unwrap();
        assert!(!has_std(folder.path()));
        std::fs::write(folder.path().join("libstd-0.rlib"), "").unwrap();
        assert!(has_std(folder.path()));
    }
}
