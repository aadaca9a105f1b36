//! Debian route, for machines that reach Debian's mirrors but not Rust's. Debian packages a
//! compiler for the web target and the sources of its standard library; rustup's host toolchain has
//! the linkers.

use super::{Route, Toolchain};
use crate::apt::{self, DebianPackage};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Packages of this route.
pub const PACKAGES: [DebianPackage; 3] = [
    DebianPackage { name: "rustc-web", files: &[RUSTC] },
    DebianPackage { name: "rust-web-src", files: &[STD_SOURCES] },
    DebianPackage { name: "wasi-libc", files: &["/usr/lib/wasm32-wasi/libc.a"] },
];

const RUSTC: &str = "/usr/bin/rustc";
const STD_SOURCES: &str = "/usr/lib/rustlib/src/rust/library/std/Cargo.toml";
const C_LIBRARY: &str = "/usr/lib/wasm32-wasi";

/// Finds the packages, and the linkers in `sysroot`, the sysroot of the project's `rustc`.
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
        // Building the standard library from source is unstable in cargo.
        ("RUSTC_BOOTSTRAP", "1".into()),
        ("CARGO_UNSTABLE_BUILD_STD", "std,panic_abort".into()),
        ("CARGO_TARGET_WASM32_WASIP2_LINKER", component_linker.into()),
        ("CARGO_TARGET_WASM32_WASIP2_RUSTFLAGS", flags),
    ];
    Ok(Toolchain { route: Route::Debian, env })
}

/// Installs the packages.
pub(crate) fn install(_folder: &Path, on_step: &mut dyn FnMut(&str)) -> Result<(), String> {
    apt::install(&PACKAGES, on_step)
}

/// The folder in `sysroot` with `wasm-component-ld`, for any host.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linkers_are_found_for_any_host_or_reported_missing() {
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
