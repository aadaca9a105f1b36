//! Actions of the scheduler, and their reasons.

use crate::StorageTier;
use serde::{Deserialize, Serialize};
use std::fmt;
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
        /// The devices that came closest and their expected costs, best first. At most
        /// [`Why::ALTERNATIVES_MAX`]; none if no device can run the invocation, or if it ran.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        alternatives: Vec<Alternative>,
    },
    /// A workflow is admitted with separate steps: their places are reserved. The driver lets each
    /// step arrive when its inputs exist, and reports [`Event::Cancelled`](crate::Event::Cancelled)
    /// of the workflow when no further step will arrive.
    Reserved {
        /// The workflow.
        invocation: InvocationId,
        /// The expected time and cost of the whole run.
        estimate: Estimate,
    },
    /// Load a required model, and keep it in memory until [`Release`](Self::Release). The node loads
    /// the model again if the device loses it.
    Load {
        /// The device.
        device: DeviceId,
        /// The model; it may be in memory already.
        model: ModelId,
        /// Models that the device may evict from now on, as in [`Start`](Self::Start).
        evict: Vec<ModelId>,
    },
    /// Keep a required model no longer: the model stays in memory until its room is needed, or until
    /// it was unused for too long. The node answers with
    /// [`Event::Released`](crate::Event::Released); until then, the room counts as taken.
    Release {
        /// The device.
        device: DeviceId,
        /// The model.
        model: ModelId,
    },
    /// Send [`Event::Woken`](crate::Event::Woken) at this time. Replaces an earlier request.
    WakeAt(u64),
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::QueueFull => "too many invocations were waiting",
            Self::NoCapacity => {
                "no device can hold its models together, or they exceed the tenant's memory limit"
            }
            Self::Deadline => "its deadline passed before it could start",
            Self::Slo => "it would have missed its service level objective",
            Self::NodeLost => "the node that ran it was lost",
            Self::NoDevice => "no node with devices joined the cluster in time",
        })
    }
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
    /// No device came up within the time that an invocation waits for a first one, or before its
    /// deadline.
    NoDevice,
}

/// The expected cost of a placement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Estimate {
    /// Time until the invocation's models can run: waiting for a device's queue, or for room.
    pub wait_ns: u64,
    /// Time to load the missing models.
    pub load_time_ns: u64,
    /// Time to move the invocation's inputs to the node of the device.
    #[serde(default, skip_serializing_if = "is_no_time")]
    pub move_time_ns: u64,
    /// Device time with all models and inputs in place.
    pub run_time_ns: u64,
    /// Time off the device, without waits.
    #[serde(default, skip_serializing_if = "is_no_time")]
    pub off_device_ns: u64,
    /// [`load_time_ns`](Self::load_time_ns) by the tier that the bytes come from. Only in a
    /// placement's [`Why`].
    #[serde(default, skip_serializing_if = "LoadByTier::is_empty")]
    pub load_by_tier: LoadByTier,
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

/// The expected load time of missing models by the tier that their bytes come from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LoadByTier {
    /// From another device of the same node.
    pub sibling_ns: u64,
    /// From the node's memory.
    pub memory_ns: u64,
    /// From the node's disk.
    pub disk_ns: u64,
    /// From the object store.
    pub object_store_ns: u64,
}

impl LoadByTier {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn add(&mut self, tier: StorageTier, time_ns: u64) {
        let sum_ns = match tier {
            StorageTier::Sibling => &mut self.sibling_ns,
            StorageTier::Memory => &mut self.memory_ns,
            StorageTier::Disk => &mut self.disk_ns,
            StorageTier::ObjectStore => &mut self.object_store_ns,
        };
        *sum_ns = sum_ns.saturating_add(time_ns);
    }
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
        self.ready_after_ns().saturating_add(self.run_time_ns).saturating_add(self.off_device_ns)
    }
}

/// Actual times of a placed invocation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct InvocationOutcome {
    /// Time that the invocation waited after its placement: for a run slot, for room, or for loads
    /// of other invocations.
    pub wait_ns: u64,
    /// Time in which the invocation's missing models were loaded.
    pub load_time_ns: u64,
    /// Time in which the invocation's inputs were moved; `None` if it was not measured. The other
    /// times then include it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub move_time_ns: Option<u64>,
    /// Device time.
    pub run_time_ns: u64,
    /// Time off the device, without waits.
    pub off_device_ns: u64,
}

