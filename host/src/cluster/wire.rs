//! What nodes tell each other, as lines of JSON over HTTP/2 and as headers of calls that are passed on.

use crate::devices::Ordinal;
use crate::objective::Objective;
use serde::{Deserialize, Serialize};
use weir_scheduler::{Arrival, DeviceSpec, Estimate, Event, Part, Rejection};
use weir_types::{DeviceId, InvocationId, ModelId, NodeId, TenantId, Version};

/// Which words these are, and what nodes keep for each other in the datastore. Raised by every change that a node of an earlier version would not
/// understand, or would understand wrongly; what it may leave out or ignore does not count. Nodes that speak another do not meet in one cluster.
pub(crate) const PROTOCOL: u32 = 2;

/// What a node tells the dispatcher. The first is always [`News::Hello`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum News {
    Hello(Hello),
    /// An invocation wants to run. Clocks differ, so that its deadline is told from now on, and when it is due, if ever.
    Arrived {
        arrival: Arrival,
        deadline_in_ns: u64,
        #[serde(default)]
        due_in_ns: Option<u64>,
    },
    Finished {
        invocation: InvocationId,
    },
    Cancelled {
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
    /// A device takes nothing more for now.
    DeviceDown {
        device: Ordinal,
    },
    DeviceUp {
        device: Ordinal,
    },
    /// A device has so much memory for models from now on.
    DeviceResized {
        device: Ordinal,
        capacity_bytes: u64,
    },
    /// The node is still there.
    Beat,
    /// The node finishes what it runs, and wants nothing new.
    Leaving,
}

/// Who a node is, and what it has.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) node: NodeId,
    /// Where other nodes reach it, as `HOST:PORT`.
    pub(crate) address: String,
    pub(crate) devices: Vec<DeviceSpec>,
    /// What is in the memory of its devices, with the bytes that takes.
    pub(crate) resident: Vec<Resident>,
    /// The devices that take nothing for now.
    #[serde(default)]
    pub(crate) down: Vec<Ordinal>,
}

/// A model in the memory of one of a node's devices.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Resident {
    pub(crate) device: Ordinal,
    pub(crate) model: ModelId,
    pub(crate) bytes: u64,
    /// What it has in common with other models.
    #[serde(default)]
    pub(crate) parts: Vec<Part>,
}

/// What the dispatcher tells a node about the invocations that it asked about.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Order {
    Start {
        invocation: InvocationId,
        node: NodeId,
        /// Which of its devices; none if it may open no models.
        #[serde(default)]
        device: Option<Ordinal>,
        /// Where that node is reached; none if it has just left.
        address: Option<String>,
        evict: Vec<ModelId>,
    },
    Reject {
        invocation: InvocationId,
        why: Rejection,
        #[serde(default)]
        estimate: Estimate,
    },
    /// Models that one of the node's devices may give up, whatever becomes of the invocation that they are to make room for.
    MayEvict {
        #[serde(default)]
        device: Ordinal,
        evict: Vec<ModelId>,
    },
    /// The dispatcher is still there.
    Beat,
}

/// What a node may do for a call that another has passed on to it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Grant {
    pub(crate) invocation: InvocationId,
    pub(crate) tenant: TenantId,
    /// Which version of the function: that which the name pointed at where the call came in.
    pub(crate) version: Version,
    /// How long it may still take.
    pub(crate) deadline_in_ms: u64,
    /// How long what it leaves there for other calls is kept: until the end of what they are all part of.
    #[serde(default)]
    pub(crate) left_for_ms: u64,
    /// It is a step of a workflow, which has an objective of its own.
    #[serde(default)]
    pub(crate) is_step: bool,
    pub(crate) granted: Granted,
}

impl Grant {
    /// What a call is to keep to that came in with this, of which the manifest says `own`.
    pub(crate) fn objective(grant: Option<&Self>, own: impl Into<Objective>) -> Objective {
        match grant {
            Some(grant) if grant.is_step => Objective::default(),
            _ => own.into(),
        }
    }
}

/// What a call may have of a node's device.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Granted {
    /// Which; none if it may open no models.
    #[serde(default)]
    pub(crate) device: Option<Ordinal>,
    pub(crate) models: Vec<ModelId>,
    /// What may make room for them.
    pub(crate) evict: Vec<ModelId>,
}

impl News {
    /// In the words of the scheduler at `now_ns`; none if it has nothing to do with it.
    pub(crate) fn event(self, node: NodeId, now_ns: u64) -> Option<Event> {
        let device = |ordinal| DeviceId { node, ordinal };
        Some(match self {
            Self::Arrived { mut arrival, deadline_in_ns, due_in_ns } => {
                arrival.deadline_at_ns = now_ns.saturating_add(deadline_in_ns);
                if let Some(slo) = &mut arrival.slo {
                    slo.due_at_ns = due_in_ns.map_or(u64::MAX, |due_in_ns| now_ns.saturating_add(due_in_ns));
                }
                Event::Arrived(arrival)
            }
            Self::Finished { invocation } => Event::Finished { invocation },
            Self::Cancelled { invocation } => Event::Cancelled { invocation },
            Self::Loaded { device: at, model, bytes, load_time_ns, parts } => {
                Event::Loaded { device: device(at), model, bytes, load_time_ns, parts }
            }
            Self::Evicted { device: at, model } => Event::Evicted { device: device(at), model },
            Self::DeviceDown { device: at } => Event::DeviceDown { device: device(at) },
            Self::DeviceUp { device: at } => Event::DeviceUp { device: device(at) },
            Self::DeviceResized { device: at, capacity_bytes } => {
                Event::DeviceResized { device: device(at), capacity_bytes }
            }
            Self::Hello(_) | Self::Beat | Self::Leaving => return None,
        })
    }
}
