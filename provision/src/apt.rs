//! Debian and Ubuntu packages.

use crate::process;
use std::process::Command;

/// A Debian package that Weir installs if it is missing.
#[derive(Debug, Clone, Copy)]
pub struct DebianPackage {
    /// The package's name.
    pub name: &'static str,
    /// Files of the package and of its dependencies that Weir uses, as absolute paths with `*` as a
    /// wildcard. Weir installs without recommended packages, so all files must exist without them.
    pub files: &'static [&'static str],
}

/// The command that installs `packages`, for messages.
#[must_use]
pub fn install_command(packages: &[DebianPackage]) -> String {
    format!("apt-get install {}", names(packages).join(" "))
}

/// Installs `packages` and their dependencies. Calls `on_step` with each command before it runs.
///
/// # Errors
/// Fails without root, which Weir does not request, and if apt-get fails, with the end of its
/// output.
pub fn install(packages: &[DebianPackage], on_step: &mut dyn FnMut(&str)) -> Result<(), String> {
    let step = install_command(packages);
    if !is_root() {
        return Err(format!("Debian's packages: only root can run `{step}`"));
    }
    on_step(&step);
    let install =
        || process::answer(apt().args(["install", "-y", "--no-install-recommends"]).args(names(packages)));
    if install().is_ok() {
        return Ok(());
    }
    // The package lists may be missing or outdated.
    on_step("apt-get update");
    process::answer(apt().arg("update")).map_err(|why| format!("apt-get update: {why}"))?;
    on_step(&step);
    install().map(drop).map_err(|why| format!("{step}: {why}"))
}

fn names(packages: &[DebianPackage]) -> Vec<&'static str> {
    packages.iter().map(|package| package.name).collect()
}

fn apt() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").args(["-o", "DPkg::Lock::Timeout=300", "-q"]);
    command
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    // The owner of /proc/self is the effective user.
    std::fs::metadata("/proc/self").is_ok_and(|meta| meta.uid() == 0)
}
