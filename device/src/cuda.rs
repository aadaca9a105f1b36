//! NVIDIA's GPUs, through the driver's own interface.
//!
//! In the order in which they are met: a [`Search`] says where NVIDIA's libraries may be; [`Devices::discover`] opens the driver and lists the
//! GPUs, or says why there are none, and a [`Monitor`] reads what they say of themselves; a [`Context`] is what a process holds of one of them. Work is ordered by [`Stream`]s and [`Event`]s: copies,
//! [`Function`]s of a [`Module`] launched with [`Parameters`], and whole [`GraphExec`]s of both. Memory comes from one [`BlockPool`] of 2 MiB blocks per
//! device, mapped into [`AddressRange`]s, of which each slot has one ([`SlotMemory`]), and the stores one each: weights by what is in them ([`TensorStore`]), and what one
//! step of a workflow leaves for the next ([`CommStore`]), which the process of another device can read there ([`Exported`]). Where cuBLASLt is installed, a [`Product`] of
//! matrices can be its; where NVRTC is, it compiles a [`CudaSource`]. The bus is shared by a [`TransferEngine`], in blocks;
//! weights that are loaded again come from a [`PinnedCache`], and what goes in and out of runs passes through a [`StagingBuffer`].
//!
//! Whoever launches kernels works with addresses, which nothing checks. Bytes on a device are not memory in Rust's sense: what is
//! written to the wrong place there spoils results, or loses the context, but touches nothing that Rust relies on. So only what reads or writes host
//! memory later than its call returns, or runs a kernel, is `unsafe` here.

mod search;
pub use search::Search;

mod library;
pub use library::{Library, find_library, locate_library};
mod nvrtc;
pub use nvrtc::{CompileTarget, Compiled, CudaSource, Nvrtc};
mod cublaslt;
pub use cublaslt::{CublasLt, Product, ProductBuffers, ProductMatrix, ProductShape, Products};

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
pub use launch::{Launch, Parameters};
mod graph;
pub use graph::{Graph, GraphExec};

mod memory;
pub use memory::{
    AddressRange, Allocation, BLOCK_BYTES, BlockMap, BlockPool, Demand, Exported, Imported, MappingCost,
    Measured, Owner, Placement, PoolUsage, SlotMemory, Span, mapping_cost,
};

mod pinned;
pub use pinned::{PinnedBlock, PinnedMemory, PinnedRing, PinnedSlice};
mod staging;
pub use staging::StagingBuffer;
mod pinned_cache;
pub use pinned_cache::{PinnedCache, PinnedCacheUsage};
mod transfer;
pub use transfer::{Fetch, Segment, Source, Transfer, TransferEngine, TransferError, copy_threads};
mod tensors;
pub use tensors::{StoreUsage, Tensor, TensorKey, TensorStore, Wanted};
mod comm;
pub use comm::{CommError, CommIndex, CommLimits, CommStore, CommUsage, Held, Place};
