//! The messages between a node and the dispatcher.

use std::sync::Arc;
use weir_scheduler::{
    Alternative, Arrival, DeviceSpec, DeviceUse, Estimate, Event, MeasuredTransfer, Part, Rejection,
    StorageTier, Why,
};
use weir_types::{DeviceId, InvocationId, ModelId, NodeId, Ordinal};

/// The version of these messages, of their frames, and of the nodes' shared records in the
/// datastore. Raised by every change that a node of an earlier version would reject or
/// misinterpret. Any change of the frames is such a change; optional additions to the records are
/// not. Nodes of different protocols cannot join one cluster.
pub const PROTOCOL: u32 = 9;

/// A message from a node to the dispatcher. The first is always [`NodeEvent::Hello`].
#[derive(Debug, Clone, PartialEq)]
pub enum NodeEvent {
    /// The introduction of the node.
    Hello(Hello),
    /// More invocations that run on this node, after a [`Hello`] that has not named all of them.
    Running {
        /// The invocations.
        running: Vec<AnnouncedInvocation>,
        /// Whether no further ones follow.
        is_last: bool,
    },
    /// An invocation requests a placement. Clocks differ between nodes, so its deadline and its due
    /// time (if any) are relative to now.
    Arrived {
        /// The invocation. Its own deadline and due time are not valid.
        arrival: Arrival,
        /// The time until its deadline.
        deadline_in_ns: u64,
        /// The time until it is due, if it has an objective for its latency.
        due_in_ns: Option<u64>,
    },
    /// The device starts the first run of an invocation.
    Started {
        /// The invocation.
        invocation: InvocationId,
    },
    /// An invocation that ran on this node has succeeded.
    Finished {
        /// The invocation.
        invocation: InvocationId,
        /// Its use of the device.
        used: DeviceUse,
    },
    /// An invocation that ran on this node has failed.
    Failed {
        /// The invocation.
        invocation: InvocationId,
        /// Its use of the device.
        used: DeviceUse,
    },
    /// An invocation that waits, that runs on this node, or that did not run where it was placed
    /// was cancelled.
    Cancelled {
        /// The invocation.
        invocation: InvocationId,
        /// Its use of the device; `None` if it has not started.
        used: Option<DeviceUse>,
    },
    /// Another node has answered an invocation of this node; the other node reports its end.
    Answered {
        /// The invocation.
        invocation: InvocationId,
    },
    /// This node no longer waits for an invocation that it has forwarded and that was not answered.
    /// The other node reports the end, if it has the invocation.
    Abandoned {
        /// The invocation.
        invocation: InvocationId,
    },
    /// A model is in the memory of a device.
    Loaded {
        /// The device.
        device: Ordinal,
        /// The model.
        model: ModelId,
        /// The device memory that the model takes.
        bytes: u64,
        /// The duration of the load; `None` if the model was in memory before.
        load_time_ns: Option<u64>,
        /// The parts that it shares with other models.
        parts: Vec<Part>,
    },
    /// A model is no longer in the memory of a device.
    Evicted {
        /// The device.
        device: Ordinal,
        /// The model.
        model: ModelId,
    },
    /// Where the node would load models from.
    Staged {
        /// The models.
        models: Vec<StagedModel>,
    },
    /// A device accepts no work for now.
    DeviceDown {
        /// The device.
        device: Ordinal,
    },
    /// A device accepts work again.
    DeviceUp {
        /// The device.
        device: Ordinal,
    },
    /// The memory that a device has for models has changed.
    DeviceResized {
        /// The device.
        device: Ordinal,
        /// Its memory for models.
        capacity_bytes: u64,
    },
    /// A device has ended its obligation to keep a model.
    Released {
        /// The device.
        device: Ordinal,
        /// The model.
        model: ModelId,
    },
    /// A device could not load a model that [`DispatcherCommand::Load`] named.
    LoadFailed {
        /// The device.
        device: Ordinal,
        /// The model.
        model: ModelId,
    },
    /// A heartbeat: the node is alive.
    Beat,
    /// The node finishes its running calls and accepts no new ones.
    Leaving,
}

