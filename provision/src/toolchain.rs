//! Rust toolchains for `wasm32-wasip2`.
//!
//! Routes, in order of preference: the project's `rustc` already has the target; rustup downloads
//! the target; Debian's packages provide a compiler, the sources of the standard library and a C
//! library, and cargo builds the standard library.

mod debian;
mod rustc;

pub use debian::PACKAGES as DEBIAN_PACKAGES;

use crate::apt;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

/// Target of Rust functions.
pub const TARGET: &str = "wasm32-wasip2";

/// A toolchain for [`TARGET`] that was verified to exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Toolchain {
    route: Route,
    env: Vec<(&'static str, OsString)>,
}

/// Source of the target's standard library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// The project's `rustc` has the library.
    Rustc,
    /// Cargo builds the library from Debian's `rust-web-src`, with Debian's `rustc-web`.
    Debian,
}

/// Reason why there is no toolchain.
#[derive(Debug, thiserror::Error)]
pub enum ToolchainError {
    /// Rust is not installed.
    #[error("no Rust toolchain: `rustc` does not start in {folder}: {source}")]
    NoRust {
        /// The project's folder, where a `rust-toolchain.toml` selects the `rustc`.
        folder: String,
        /// Cause.
        source: std::io::Error,
    },
    /// Rust is installed, but no route to the target works.
    #[error("no Rust toolchain here can build for {TARGET}:\n{}", .tried.join("\n"))]
    NoRoute {
        /// One line per route, with the reason why it does not work.
        tried: Vec<String>,
    },
}

impl ToolchainError {
    /// Suggested remedy, for people.
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
    /// Finds a toolchain for the project in `folder`. Installs nothing.
    pub fn find(folder: &Path) -> Result<Self, ToolchainError> {
        let sysroot = rustc::sysroot(folder)?;
        look(folder, &sysroot).map_err(|tried| ToolchainError::NoRoute { tried })
    }

    /// Finds a toolchain, or installs one. Calls `on_step` with one line before each step.
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

    /// Finds Debian's toolchain, even if rustup's also works.
    pub fn find_debian(folder: &Path) -> Result<Self, ToolchainError> {
        debian::find(&rustc::sysroot(folder)?).map_err(|why| ToolchainError::NoRoute { tried: vec![why] })
    }

    /// Source of the standard library.
    #[must_use]
    pub fn route(&self) -> Route {
        self.route
    }

    /// Configures `command` to build with this toolchain: `cargo build --target wasm32-wasip2`, or
    /// a shell that runs it.
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

/// Tries the routes in order. If none works, returns the reason for each.
fn look(folder: &Path, sysroot: &Path) -> Result<Toolchain, Vec<String>> {
    rustc::find(folder, sysroot).or_else(|first| debian::find(sysroot).map_err(|second| vec![first, second]))
}
