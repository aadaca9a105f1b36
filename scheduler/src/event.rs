//! What happened, as the nodes tell it. Times are nanoseconds of a clock that the caller chooses; only their differences matter.

use crate::{Slo, Tier};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use weir_types::{DeviceId, FunctionId, InvocationId, ModelId, NodeId, Platform, Platforms};

/// Something the scheduler is told. What it does not know, or cannot be, it ignores and counts; see
/// [`Corrections`](crate::Corrections).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// An invocation wants to run.
    Arrived(Arrival),
    /// An invocation that was told to start does run.
    Started {
        /// Which one.
        invocation: InvocationId,
    },
    /// An invocation is over, and so is its grant.
    Finished {
        /// Which one.
        invocation: InvocationId,
    },
    /// An invocation is over without success; so is its grant.
    Failed {
        /// Which one.
        invocation: InvocationId,
    },
    /// Nobody wants an invocation any more: it leaves the queue, or its grant is over.
    Cancelled {
        /// Which one.
        invocation: InvocationId,
    },
    /// A model is in a device's memory.
    Loaded {
        /// The device.
        device: DeviceId,
        /// The model.
        model: ModelId,
        /// The memory it takes there.
        bytes: u64,
        /// How long the load took; none if the model was already there when the node came up.
        load_time_ns: Option<u64>,
        /// Of these bytes, what other models may have in common with it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        parts: Vec<Part>,
    },
    /// Where a node would load a model from: told when it changes. Until then, it is its disk.
    Staged {
        /// The node.
        node: NodeId,
        /// The model.
        model: ModelId,
        /// Bytes of the model that are in each tier and in none before it. What is missing from the sum is on the node's disk.
        bytes: Vec<(Tier, u64)>,
    },
    /// A model is not in a device's memory any more, for whatever reason.
    Evicted {
        /// The device.
        device: DeviceId,
        /// The model.
        model: ModelId,
    },
    /// A node can run functions. Told again, it replaces what was known of the node: everything that ran there is lost.
    NodeUp {
        /// The node.
        node: NodeId,
        /// Its devices, by ordinal.
        devices: Vec<DeviceSpec>,
    },
    /// A node is gone, with everything that ran there.
    NodeDown {
        /// The node.
        node: NodeId,
    },
    /// A device takes nothing more for now. What runs there ends by itself, and what is in its memory is told as for any device.
    DeviceDown {
        /// The device.
        device: DeviceId,
    },
    /// It does again.
    DeviceUp {
        /// The device.
        device: DeviceId,
    },
    /// A device has more or less memory for models than was said before. What is in its memory stays there until it makes room for something else.
    DeviceResized {
        /// The device.
        device: DeviceId,
        /// Memory for models from now on.
        capacity_bytes: u64,
    },
    /// The time that an [`Action::WakeAt`](crate::Action::WakeAt) named has come.
    Woken,
}

/// An invocation that wants to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrival {
    /// Which one. Unique among those under way.
    pub invocation: InvocationId,
    /// The function, whose tenant pays.
    pub function: FunctionId,
    /// The models that it may open. All are granted on one device; those that cannot run there run on the processor of its node.
    pub models: Vec<ModelDemand>,
    /// When it is of no use any more.
    pub deadline_at_ns: u64,
    /// 1 is the most urgent; 0 is the default.
    pub priority: u32,
    /// Items that it works on: the first dimension of its input, say. 1 if there is no such thing.
    pub batch: u32,
    /// How long it runs once its models are in memory, if the caller knows. What was measured goes before it.
    pub run_time_ns: Option<u64>,
    /// The same by kind of device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub run_times_ns: Vec<(DeviceKind, u64)>,
    /// What it is to keep to: it is turned away on arrival if it would not. None: it waits as long as it takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slo: Option<Slo>,
    /// Where what it works on lies, as far as that makes a difference: it is moved to where it runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<InputsOn>,
}

/// What an invocation works on that is on one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct InputsOn {
    /// The node.
    pub node: NodeId,
    /// How much there is.
    pub bytes: u64,
}

/// A model that an invocation may open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelDemand {
    /// Which one.
    pub model: ModelId,
    /// The memory it takes on a device, as measured or estimated.
    pub bytes: u64,
    /// How long a load takes, if the caller knows.
    pub load_time_ns: Option<u64>,
    /// What it can run on.
    #[serde(default, skip_serializing_if = "Platforms::is_all")]
    pub runs_on: Platforms,
    /// Of [`bytes`](Self::bytes), what other models may have in common with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part>,
}

/// Weights that are in a device's memory once, however many of the models there have them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Part {
    /// Which.
    pub id: PartId,
    /// The memory that they take.
    pub bytes: u64,
}

/// Names weights by what they are: equal ones have equal names on all nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PartId(pub u64);

/// What a device can do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceSpec {
    /// What it is, as profiles are kept by: `cpu`, or the name of a GPU.
    pub kind: DeviceKind,
    /// What runs models there.
    #[serde(default)]
    pub platform: Platform,
    /// Memory for models.
    pub capacity_bytes: u64,
    /// Model runs at once; more wait on the device.
    pub slots: u32,
    /// Invocations that may hold a grant on the device at once. 1 is the papers' one at a time.
    pub invocations_max: u32,
}

/// A kind of device. Devices of one kind cost the same.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct DeviceKind(pub Arc<str>);

impl From<&str> for DeviceKind {
    fn from(kind: &str) -> Self {
        Self(kind.into())
    }
}

impl From<String> for DeviceKind {
    fn from(kind: String) -> Self {
        Self(kind.into())
    }
}

impl From<DeviceKind> for String {
    fn from(kind: DeviceKind) -> Self {
        kind.0.as_ref().into()
    }
}