/// The ratio of estimate to outcome, in total and for each part: 1 if the estimate was right.
/// `None`: neither the estimate nor the outcome took any time, or the outcome was not measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct EstimateRatio {
    /// From placement to end.
    pub total: Option<f64>,
    /// Waiting.
    pub wait: Option<f64>,
    /// Loading.
    pub load: Option<f64>,
    /// Moving inputs.
    #[serde(rename = "move")]
    pub moving: Option<f64>,
    /// Running.
    pub run: Option<f64>,
}

impl InvocationOutcome {
    /// Time from placement to end.
    #[must_use]
    pub fn total_ns(&self) -> u64 {
        let move_time_ns = self.move_time_ns.unwrap_or(0);
        let parts = [self.wait_ns, self.load_time_ns, move_time_ns, self.run_time_ns, self.off_device_ns];
        parts.into_iter().fold(0, u64::saturating_add)
    }

    /// The ratio of an estimate of the total to the actual total, as in [`EstimateRatio::total`].
    #[must_use]
    pub fn estimated(&self, estimate_ns: u64) -> Option<f64> {
        ratio(estimate_ns, self.total_ns())
    }
}

impl Why {
    /// Maximum number of alternatives kept.
    pub const ALTERNATIVES_MAX: usize = 3;

    /// The best of some alternatives, best first.
    pub(crate) fn best_of(all: impl Iterator<Item = Alternative>) -> Vec<Alternative> {
        let mut best = Vec::with_capacity(Self::ALTERNATIVES_MAX + 1);
        for alternative in all {
            let finish_ns = alternative.estimate.finish_after_ns();
            let at =
                best.partition_point(|other: &Alternative| other.estimate.finish_after_ns() <= finish_ns);
            best.insert(at, alternative);
            best.truncate(Self::ALTERNATIVES_MAX);
        }
        best
    }

    /// Compares the estimate with the actual times of the invocation.
    #[must_use]
    pub fn compare(&self, outcome: &InvocationOutcome) -> EstimateRatio {
        let Estimate { wait_ns, load_time_ns, move_time_ns, run_time_ns, .. } = self.estimate;
        EstimateRatio {
            total: outcome.estimated(self.estimate.finish_after_ns()),
            wait: ratio(wait_ns, outcome.wait_ns),
            load: ratio(load_time_ns, outcome.load_time_ns),
            moving: outcome.move_time_ns.and_then(|measured_ns| ratio(move_time_ns, measured_ns)),
            run: ratio(run_time_ns, outcome.run_time_ns),
        }
    }
}

/// The ratio of two times. A time of 0 counts as 1 ns, so that the ratio is finite.
fn ratio(estimate_ns: u64, actual_ns: u64) -> Option<f64> {
    (estimate_ns > 0 || actual_ns > 0).then(|| estimate_ns.max(1) as f64 / actual_ns.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimate_is_compared_with_the_outcome_part_by_part() {
        let estimate = Estimate {
            wait_ns: 10,
            load_time_ns: 300,
            run_time_ns: 100,
            off_device_ns: 90,
            ..Estimate::default()
        };
        let why = Why { estimate, ..Why::default() };
        let outcome = InvocationOutcome {
            wait_ns: 40,
            load_time_ns: 150,
            run_time_ns: 50,
            off_device_ns: 10,
            move_time_ns: None,
        };
        let ratio = why.compare(&outcome);
        assert_eq!((ratio.total, ratio.wait, ratio.load), (Some(2.0), Some(0.25), Some(2.0)));
        assert_eq!((ratio.moving, ratio.run), (None, Some(2.0)));
        assert_eq!(why.compare(&InvocationOutcome::default()).total, Some(500.0));
    }

    #[test]
    fn unmeasured_moves_have_no_ratio() {
        let estimate = Estimate { move_time_ns: 100, run_time_ns: 100, ..Estimate::default() };
        let why = Why { estimate, ..Why::default() };
        let unmeasured = InvocationOutcome { run_time_ns: 200, ..InvocationOutcome::default() };
        assert_eq!((why.compare(&unmeasured).moving, why.compare(&unmeasured).total), (None, Some(1.0)));
        assert_eq!(
            serde_json::to_string(&unmeasured).unwrap(),
            r#"{"wait_ns":0,"load_time_ns":0,"run_time_ns":200,"off_device_ns":0}"#
        );
        let measured = InvocationOutcome { move_time_ns: Some(50), ..unmeasured };
        assert_eq!(why.compare(&measured).moving, Some(2.0));
    }
}
