//! A way to build Rust for `wasm32-wasip2`.
//!
//! Routes, in order: the `rustc` of the project has the target already; rustup fetches the target; Debian's packages bring a compiler,
//! the sources of its standard library and a C library, and cargo builds the standard library from them.

mod debian;
mod rustc;

pub use debian::PACKAGES as DEBIAN_PACKAGES;

use crate::apt;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

/// The target that functions in Rust are built for.
pub const TARGET: &str = "wasm32-wasip2";

/// A way to build for [`TARGET`] that has been seen to be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Toolchain {
    route: Route,
    env: Vec<(&'static str, OsString)>,
}

/// Where the target's standard library comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// The project's own `rustc` has it.
    Rustc,
    /// Cargo builds it from Debian's `rust-web-src`, with Debian's `rustc-web`.
    Debian,
}

/// Why there is no toolchain.
#[derive(Debug, thiserror::Error)]
pub enum ToolchainError {
    /// There is no Rust at all.
    #[error("no Rust toolchain: `rustc` does not start in {folder}: {source}")]
    NoRust {
        /// The project's folder: a `rust-toolchain.toml` there decides which `rustc` is asked.
        folder: String,
        /// What starting it came to.
        source: std::io::Error,
    },
    /// Rust is there, but no route to the target is.
    #[error("no Rust toolchain here can build for {TARGET}:\n{}", .tried.join("\n"))]
    NoRoute {
        /// Each route and why it does not work, one line each.
        tried: Vec<String>,
    },
}

impl ToolchainError {
    /// What a person can do about it.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::NoRust { .. } => "install Rust from https://rustup.rs, then try again".into(),
            Self::NoRoute { .. } => format!(
                "run `rustup target add {TARGET}`, or on Debian and Ubuntu `sudo {}`",
                apt::install_command(&debian::PACKAGES)
            ),
        }
    }
}

impl Toolchain {
    /// Look for a toolchain for the project in `folder`. Installs nothing.
    pub fn find(folder: &Path) -> Result<Self, ToolchainError> {
        let sysroot = rustc::sysroot(folder)?;
        look(folder, &sysroot).map_err(|tried| ToolchainError::NoRoute { tried })
    }

    /// Look for a toolchain and, where there is none, install one. `on_step` hears what is about to be done, one line at a time.
    pub fn find_or_install(folder: &Path, on_step: &mut dyn FnMut(&str)) -> Result<Self, ToolchainError> {
        let sysroot = rustc::sysroot(folder)?;
        if let Ok(toolchain) = look(folder, &sysroot) {
            return Ok(toolchain);
        }
        let mut tried = Vec::new();
        for install in [rustc::install as Install, debian::install] {
            match install(folder, on_step) {
                Ok(()) => match look(folder, &sysroot) {
                    Ok(toolchain) => return Ok(toolchain),
                    Err(still) => tried.extend(still),
                },
                Err(why) => {
                    on_step(&why);
                    tried.push(why);
                }
            }
        }
        Err(ToolchainError::NoRoute { tried })
    }

    /// Debian's route alone, for machines where it is wanted although rustup's works.
    pub fn find_debian(folder: &Path) -> Result<Self, ToolchainError> {
        debian::find(&rustc::sysroot(folder)?).map_err(|why| ToolchainError::NoRoute { tried: vec![why] })
    }

    /// Which route it is.
    #[must_use]
    pub fn route(&self) -> Route {
        self.route
    }

    /// Make `command` build with this toolchain: `cargo build --target wasm32-wasip2`, or a shell that runs it.
    pub fn configure<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.envs(self.env.iter().map(|(key, value)| (key, value)))
    }
}

impl std::fmt::Display for Toolchain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.route {
            Route::Rustc => "the target of the project's own rustc",
            Route::Debian => "Debian's rustc-web, building the standard library from rust-web-src",
        })
    }
}

type Install = fn(&Path, &mut dyn FnMut(&str)) -> Result<(), String>;

/// Every route in turn; where none works, why each does not.
fn look(folder: &Path, sysroot: &Path) -> Result<Toolchain, Vec<String>> {
    rustc::find(folder, sysroot).or_else(|first| debian::find(sysroot).map_err(|second| vec![first, second]))
}
