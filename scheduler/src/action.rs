//! Actions of the scheduler, and their reasons.

use serde::{Deserialize, Serialize};
use weir_types::{Cost, DeviceId, InvocationId, ModelId, NodeId};

/// An action for the driver. The driver carries out actions in the order given.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Run an invocation.
    Start {
        /// The invocation.
        invocation: InvocationId,
        /// The node that runs the invocation.
        node: NodeId,
        /// The device on which the invocation's models are granted; `None` if the invocation may
        /// open no models.
        device: Option<DeviceId>,
        /// Models that the device may evict from now on, in order of eviction, until they are
        /// granted again. The node evicts one only when a load needs the room. The permission holds
        /// even if the invocation is cancelled meanwhile, since later placements count on it.
        /// [`Evictable`](crate::Evictable) keeps the list.
        evict: Vec<ModelId>,
        /// The reasons for this placement.
        why: Why,
    },
    /// Report that an invocation will not run, or will not run to its end.
    Reject {
        /// The invocation.
        invocation: InvocationId,
        /// The reason.
        why: Rejection,
        /// The estimated cost of running the invocation, if known.
        estimate: Estimate,
    },
    /// Send [`Event::Woken`](crate::Event::Woken) at this time. Replaces an earlier request.
    WakeAt(u64),
}

/// Why an invocation is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rejection {
    /// The queue is full.
    QueueFull,
    /// The invocation's models exceed every device, or its tenant's memory limit.
    NoCapacity,
    /// The invocation's deadline passed while it waited.
    Deadline,
    /// The invocation would miss its SLO, or missed the SLO while it waited.
    Slo,
    /// The invocation's node was lost while it ran.
    NodeLost,
}

/// The expected cost of a placement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Estimate {
    /// Time until its models can run: waiting for a device's queue, or for room.
    pub wait_ns: u64,
    /// Time to load the missing models.
    pub load_time_ns: u64,
    /// Time to move its inputs to the node of the device.
    #[serde(default, skip_serializing_if = "is_no_time")]
    pub move_time_ns: u64,
    /// Time to run with all models and inputs in place.
    pub run_time_ns: u64,
    /// Bytes of the missing models.
    pub missing_bytes: u64,
    /// Cost of the device time; zero unless an SLO asked for the cost.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cost: Cost,
}

fn is_no_time(time_ns: &u64) -> bool {
    *time_ns == 0
}

fn is_zero(cost: &Cost) -> bool {
    *cost == Cost::ZERO
}

/// The reasons for a placement.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Why {
    /// The expected cost of the placement.
    pub estimate: Estimate,
    /// The alternative devices and their expected costs, best first. At most
    /// [`Why::ALTERNATIVES_MAX`].
    pub alternatives: Vec<Alternative>,
    /// Time that the invocation waited in the scheduler's queue.
    pub queued_ns: u64,
}

/// A device that was not chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alternative {
    /// The device.
    pub device: DeviceId,
    /// The expected cost on the device.
    pub estimate: Estimate,
}

impl Estimate {
    /// Time until the invocation can run: wait, move and load times together.
    #[must_use]
    pub fn ready_after_ns(&self) -> u64 {
        self.wait_ns.saturating_add(self.move_time_ns).saturating_add(self.load_time_ns)
    }

    /// Time until the invocation ends.
    #[must_use]
    pub fn finish_after_ns(&self) -> u64 {
        self.ready_after_ns().saturating_add(self.run_time_ns)
    }
}

impl Why {
    /// Maximum number of alternatives kept.
    pub const ALTERNATIVES_MAX: usize = 3;
}
