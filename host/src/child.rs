//! What this program does when a node has started it as a child, with a hidden subcommand, to work on untrusted input, or to hold a device.

use crate::component::compile;
use std::process::ExitCode;

/// What a child was started for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChildKind {
    /// Compile a component.
    Compile,
    /// Check and optimise a model.
    PrepareModel,
    /// Compile kernels that users bring.
    #[cfg(feature = "cuda")]
    CompileKernels,
    /// Hold a device, and run the models of all tenants there: it stays for as long as the node.
    #[cfg(feature = "cuda")]
    RunModels,
    /// Run kernels that users bring: it stays for as long as they are wanted.
    #[cfg(feature = "cuda")]
    RunKernelGraphs,
}

impl ChildKind {
    /// The child that the hidden `subcommand` starts, if it is one.
    #[must_use]
    pub fn from_subcommand(subcommand: &str) -> Option<Self> {
        match subcommand {
            compile::SUBCOMMAND => Some(Self::Compile),
            weir_inference::PREPARE_COMMAND => Some(Self::PrepareModel),
            #[cfg(feature = "cuda")]
            weir_inference::COMPILE_COMMAND => Some(Self::CompileKernels),
            #[cfg(feature = "cuda")]
            weir_inference::DEVICE_WORKER_COMMAND => Some(Self::RunModels),
            #[cfg(feature = "cuda")]
            weir_inference::WORKER_COMMAND => Some(Self::RunKernelGraphs),
            _ => None,
        }
    }

    /// Do the one task that the node sends. The program does nothing else in this process.
    #[must_use]
    pub fn main(self) -> ExitCode {
        match self {
            Self::Compile => compile::main(),
            Self::PrepareModel => weir_inference::prepare_main(),
            #[cfg(feature = "cuda")]
            Self::CompileKernels => weir_inference::compile_main(),
            #[cfg(feature = "cuda")]
            Self::RunModels => weir_inference::device_worker_main(),
            #[cfg(feature = "cuda")]
            Self::RunKernelGraphs => weir_inference::worker_main(),
        }
    }
}
