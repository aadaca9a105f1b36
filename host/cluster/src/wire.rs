//! The messages between nodes: lines of JSON over HTTP/2, and headers of forwarded calls.

use serde::{Deserialize, Serialize};
use weir_call::Objective;
use weir_scheduler::{
    Alternative, Arrival, DeviceSpec, DeviceUse, Estimate, Event, MeasuredTransfer, Part, Rejection,
    StorageTier, Why,
};
use weir_types::Ordinal;
use weir_types::{DeviceId, InvocationId, ModelId, NodeId, TenantId, Version};

/// The version of these messages and of the nodes' shared records in the datastore. Raised by every
/// change that a node of an earlier version would reject or misinterpret; optional and ignorable
/// additions do not count. Nodes of different protocols cannot join one cluster.
pub(crate) const PROTOCOL: u32 = 5;

/// A message from a node to the dispatcher. The first is always [`NodeEvent::Hello`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeEvent {
    Hello(Hello),
    /// More invocations that run on this node, after a [`Hello`] that has not named all of them.
    Running {
        running: Vec<AnnouncedInvocation>,
        is_last: bool,
    },
    /// An invocation requests a placement. Clocks differ between nodes, so its deadline and its due
    /// time (if any) are relative to now.
    Arrived {
        arrival: Arrival,
        deadline_in_ns: u64,
        #[serde(default)]
        due_in_ns: Option<u64>,
    },
    /// The device starts the first run of an invocation.
    Started {
        invocation: InvocationId,
    },
    /// An invocation that ran on this node has succeeded.
    Finished {
        invocation: InvocationId,
        used: DeviceUse,
    },
    /// An invocation that ran on this node has failed.
    Failed {
        invocation: InvocationId,
        used: DeviceUse,
    },
    /// An invocation that waits, that runs on this node, or that did not run where it was placed
    /// was cancelled. Without use: it has not started.
    Cancelled {
        invocation: InvocationId,
        #[serde(default)]
        used: Option<DeviceUse>,
    },
    /// Another node has answered an invocation of this node; the other node reports its end.
    Answered {
        invocation: InvocationId,
    },
    /// This node no longer waits for an invocation that it has forwarded and that was not answered.
    /// The other node reports the end, if it has the invocation.
    Abandoned {
        invocation: InvocationId,
    },
    Loaded {
        #[serde(default)]
        device: Ordinal,
        model: ModelId,
        bytes: u64,
        load_time_ns: Option<u64>,
        #[serde(default)]
        parts: Vec<Part>,
    },
    Evicted {
        #[serde(default)]
        device: Ordinal,
        model: ModelId,
    },
    /// Where the node would load models from; at most [`STAGED_PER_MESSAGE`].
    Staged {
        models: Vec<StagedModel>,
    },
    /// A device accepts no work for now.
    DeviceDown {
        device: Ordinal,
    },
    DeviceUp {
        device: Ordinal,
    },
    /// The memory that a device has for models has changed.
    DeviceResized {
        device: Ordinal,
        capacity_bytes: u64,
    },
    /// A heartbeat: the node is alive.
    Beat,
    /// The node finishes its running calls and accepts no new ones.
    Leaving,
}

/// A node's introduction: its identity, devices and resident models.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Hello {
    pub node: NodeId,
    /// The node's address, as `HOST:PORT`.
    pub address: String,
    pub devices: Vec<DeviceSpec>,
    /// The models in the memory of its devices, with their sizes.
    pub resident: Vec<AnnouncedModel>,
    /// The tier from which the node would load models that it has not reported.
    pub origin: StorageTier,
    /// Where the node would load other models from, unless the list is too long for this message:
    /// then [`NodeEvent::Staged`] follows.
    pub staged: Vec<StagedModel>,
    /// The devices that accept no work for now.
    #[serde(default)]
    pub down: Vec<Ordinal>,
    /// The invocations that run here, placed by another scheduler, whichever node received them.
    #[serde(default)]
    pub running: Vec<AnnouncedInvocation>,
    /// Whether [`NodeEvent::Running`] follows, with further invocations.
    #[serde(default)]
    pub has_more: bool,
}

/// The largest number of running invocations in one message.
pub(crate) const RUNNING_PER_MESSAGE: usize = 100;

/// The largest number of models in one message about where models are.
pub(crate) const STAGED_PER_MESSAGE: usize = 500;

/// Where a node would load a model from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StagedModel {
    /// The model.
    pub model: ModelId,
    /// Bytes of its files in each tier. Empty if they are in the tier of the models that the node
    /// has not reported.
    pub bytes: Vec<(StorageTier, u64)>,
    /// The transfer that moved the bytes, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved: Option<MeasuredTransfer>,
}

impl StagedModel {
    pub(crate) fn into_scheduler_event(self, node: NodeId) -> Event {
        let Self { model, bytes, moved } = self;
        Event::Staged { node, model, bytes, moved }
    }
}

/// An invocation that runs on the node that announces it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AnnouncedInvocation {
    /// The invocation as it arrived. Its deadline is relative, as in [`NodeEvent::Arrived`].
    pub arrival: Arrival,
    /// The time until its deadline.
    pub deadline_in_ns: u64,
    /// The device on which its models are granted; `None` without models.
    pub device: Option<Ordinal>,
    /// The node that received the invocation; `None` if it is the node that announces it.
    #[serde(default)]
    pub origin: Option<NodeId>,
}

