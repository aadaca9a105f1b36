//! The route for machines that reach Debian's mirrors but not Rust's: Debian packages a compiler for the web and the sources of its
//! standard library, and rustup's host toolchain has the linkers.

use super::{Route, Toolchain};
use crate::process;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What has to be installed.
pub(crate) const PACKAGES: [&str; 3] = ["rustc-web", "rust-web-src", "wasi-libc"];

const RUSTC: &str = "/usr/bin/rustc";
const STD_SOURCES: &str = "/usr/lib/rustlib/src/rust/library/std/Cargo.toml";
const C_LIBRARY: &str = "/usr/lib/wasm32-wasi";

/// Whether the packages are there, and the linkers in `sysroot`, that of the project's own `rustc`.
pub(crate) fn find(sysroot: &Path) -> Result<Toolchain, String> {
    let linkers = linkers(sysroot)?;
    for needed in [RUSTC, STD_SOURCES, C_LIBRARY] {
        if !Path::new(needed).exists() {
            return Err(format!("Debian's packages: {needed} is missing"));
        }
    }
    let component_linker = linkers.join("wasm-component-ld");
    let module_linker = linkers.join("gcc-ld/wasm-ld");
    let mut flags = OsString::from("-Clink-self-contained=no -L");
    flags.push(C_LIBRARY);
    flags.push(" -Clink-arg=--wasm-ld-path=");
    flags.push(&module_linker);
    let env = vec![
        ("RUSTC", RUSTC.into()),
        // The standard library is built from source, which cargo calls unstable.
        ("RUSTC_BOOTSTRAP", "1".into()),
        ("CARGO_UNSTABLE_BUILD_STD", "std,panic_abort".into()),
        ("CARGO_TARGET_WASM32_WASIP2_LINKER", component_linker.into()),
        ("CARGO_TARGET_WASM32_WASIP2_RUSTFLAGS", flags),
    ];
    Ok(Toolchain { route: Route::Debian, env })
}

/// Install the packages, as root only: nobody else can, and asking for a password in the middle of a build helps nobody.
pub(crate) fn install(_folder: &Path, on_step: &mut dyn FnMut(&str)) -> Result<(), String> {
    if !is_root() {
        return Err(format!("Debian's packages: only root can run `apt-get install {}`", PACKAGES.join(" ")));
    }
    let step = format!("apt-get install {}", PACKAGES.join(" "));
    on_step(&step);
    let install = || {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive").args(["-o", "DPkg::Lock::Timeout=300", "-q"]);
        command
    };
    let packages = |command: &mut Command| {
        process::answer(command.args(["install", "-y", "--no-install-recommends"]).args(PACKAGES)).map(drop)
    };
    if packages(&mut install()).is_ok() {
        return Ok(());
    }
    // The package lists may be missing or old.
    on_step("apt-get update");
    process::answer(install().arg("update")).map_err(|why| format!("apt-get update: {why}"))?;
    on_step(&step);
    packages(&mut install()).map_err(|why| format!("{step}: {why}"))
}

/// The folder of `sysroot` that holds `wasm-component-ld`, whichever host it is for.
fn linkers(sysroot: &Path) -> Result<PathBuf, String> {
    let hosts = sysroot.join("lib/rustlib");
    let entries = std::fs::read_dir(&hosts)
        .map_err(|error| format!("Debian's packages: {}: {error}", hosts.display()))?;
    entries
        .flatten()
        .map(|host| host.path().join("bin"))
        .find(|bin| bin.join("wasm-component-ld").exists() && bin.join("gcc-ld/wasm-ld").exists())
        .ok_or_else(|| {
            format!(
                "Debian's packages: no wasm-component-ld under {}; it comes with rustup's Rust",
                hosts.display()
            )
        })
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    // The owner of /proc/self is the effective user.
    std::fs::metadata("/proc/self").is_ok_and(|meta| meta.uid() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_linkers_are_found_under_any_host_and_their_lack_is_named() {
        let sysroot = tempfile::tempdir().unwrap();
        assert!(linkers(sysroot.path()).unwrap_err().contains("lib/rustlib"));
        let bin = sysroot.path().join("lib/rustlib/some-host/bin");
        std::fs::create_dir_all(bin.join("gcc-ld")).unwrap();
        std::fs::write(bin.join("wasm-component-ld"), "").unwrap();
        assert!(linkers(sysroot.path()).unwrap_err().contains("no wasm-component-ld"));
        std::fs::write(bin.join("gcc-ld/wasm-ld"), "").unwrap();
        assert_eq!(linkers(sysroot.path()).unwrap(), bin);
    }
}
