//! The route most people have: the target's standard library beside the host's.

use super::{Route, TARGET, Toolchain, ToolchainError};
use crate::process::{self, Failure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the `rustc` that builds `folder` lives.
pub(crate) fn sysroot(folder: &Path) -> Result<PathBuf, ToolchainError> {
    let no_rust = |source| ToolchainError::NoRust { folder: folder.display().to_string(), source };
    match process::answer(rustc(folder).args(["--print", "sysroot"])) {
        Ok(path) => Ok(path.into()),
        Err(Failure::Start(source)) => Err(no_rust(source)),
        Err(Failure::Exit(said)) => Err(no_rust(std::io::Error::other(said))),
    }
}

/// Whether the standard library for the target is there.
pub(crate) fn find(folder: &Path, sysroot: &Path) -> Result<Toolchain, String> {
    let library = process::answer(rustc(folder).args(["--print", "target-libdir", "--target", TARGET]))
        .map_or_else(|_| sysroot.join("lib/rustlib").join(TARGET).join("lib"), PathBuf::from);
    if has_std(&library) {
        return Ok(Toolchain { route: Route::Rustc, env: Vec::new() });
    }
    Err(format!("rustc: {} has no standard library", library.display()))
}

/// Have rustup fetch the target for the toolchain that builds `folder`.
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
    fn a_library_folder_without_std_is_no_toolchain() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!has_std(folder.path()));
        assert!(!has_std(&folder.path().join("missing")));
        std::fs::write(folder.path().join("libcore-0.rlib"), "").unwrap();
        assert!(!has_std(folder.path()));
        std::fs::write(folder.path().join("libstd-0.rlib"), "").unwrap();
        assert!(has_std(folder.path()));
    }
}