/// A model in the memory of one of a node's devices.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AnnouncedModel {
    /// The device that holds the model.
    pub device: Ordinal,
    /// The resident model.
    pub model: ModelId,
    /// The device memory that the model takes.
    pub bytes: u64,
    /// The parts that it shares with other models.
    #[serde(default)]
    pub parts: Vec<Part>,
}

/// A message from the dispatcher to a node, mostly about the node's invocations.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DispatcherCommand {
    Start {
        invocation: InvocationId,
        node: NodeId,
        /// The device of that node; `None` if the invocation may open no models.
        #[serde(default)]
        device: Option<Ordinal>,
        /// The address of that node; `None` if it has just left.
        address: Option<String>,
        evict: Vec<ModelId>,
        /// The reasons of the placement.
        #[serde(default)]
        why: Box<Why>,
    },
    Reject {
        invocation: InvocationId,
        why: Rejection,
        #[serde(default)]
        estimate: Estimate,
        #[serde(default)]
        alternatives: Vec<Alternative>,
    },
    /// Models that one of the node's devices may evict, even if the invocation that needs the room
    /// never starts.
    MayEvict {
        #[serde(default)]
        device: Ordinal,
        evict: Vec<ModelId>,
    },
    /// The node that received an invocation has abandoned it. The node that was to run it reports
    /// its end now, unless it runs there.
    Abandoned { invocation: InvocationId },
    /// A heartbeat: the dispatcher is alive.
    Beat,
}

/// The terms of a forwarded call.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ForwardGrant {
    /// The id of the invocation that runs the call.
    pub invocation: InvocationId,
    /// The tenant that the call runs for.
    pub tenant: TenantId,
    /// The version of the function that the name pointed at on the node that received the call.
    pub version: Version,
    /// The time until the call's deadline.
    pub deadline_in_ms: u64,
    /// The time for which outputs that stay on the node are kept: until the end of the enclosing
    /// run.
    #[serde(default)]
    pub left_for_ms: u64,
    /// Whether the call is a step of a workflow: the objective is the workflow's then.
    #[serde(default)]
    pub is_step: bool,
    /// The device and models that the call may use.
    pub granted: Granted,
}

impl ForwardGrant {
    /// The objective of a call that arrived with `grant`; `own` is the objective in the manifest.
    pub fn objective(grant: Option<&Self>, own: impl Into<Objective>) -> Objective {
        match grant {
            Some(grant) if grant.is_step => Objective::default(),
            _ => own.into(),
        }
    }
}

/// The share of a node's device that a call may use.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Granted {
    /// The device; `None` if the call may open no models.
    #[serde(default)]
    pub device: Option<Ordinal>,
    /// The models that the call may open.
    pub models: Vec<ModelId>,
    /// The models that may be evicted to make room.
    pub evict: Vec<ModelId>,
    /// The node that received the call, if it has forwarded the call.
    #[serde(default)]
    pub origin: Option<NodeId>,
    /// The expected time from the placement to the end, if the call was placed on this device.
    #[serde(default)]
    pub estimate_ns: Option<u64>,
    /// Whether the call runs here because it did not run where it was placed: the scheduler does
    /// not know that it runs here.
    #[serde(skip)]
    pub is_fallback: bool,
}

impl NodeEvent {
    /// Converts the message to a scheduler event at `now_ns`; `None` if the scheduler does not need
    /// it, or if it stands for several events.
    pub fn into_scheduler_event(self, node: NodeId, now_ns: u64) -> Option<Event> {
        let device = |ordinal| DeviceId { node, ordinal };
        Some(match self {
            Self::Arrived { mut arrival, deadline_in_ns, due_in_ns } => {
                arrival.deadline_at_ns = now_ns.saturating_add(deadline_in_ns);
                if let Some(slo) = &mut arrival.slo {
                    slo.due_at_ns = due_in_ns.map_or(u64::MAX, |due_in_ns| now_ns.saturating_add(due_in_ns));
                }
                Event::Arrived(arrival)
            }
            Self::Started { invocation } => Event::Started { invocation },
            Self::Finished { invocation, used } => Event::Finished { invocation, used: Some(used) },
            Self::Failed { invocation, used } => Event::Failed { invocation, used: Some(used) },
            Self::Cancelled { invocation, used } => Event::Cancelled { invocation, used },
            Self::Loaded { device: at, model, bytes, load_time_ns, parts } => {
                Event::Loaded { device: device(at), model, bytes, load_time_ns, parts }
            }
            Self::Evicted { device: at, model } => Event::Evicted { device: device(at), model },
            Self::DeviceDown { device: at } => Event::DeviceDown { device: device(at) },
            Self::DeviceUp { device: at } => Event::DeviceUp { device: device(at) },
            Self::DeviceResized { device: at, capacity_bytes } => {
                Event::DeviceResized { device: device(at), capacity_bytes }
            }
            Self::Answered { .. }
            | Self::Abandoned { .. }
            | Self::Hello(_)
            | Self::Running { .. }
            | Self::Staged { .. }
            | Self::Beat
            | Self::Leaving => return None,
        })
    }
}
