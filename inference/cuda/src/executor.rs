//! The executor in the process that holds the device, without workers: programs, their memory, and
//! single runs.
//!
//! `weir doctor --gpu` checks and measures it. Nodes use [`Cuda`](crate::Cuda).

pub use crate::bound::Bound;
pub use crate::chains::{Chains, CompilerConfig, INSTRUCTIONS_MIN};
pub use crate::device::{Gpu, GpuConfig};
pub use crate::failure::{load_failure, weights_failure};
pub use crate::form::{form, stored_for};
pub use crate::kernel_graphs::{KernelGraphs, store as store_kernel_graph};
pub use crate::kernels::{Kernels, LoadedModule, Modules};
pub use crate::libraries::LibraryState;
pub use crate::prepared_run::{
    CapturedRun, ColdOutputs, Outputs, PinnedInputs, PreparedRun, RunFailure, cold_outputs, in_slot,
};
pub use crate::products::{LibraryConfig, ProductLibrary};
pub use crate::program::{
    BufferLocation, FLOPS_MIN, LibraryGemm, ModelProgramError, ProductTier, Program, ProgramStep, StepWork,
};
pub use crate::slots::{RunSlot, RunSlots, TakenSlot};
pub use crate::weights::{Weights, WeightsError};
