//! What nodes tell each other, as lines of JSON over HTTP/2 and as headers of calls that are passed on.

use serde::{Deserialize, Serialize};
use weir_scheduler::{Arrival, DeviceSpec, Estimate, Event, Rejection};
use weir_types::{DeviceId, InvocationId, ModelId, NodeId, TenantId, Version};

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
        model: ModelId,
        bytes: u64,
        load_time_ns: Option<u64>,
    },
    Evicted {
        model: ModelId,
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
    /// What is in its device's memory, with the bytes that takes.
    pub(crate) resident: Vec<(ModelId, u64)>,
}

/// What the dispatcher tells a node about the invocations that it asked about.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Order {
    Start {
        invocation: InvocationId,
        node: NodeId,
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
    /// Models that the node's device may give up, whatever becomes of the invocation that they are to make room for.
    MayEvict { evict: Vec<ModelId> },
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
    pub(crate) granted: Granted,
}

/// What a call may have of a device.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Granted {
    pub(crate) models: Vec<ModelId>,
    /// What may make room for them.
    pub(crate) evict: Vec<ModelId>,
}

impl News {
    /// In the words of the scheduler at `now_ns`; none if it has nothing to do with it.
    pub(crate) fn event(self, node: NodeId, now_ns: u64) -> Option<Event> {
        let device = DeviceId { node, ordinal: 0 };
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
            Self::Loaded { model, bytes, load_time_ns } => {
                Event::Loaded { device, model, bytes, load_time_ns }
            }
            Self::Evicted { model } => Event::Evicted { device, model },
            Self::Hello(_) | Self::Beat | Self::Leaving => return None,
        })
    }
}
