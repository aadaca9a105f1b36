//! NVIDIA GPUs, through the CUDA driver API.
//!
//! - Discovery: a [`Search`] lists the places of NVIDIA's libraries. [`Devices::discover`] opens
//!   the driver and lists the GPUs, or returns the reason why there are none. A [`Monitor`] reads
//!   the GPUs' own figures. A [`Context`] is a process's handle of one GPU.
//! - Work is ordered by [`Stream`]s and [`Event`]s: copies, launches of a [`Function`] of a
//!   [`Module`] with [`KernelParameters`], and whole [`GraphExec`]s.
//! - Memory comes from one [`BlockPool`] of 2 MiB blocks per device, mapped into [`AddressRange`]s.
//!   Each run slot has one range ([`SlotMemory`]), and each store has one: [`TensorStore`] holds
//!   weights by the hash of their content, and [`CommStore`] holds the intermediates of workflow
//!   steps, which the process of another device can read in place ([`ExportedMemory`]).
//! - Libraries: if cuBLASLt is installed, it can compute a [`Gemm`] of matrices; if NVRTC is
//!   installed, it compiles a [`CudaSource`].
//! - Transfers: a [`TransferEngine`] shares the bus in blocks. Weights that are loaded again come
//!   from a [`PinnedCache`], and inputs and outputs of runs pass through a [`StagingBuffer`].
//!
//! Kernel launches take raw device addresses, which no layer checks. Bytes on a device are not
//! memory in Rust's sense: a wrong write there corrupts results or loses the context, but does not
//! affect memory that Rust relies on. Functions are therefore `unsafe` only if they access host
//! memory after their call returns, or run a kernel.

mod search;
pub use search::Search;

mod library;
pub use library::{Library, find_library, locate_library};
mod nvrtc;
pub use nvrtc::{CompileTarget, CompiledCode, CudaSource, Nvrtc};
mod cublaslt;
pub use cublaslt::{CublasLt, Gemm, ProductBuffers, ProductMatrix, ProductShape, Products};

mod unavailable;
pub use unavailable::Unavailable;

mod devices;
mod driver;
pub use devices::{DeviceInfo, Devices};
mod monitor;
pub use monitor::Monitor;

mod error;
pub use error::{CudaError, OutOfMemory};

mod context;
pub use context::{Context, MemoryInfo};

mod stream;
pub use stream::{Priority, Stream};
mod copy;
mod event;
pub use event::Event;

mod module;
pub use module::{Function, FunctionAttributes, Module};
mod launch;
pub use launch::{KernelParameters, LaunchConfig};
mod graph;
pub use graph::{Graph, GraphExec, RecordedWork, Recording};

mod memory;
pub use memory::{
    AddressRange, Allocation, BLOCK_BYTES, BlockMap, BlockPlacement, BlockPool, DemandEstimate,
    ExportedMemory, Imported, MappingCost, MeasuredMemory, MemoryOwner, PoolUsage, SlotMemory, Span,
    mapping_cost,
};

mod pinned;
pub use pinned::{PinnedBlock, PinnedMemory, PinnedPiece, PinnedRing, PinnedSlice};
mod staging;
pub use staging::StagingBuffer;
mod pinned_cache;
pub use pinned_cache::{PinnedCache, PinnedCacheUsage};
mod transfer;
pub use transfer::{
    CopySource, Fetch, PIECE_BYTES, Segment, Transfer, TransferEngine, TransferError, copy_threads,
};
mod tensors;
pub use tensors::{TensorGuard, TensorKey, TensorStore, TensorStoreUsage, Wanted};
mod comm;
pub use comm::{
    CommError, CommIndex, CommLimits, CommStore, CommUsage, IntermediateGuard, IntermediatePlace,
};
