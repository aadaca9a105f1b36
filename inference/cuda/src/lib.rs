//! CUDA backend: runs models on NVIDIA GPUs with Weir's own executor, in one worker process per
//! device.
//!
//! ```text
//!   upload ──form──► skeleton + weights by hash         once, in the child that checks it
//!   node ──Worker──► process that owns the device       for all tenants; restarted after a failure
//!   skeleton, shapes ──Program──► launches, offsets     once per input shape, on the CPU
//!   Program + tensors on the device = Bound             all addresses except those in a slot
//!   Bound in a Slot ──► launches, then a CUDA graph     one run at a time
//! ```
//!
//! Weights are the bytes of the model file. The device's tensor store keeps each weight once, even
//! if several models share it. Values between operations live in the memory of the slot that runs
//! them, so an idle model uses device memory only for its weights. A slot's addresses never change.
//! Therefore a run can be captured as a CUDA graph and repeated with one call.
//!
//! Each tenant's kernel graphs ([`Cuda::with_kernel_graphs`]) run in a further process. [`executor`]
//! has the executor itself, for checks in a process that holds a device.

mod ahead;
mod backend;
pub use backend::{Cuda, CudaConfig};

#[cfg(any(test, fuzzing))]
pub mod fuzz;

mod form;
pub use form::FORM;

mod process;
mod worker;
pub use worker::{DEVICE_WORKER_COMMAND, GpuGroup, device_worker_main};

mod device;
pub use device::IntermediateLimits;
mod chains;
mod elastic;
mod failure;
mod kernels;
mod libraries;
mod products;
mod slots;

mod program;
mod programs;
mod weights;

mod bound;
mod captured;
mod model;
mod prepared_run;
mod session;

mod kernel_graphs;
pub use kernel_graphs::{
    COMPILE_COMMAND, KernelGraphConfig, KernelGraphPreparer, KernelGraphPreparerConfig, WORKER_COMMAND,
    compile_main, worker_main,
};

mod open_files;
pub use open_files::GpuFiles;

pub mod executor;

#[cfg(test)]
mod tests;
