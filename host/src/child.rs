//! Child processes: hidden subcommands by which a node starts this program to process untrusted
//! input or to hold a device.

use std::process::ExitCode;
use weir_inference::FormMaker;
use weir_sandbox::component::compile;
use weir_sandbox::sources;

/// The forms that pushed models get in addition to the form for the CPU, even on a node without
/// GPUs.
#[cfg(feature = "cuda")]
const FORMS: &[FormMaker] = &[weir_cuda::FORM];
#[cfg(not(feature = "cuda"))]
const FORMS: &[FormMaker] = &[];

/// The purpose of a child process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChildKind {
    /// Finds out which layers of confinement the system provides.
    ProbeConfinement,
    /// Compiles a component.
    Compile,
    /// Reads the debug information of a component.
    LocateSources,
    /// Checks and optimises a model.
    PrepareModel,
    /// Runs models on the CPU, while they are needed.
    RunCpuModels,
    /// Compiles user-supplied kernels.
    #[cfg(feature = "cuda")]
    CompileKernels,
    /// Holds a device and runs the models of all tenants on it, for the lifetime of the node.
    #[cfg(feature = "cuda")]
    RunModels,
    /// Runs user-supplied kernels, while they are needed.
    #[cfg(feature = "cuda")]
    RunKernelGraphs,
}

impl ChildKind {
    /// The child that the hidden `subcommand` starts, if it names one.
    #[must_use]
    pub fn from_subcommand(subcommand: &str) -> Option<Self> {
        match subcommand {
            weir_child::PROBE_COMMAND => Some(Self::ProbeConfinement),
            compile::SUBCOMMAND => Some(Self::Compile),
            sources::SUBCOMMAND => Some(Self::LocateSources),
            weir_onnx::PREPARE_COMMAND => Some(Self::PrepareModel),
            weir_onnx::CPU_WORKER_COMMAND => Some(Self::RunCpuModels),
            #[cfg(feature = "cuda")]
            weir_cuda::COMPILE_COMMAND => Some(Self::CompileKernels),
            #[cfg(feature = "cuda")]
            weir_cuda::DEVICE_WORKER_COMMAND => Some(Self::RunModels),
            #[cfg(feature = "cuda")]
            weir_cuda::WORKER_COMMAND => Some(Self::RunKernelGraphs),
            _ => None,
        }
    }

    /// Performs the task that the node sends. The process does nothing else.
    #[must_use]
    pub fn main(self) -> ExitCode {
        match self {
            Self::ProbeConfinement => weir_child::probe_main(),
            Self::Compile => compile::main(),
            Self::LocateSources => sources::main(),
            Self::PrepareModel => weir_onnx::prepare_main(FORMS),
            Self::RunCpuModels => weir_onnx::cpu_worker_main(),
            #[cfg(feature = "cuda")]
            Self::CompileKernels => weir_cuda::compile_main(),
            #[cfg(feature = "cuda")]
            Self::RunModels => weir_cuda::device_worker_main(),
            #[cfg(feature = "cuda")]
            Self::RunKernelGraphs => weir_cuda::worker_main(),
        }
    }
}
