//! What a node and the worker of a device say to each other over a connection. Each request is answered before the next is sent.

use crate::cuda::device::GpuConfig;
use crate::cuda::libraries::LibraryState;
use crate::cuda::model::ModelFiles;
use crate::cuda::process::Part;
use crate::error::InferenceError;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use weir_device::cuda::Measured;
use weir_types::{ContentHash, ModelId, Shape, TenantId};

/// The most files that go with one message, and are on their way to one worker: blocks of memory of 2 MiB, of tensors that other devices have. What is more
/// goes over the host.
pub(in crate::cuda) const FILES_MAX: usize = 128;

/// What a node asks. Models, sessions and runs are known by numbers that it gives them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Request {
    /// Take hold of the device: the first.
    Open { driver: PathBuf, gpu: GpuConfig },
    /// Bring a model into the device's memory.
    Load { model: u64, files: ModelFiles },
    /// Answer once all of a model is there.
    Arrive { model: u64 },
    /// Let go of a model that has no sessions any more.
    Unload { model: u64 },
    /// Make one more session of a model.
    Session { model: u64, session: u64 },
    /// Let go of a session.
    Forget { session: u64 },
    /// Run, and leave the wanted outputs behind each other in the connection's memory from a place on. Each may be given a number, by which it may stay on
    /// the device instead.
    Run { session: u64, run: u64, inputs: Vec<Input>, outputs: Vec<(usize, Option<u64>)>, outputs_at: u64 },
    /// Put a tensor of a tenant that has stayed into the connection's memory.
    Fetch { tensor: u64, tenant: TenantId },
    /// Keep a tensor of a tenant where it is, if it is on the device and in no more blocks than that: the worker of another device reads it there.
    Export { tensor: u64, tenant: TenantId, export: u64, blocks_max: usize },
    /// Keep a copy of a tensor of a tenant that has stayed on another device, as a guest, if there is room.
    Take { tensor: u64, tenant: TenantId, exported: Exported },
    /// Let go of tensors that have stayed. Those of `abandoned` are outputs of runs that nobody waits for any more, which may be still to come; and `exports`
    /// are read by nobody any more.
    Release { tensors: Vec<u64>, abandoned: Vec<u64>, exports: Vec<u64> },
    /// Give up memory that nobody needs.
    Trim,
}

/// What a worker says of the device that it has taken hold of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::cuda) struct Opened {
    /// What it is called.
    pub(in crate::cuda) name: String,
    /// The ordinals of those whose memory it reads where it lies.
    pub(in crate::cuda) siblings: Vec<u32>,
    /// What became of the library for products of matrices.
    pub(in crate::cuda) library: LibraryState,
    /// The same of the compiler for chains of elementwise operations.
    pub(in crate::cuda) compiler: LibraryState,
    pub(in crate::cuda) memory: MemoryReport,
}

/// The memory of a device, as its worker has measured it last.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::cuda) struct MemoryReport {
    /// In use outside of the pool for weights and runs: by contexts, modules, graphs and libraries, and by other processes.
    pub(in crate::cuda) outside_bytes: u64,
    /// What the pool may have beside that.
    pub(in crate::cuda) capacity_bytes: u64,
}

impl From<Measured> for MemoryReport {
    fn from(Measured { outside_bytes, capacity_bytes, .. }: Measured) -> Self {
        Self { outside_bytes, capacity_bytes }
    }
}

/// An input of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Input {
    /// In the connection's memory.
    Here(Part),
    /// A tensor that has stayed on the device.
    Stayed(u64),
    /// One that has stayed on another device, and is read there.
    Exported(Exported),
}

/// A tensor on another device: so many bytes from a place on, in blocks of memory whose files come behind the message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Exported {
    /// Whose memory it is in.
    pub(super) ordinal: u32,
    pub(super) shape: Shape,
    pub(super) place: Place,
}

/// Where a tensor is in blocks of memory, each of which is a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    pub(super) blocks: usize,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// An output of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Output {
    /// In the connection's memory.
    Here(Part),
    /// It stays on the device, by the number that it was given.
    Stays { shape: Shape, bytes: u64 },
}

