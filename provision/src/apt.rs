//! Packages of Debian and its kin.

use crate::process;
use std::process::Command;

/// Install `packages`, as root only: nobody else can, and asking for a password in the middle of a build helps nobody. `on_step` is told what
/// is being done.
///
/// # Errors
/// Why they could not be installed, as text.
pub fn install(packages: &[&str], on_step: &mut dyn FnMut(&str)) -> Result<(), String> {
    let step = format!("apt-get install {}", packages.join(" "));
    if !is_root() {
        return Err(format!("Debian's packages: only root can run `{step}`"));
    }
    on_step(&step);
    let install = || process::answer(apt().args(["install", "-y", "--no-install-recommends"]).args(packages));
    if install().is_ok() {
        return Ok(());
    }
    // The package lists may be missing or old.
    on_step("apt-get update");
    process::answer(apt().arg("update")).map_err(|why| format!("apt-get update: {why}"))?;
    on_step(&step);
    install().map(drop).map_err(|why| format!("{step}: {why}"))
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
