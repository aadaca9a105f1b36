//! Brings what a machine lacks: [`Toolchain`] builds functions written in Rust, [`PythonEnvironment`] and [`NodeModules`] hold the compilers
//! for other languages, [`component_of`] finishes what those make that know no components, [`OnnxRuntime`] is the library that runs models on the CPU. `weir build`, `weir doctor` and `cargo xtask setup` all
//! ask here, so that what one of them installs the others find.
//!
//! Everything runs other programs and waits for them: no async, and never on the way of a request.

pub mod apt;
mod process;
mod stamp;
pub use stamp::Stamp;

mod toolchain;
pub use toolchain::{DEBIAN_PACKAGES, Route, TARGET, Toolchain, ToolchainError};
mod packages;
pub use packages::{NodeModules, PackagesError, PythonEnvironment};
mod component;
pub use component::{ComponentError, component_of};

mod onnxruntime;
pub use onnxruntime::{OnnxRuntime, OnnxRuntimeError};