/// A node's introduction: its identity, devices and resident models.
#[derive(Debug, Clone, PartialEq)]
pub struct Hello {
    /// The node.
    pub node: NodeId,
    /// The node's address, as `HOST:PORT`.
    pub address: Arc<str>,
    /// Its devices, by ordinal.
    pub devices: Vec<DeviceSpec>,
    /// The models in the memory of its devices, with their sizes.
    pub resident: Vec<AnnouncedModel>,
    /// The tier from which the node would load models that it has not reported.
    pub origin: StorageTier,
    /// Where the node would load other models from, unless the list is too long for this message:
    /// then [`NodeEvent::Staged`] follows.
    pub staged: Vec<StagedModel>,
    /// The devices that accept no work for now.
    pub down: Vec<Ordinal>,
    /// The invocations that run here, placed by another scheduler, whichever node received them.
    pub running: Vec<AnnouncedInvocation>,
    /// Whether [`NodeEvent::Running`] follows, with further invocations.
    pub has_more: bool,
}

/// Where a node would load a model from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StagedModel {
    /// The model.
    pub model: ModelId,
    /// Bytes of its files in each tier. Empty if they are in the tier of the models that the node
    /// has not reported.
    pub bytes: Vec<(StorageTier, u64)>,
    /// The transfer that moved the bytes, if there was one.
    pub moved: Option<MeasuredTransfer>,
}

impl StagedModel {
    /// Converts the report to a scheduler event about `node`.
    #[must_use]
    pub fn into_scheduler_event(self, node: NodeId) -> Event {
        let Self { model, bytes, moved } = self;
        Event::Staged { node, model, bytes, moved }
    }
}

/// An invocation that runs on the node that announces it.
#[derive(Debug, Clone, PartialEq)]
pub struct AnnouncedInvocation {
    /// The invocation as it arrived. Its deadline is relative, as in [`NodeEvent::Arrived`].
    pub arrival: Arrival,
    /// The time until its deadline.
    pub deadline_in_ns: u64,
    /// The device on which its models are granted; `None` without models.
    pub device: Option<Ordinal>,
    /// The node that received the invocation; `None` if it is the node that announces it.
    pub origin: Option<NodeId>,
}

/// A model in the memory of one of a node's devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnnouncedModel {
    /// The device that holds the model.
    pub device: Ordinal,
    /// The resident model.
    pub model: ModelId,
    /// The device memory that the model takes.
    pub bytes: u64,
    /// The parts that it shares with other models.
    pub parts: Vec<Part>,
}

/// A message from the dispatcher to a node, mostly about the node's invocations.
#[derive(Debug, Clone, PartialEq)]
pub enum DispatcherCommand {
    /// An invocation is placed.
    Start {
        /// The invocation.
        invocation: InvocationId,
        /// The node that is to run it.
        node: NodeId,
        /// The device of that node; `None` if the invocation may open no models.
        device: Option<Ordinal>,
        /// The address of that node; `None` if it has just left.
        address: Option<Arc<str>>,
        /// The models that the device may evict.
        evict: Vec<ModelId>,
        /// The reasons of the placement.
        why: Box<Why>,
    },
    /// An invocation does not run, or not to its end.
    Reject {
        /// The invocation.
        invocation: InvocationId,
        /// The reason.
        why: Rejection,
        /// The best estimate.
        estimate: Estimate,
        /// The devices that came closest.
        alternatives: Vec<Alternative>,
    },
    /// A workflow is admitted with separate steps. The node requests a placement for each step, under
    /// the id that the step had in the request for the workflow.
    Reserved {
        /// The invocation of the workflow.
        invocation: InvocationId,
    },
    /// Models that one of the node's devices may evict, even if the invocation that needs the room
    /// never starts.
    MayEvict {
        /// The device.
        device: Ordinal,
        /// The models, in the order of eviction.
        evict: Vec<ModelId>,
    },
    /// One of the node's devices is to load a model, and to keep it in memory until
    /// [`Release`](Self::Release).
    Load {
        /// The device.
        device: Ordinal,
        /// The model.
        model: ModelId,
        /// The models that the device may evict, in the order of eviction.
        evict: Vec<ModelId>,
    },
    /// One of the node's devices is to keep a model no longer. The node answers with
    /// [`NodeEvent::Released`].
    Release {
        /// The device.
        device: Ordinal,
        /// The model.
        model: ModelId,
    },
    /// The node that received an invocation has abandoned it. The node that was to run it reports
    /// its end now, unless it runs there.
    Abandoned {
        /// The invocation.
        invocation: InvocationId,
    },
    /// A heartbeat: the dispatcher is alive.
    Beat,
}

impl NodeEvent {
    /// Converts the message to a scheduler event at `now_ns`; `None` if the scheduler does not need
    /// it, or if it stands for several events.
    #[must_use]
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
            Self::Released { device: at, model } => Event::Released { device: device(at), model },
            Self::LoadFailed { device: at, model } => Event::LoadFailed { device: device(at), model },
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