/// What a worker answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Answer {
    /// The device is held.
    Opened(Opened),
    /// A model can be run: what it takes for itself, and weights that others may have, too; and whether some of that is still on its way.
    Loaded { own_bytes: u64, weights: Vec<(ContentHash, u64)>, is_arriving: bool, memory: MemoryReport },
    /// It has run, and has had the device for so long; whether it began before all of the model was there. So many bytes of inputs that had stayed came from
    /// the host all the same. Where the run was to be captured as a graph and was not, it says why.
    Ran {
        outputs: Vec<Output>,
        device_time_ns: u64,
        was_cold: bool,
        through_host_bytes: u64,
        room: Room,
        not_captured: Option<String>,
        memory: MemoryReport,
    },
    /// It has not begun: what is on that other device cannot be read there.
    NotReached { ordinal: u32, why: String },
    /// A tensor stays where it is. The files of its blocks come behind.
    Exported(Place),
    /// It is elsewhere, or cannot be exported.
    NotExported { why: String },
    /// There is no room for it.
    NotTaken { why: String },
    /// A tensor is in the connection's memory, from its beginning on: so many bytes.
    Fetched { bytes: u64 },
    /// It is done.
    Done,
    /// It is not done. Want of memory may be the reason, which is why it says how much there is.
    Failed { failure: Failure, memory: Option<MemoryReport> },
}

impl Answer {
    /// The memory of the device, where the answer tells of it.
    pub(super) fn memory(&self) -> Option<MemoryReport> {
        match self {
            Self::Opened(Opened { memory, .. }) | Self::Loaded { memory, .. } | Self::Ran { memory, .. } => {
                Some(*memory)
            }
            Self::Failed { memory, .. } => *memory,
            _ => None,
        }
    }
}

/// How tensors that stay get along with the room there is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Room {
    /// Those that had better be elsewhere, so that others find room.
    pub(super) beyond: Vec<u64>,
    /// So many bytes have gone to the host since the last answer.
    pub(super) spilled_bytes: u64,
}

impl Request {
    /// How many files come behind it.
    pub(super) fn files(&self) -> usize {
        let inputs = match self {
            Self::Run { inputs, .. } => inputs,
            Self::Take { exported, .. } => return exported.place.blocks,
            _ => return 0,
        };
        let blocks = inputs.iter().map(|input| match input {
            Input::Exported(exported) => exported.place.blocks,
            Input::Here(_) | Input::Stayed(_) => 0,
        });
        blocks.fold(0, usize::saturating_add)
    }
}

/// Why something was not done: the errors that come of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Failure {
    Refused(String),
    OutOfMemory(String),
    Cancelled,
    Load {
        model: ModelId,
        why: String,
    },
    Unavailable(String),
    Gone(String),
    Failed(String),
    /// The context is lost, and the worker with it.
    Lost(String),
}

impl Failure {
    pub(super) fn of(error: &InferenceError) -> Self {
        match error {
            InferenceError::Refused(why) => Self::Refused(why.to_string()),
            InferenceError::RunOutOfMemory(why) => Self::OutOfMemory(why.to_string()),
            InferenceError::Cancelled => Self::Cancelled,
            InferenceError::Load { model, why } => Self::Load { model: model.clone(), why: why.to_string() },
            InferenceError::Unavailable(why) => Self::Unavailable(why.to_string()),
            InferenceError::TensorLost(why) => Self::Gone(why.to_string()),
            InferenceError::DeviceLost(why) => Self::Lost(why.to_string()),
            InferenceError::Run(why) => Self::Failed(why.to_string()),
            error => Self::Failed(error.to_string()),
        }
    }

    pub(super) fn into_error(self) -> InferenceError {
        match self {
            Self::Refused(why) => InferenceError::Refused(why.into()),
            Self::OutOfMemory(why) => InferenceError::RunOutOfMemory(why.into()),
            Self::Cancelled => InferenceError::Cancelled,
            Self::Load { model, why } => InferenceError::Load { model, why: why.into() },
            Self::Unavailable(why) => InferenceError::Unavailable(why.into()),
            Self::Gone(why) => InferenceError::TensorLost(why.into()),
            Self::Lost(why) => InferenceError::DeviceLost(why.into()),
            Self::Failed(why) => InferenceError::Run(why.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::process::{receive, send};
    use weir_types::{Name, Version};

    #[test]
    fn errors_mean_the_same_on_the_other_side() {
        let id = ModelId { tenant: TenantId::default(), name: Name::new("m").unwrap(), version: Version(1) };
        for error in [
            InferenceError::Refused("a".into()),
            InferenceError::RunOutOfMemory("b".into()),
            InferenceError::Cancelled,
            InferenceError::Load { model: id, why: "c".into() },
            InferenceError::Unavailable("d".into()),
            InferenceError::TensorLost("t".into()),
            InferenceError::DeviceLost("e".into()),
            InferenceError::Run("f".into()),
        ] {
            let mut sent = Vec::new();
            let failed = Answer::Failed { failure: Failure::of(&error), memory: None };
            send(&mut sent, &failed).unwrap();
            let Some(Answer::Failed { failure, .. }) = receive(&mut &sent[..]).unwrap() else {
                panic!("another answer")
            };
            let there = failure.into_error();
            assert_eq!((there.to_string(), there.kind()), (error.to_string(), error.kind()));
        }
    }
}
