//! What is to be done, and why.

use serde::{Deserialize, Serialize};
use weir_types::{Cost, DeviceId, InvocationId, ModelId, NodeId};

/// Something that the driver carries out, in the order given.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Run an invocation.
    Start {
        /// Which one.
        invocation: InvocationId,
        /// Where.
        node: NodeId,
        /// The device on which its models are granted; none if it may open none.
        device: Option<DeviceId>,
        /// Models that the device may give up from now on, first first, until they are granted again: the node evicts them only when
        /// it really loads something and has no room. This holds even if nobody wants the invocation any more by now, since later
        /// placements count on it. [`Evictable`](crate::Evictable) keeps the list.
        evict: Vec<ModelId>,
        /// Why there.
        why: Why,
    },
    /// Answer that an invocation will not run, or not to its end.
    Reject {
        /// Which one.
        invocation: InvocationId,
        /// Why not.
        why: Rejection,
        /// What it would have taken, as far as that is known.
        estimate: Estimate,
    },
    /// Tell [`Event::Woken`](crate::Event::Woken) at this time. Replaces what was asked for before.
    WakeAt(u64),
}

/// Why an invocation is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rejection {
    /// Too many wait already.
    QueueFull,
    /// Its models are larger than any device, or than what its tenant may have.
    NoCapacity,
    /// Its deadline passed while it waited.
    Deadline,
    /// It would miss its SLO, or has missed it while it waited.
    Slo,
    /// Its node went away while it ran.
    NodeLost,
}

/// What the scheduler expects of a placement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Estimate {
    /// Time until its models can run: for a device's queue, or for room.
    pub wait_ns: u64,
    /// Time to load what is missing.
    pub load_time_ns: u64,
    /// Time to bring its inputs from where they are to the node of the device.
    #[serde(default, skip_serializing_if = "is_no_time")]
    pub move_time_ns: u64,
    /// Time to run once everything is there.
    pub run_time_ns: u64,
    /// Bytes of what is missing.
    pub missing_bytes: u64,
    /// What the device time costs; nothing unless it was asked for by an SLO.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cost: Cost,
}

fn is_no_time(time_ns: &u64) -> bool {
    *time_ns == 0
}

fn is_zero(cost: &Cost) -> bool {
    *cost == Cost::ZERO
}

/// Why an invocation was placed where it was.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Why {
    /// What is expected of the placement.
    pub estimate: Estimate,
    /// The other places it could have had, and what they would have cost. At most [`Why::ALTERNATIVES_MAX`], best first.
    pub alternatives: Vec<Alternative>,
    /// How long it waited in the scheduler's queue.
    pub queued_ns: u64,
}

/// A place that was not chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alternative {
    /// The place.
    pub device: DeviceId,
    /// What was expected of it.
    pub estimate: Estimate,
}

impl Estimate {
    /// Time until the models can run, and they and the inputs are there.
    #[must_use]
    pub fn ready_after_ns(&self) -> u64 {
        self.wait_ns.saturating_add(self.move_time_ns).saturating_add(self.load_time_ns)
    }

    /// Time until the invocation is over.
    #[must_use]
    pub fn finish_after_ns(&self) -> u64 {
        self.ready_after_ns().saturating_add(self.run_time_ns)
    }
}

impl Why {
    /// The most alternatives that are kept.
    pub const ALTERNATIVES_MAX: usize = 3;
}
