//! Messages between a node and the worker of a device on a connection. Each request is answered
//! before the next request is sent.

use crate::device::{Gpu, GpuConfig};
use crate::libraries::LibraryState;
use crate::model::ModelFiles;
use crate::weights::PinnedLookups;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use weir_device::cuda::{MeasuredMemory, PinnedCacheUsage};
use weir_types::{ContentHash, Shape, TenantId};
use weir_worker::{TensorLocation, WireError};

/// Maximum number of files per message, and in transit to one worker. Each file is a 2 MiB memory
/// block of a tensor on another device. Larger tensors go through the host.
pub(crate) const FILES_MAX: usize = 128;

/// Request of a node. The node assigns the numbers of models, sessions and runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum GpuWorkerRequest {
    /// Open the device. The first request.
    Open { driver: PathBuf, gpu: GpuConfig },
    /// Load a model into device memory.
    Load { model: u64, files: ModelFiles },
    /// Wait until all weights of a model have arrived.
    Arrive { model: u64 },
    /// Unload a model without sessions.
    Unload { model: u64 },
    /// Open a session of a model.
    Session { model: u64, session: u64 },
    /// Close a session.
    Forget { session: u64 },
    /// Run, and write the wanted outputs one after another to the connection's memory, starting at
    /// `outputs_at`. An output with a number may stay on the device under that number instead.
    Run {
        session: u64,
        run: u64,
        inputs: Vec<WorkerInput>,
        outputs: Vec<(usize, Option<u64>)>,
        outputs_at: u64,
    },
    /// Copy a device-resident tensor of a tenant to the connection's memory.
    Fetch { tensor: u64, tenant: TenantId },
    /// Export a tensor of a tenant, if it is on the device in at most `blocks_max` blocks. The
    /// worker of another device reads it in place.
    Export { tensor: u64, tenant: TenantId, export: u64, blocks_max: usize },
    /// Copy an exported tensor of a tenant to this device, if there is room. The copy is a guest: a
    /// tensor spilled by another device.
    Take { tensor: u64, tenant: TenantId, exported: ExportedInput },
    /// Release device-resident tensors. `abandoned` are outputs of runs whose caller has left;
    /// these outputs may not exist yet. `exports` are exports that are no longer read.
    Release { tensors: Vec<u64>, abandoned: Vec<u64>, exports: Vec<u64> },
    /// Free unused memory.
    Trim,
}

/// Worker's description of an opened device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Opened {
    /// Name of the device.
    pub(crate) name: String,
    /// Ordinals of the devices whose memory this device can read in place.
    pub(crate) siblings: Vec<u32>,
    /// State of cuBLASLt.
    pub(crate) library: LibraryState,
    /// State of NVRTC.
    pub(crate) compiler: LibraryState,
    pub(crate) memory: MemoryReport,
}

/// Memory of a device at its worker's last measurement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemoryReport {
    /// Memory in use outside the pool for weights and runs, in bytes: contexts, modules, graphs,
    /// libraries and other processes.
    pub(crate) outside_bytes: u64,
    /// Memory available to the pool, in bytes.
    pub(crate) capacity_bytes: u64,
    /// Memory that the pool has taken from the device, in bytes.
    #[serde(default)]
    pub(crate) pool_bytes: u64,
    /// Host memory of the pinned cache, in bytes.
    pub(crate) pinned_capacity_bytes: u64,
    /// Bytes of the weights in the pinned cache.
    pub(crate) pinned_used_bytes: u64,
}

impl MemoryReport {
    /// Returns the last measurement of a device, and the current usage of its pinned cache.
    pub(super) fn new(gpu: &Gpu) -> Self {
        let MeasuredMemory { outside_bytes, capacity_bytes, .. } = gpu.measured();
        let PinnedCacheUsage { bytes_max, used_bytes, .. } = gpu.pinned.usage();
        let pinned_capacity_bytes = bytes_max;
        let pinned_used_bytes = used_bytes;
        let pool = gpu.pool.usage();
        let pool_bytes = pool.used_bytes + pool.idle_bytes;
        Self { outside_bytes, capacity_bytes, pool_bytes, pinned_capacity_bytes, pinned_used_bytes }
    }
}

