//! Installs missing build and run dependencies. [`Toolchain`] builds Rust functions.
//! [`PythonEnvironment`] and [`NodeModules`] hold the compilers of other languages.
//! [`component_of`] converts the output of compilers without component support.
//! [`OnnxRuntimeRelease`] is the library that runs models on the CPU.
//!
//! `weir build`, `weir doctor` and `cargo xtask setup` all use this crate, so that each finds the
//! others' installations.
//!
//! All functions run other programs and block until they exit. The crate is not async, and no
//! request path uses it.

pub mod apt;
mod cache;
pub use cache::cache_folder;
mod process;
mod stamp;
pub use stamp::Stamp;

mod toolchain;
pub use toolchain::{DEBIAN_PACKAGES, Route, TARGET, Toolchain, ToolchainError};
mod packages;
pub use packages::{NodeModules, PackagesError, PythonEnvironment, SharedEnvironments};
mod component;
pub use component::{ComponentError, component_of};

mod onnxruntime;
pub use onnxruntime::{OnnxRuntimeError, OnnxRuntimeRelease};