/// Input of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum WorkerInput {
    /// Tensor in the connection's memory.
    Here(TensorLocation),
    /// Device-resident tensor.
    Stayed(u64),
    /// Tensor on another device, which is read in place.
    Exported(ExportedInput),
}

/// Tensor on another device: a byte range in memory blocks, whose files follow the message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ExportedInput {
    /// Ordinal of the device with the tensor.
    pub(super) ordinal: u32,
    pub(super) shape: Shape,
    pub(super) place: TensorRange,
}

/// Byte range of a tensor in memory blocks, each of which is a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TensorRange {
    pub(super) blocks: usize,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// Output of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum WorkerOutput {
    /// Tensor in the connection's memory.
    Here(TensorLocation),
    /// Tensor that stays on the device under its number.
    Stays { shape: Shape, bytes: u64 },
}

/// Answer of a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum GpuWorkerReply {
    /// The device is open.
    Opened(Opened),
    /// The model is ready to run. The answer has its exclusive memory, its shareable weights,
    /// whether weights are still in transfer, and the use of the pinned cache by the load.
    Loaded {
        own_bytes: u64,
        weights: Vec<(ContentHash, u64)>,
        is_arriving: bool,
        lookups: PinnedLookups,
        memory: MemoryReport,
    },
    /// The run is done, and took this device time. `was_cold`: the run started before all weights
    /// had arrived. `through_host_bytes`: bytes of inputs that had been spilled to the host.
    /// `not_captured`: reason of a failed capture as a CUDA graph.
    Ran {
        outputs: Vec<WorkerOutput>,
        device_time_ns: u64,
        was_cold: bool,
        through_host_bytes: u64,
        room: MemoryPressure,
        not_captured: Option<String>,
        memory: MemoryReport,
    },
    /// The run has not started, because it cannot read the memory of this device.
    NotReached { ordinal: u32, why: String },
    /// The tensor is exported. The files of its blocks follow.
    Exported(TensorRange),
    /// The tensor is not on the device, or cannot be exported.
    NotExported { why: String },
    /// There is no room for the tensor.
    NotTaken { why: String },
    /// The tensor is at the start of the connection's memory.
    Fetched { bytes: u64 },
    /// The request is done.
    Done,
    /// The request failed. The answer includes the memory of the device, because a lack of memory
    /// may be the reason.
    Failed { failure: WireError, memory: Option<MemoryReport> },
}

impl GpuWorkerReply {
    /// Returns the memory report of the answer, if any.
    pub(crate) fn memory(&self) -> Option<MemoryReport> {
        match self {
            Self::Opened(Opened { memory, .. }) | Self::Loaded { memory, .. } | Self::Ran { memory, .. } => {
                Some(*memory)
            }
            Self::Failed { memory, .. } => *memory,
            _ => None,
        }
    }
}

/// Memory pressure of the device-resident tensors.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemoryPressure {
    /// Tensors that should move to another device, to make room.
    pub(super) beyond: Vec<u64>,
    /// Bytes spilled to the host since the last answer.
    pub(super) spilled_bytes: u64,
}

impl GpuWorkerRequest {
    /// Returns the number of files that follow the request.
    pub(crate) fn files(&self) -> usize {
        let inputs = match self {
            Self::Run { inputs, .. } => inputs,
            Self::Take { exported, .. } => return exported.place.blocks,
            _ => return 0,
        };
        let blocks = inputs.iter().map(|input| match input {
            WorkerInput::Exported(exported) => exported.place.blocks,
            WorkerInput::Here(_) | WorkerInput::Stayed(_) => 0,
        });
        blocks.fold(0, usize::saturating_add)
    }
}
