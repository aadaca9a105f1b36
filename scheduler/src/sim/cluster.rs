//! The parameters of a simulated cluster, and the outcome of a workload on it.

use super::layout::{Losses, SimulatedKind};
use super::slos::{SloCounts, SloRule};
use crate::{DeviceRule, Settings};
use std::collections::BTreeMap;
use weir_types::Cost;

/// The simulated devices, and the inputs of the scheduler.
#[derive(Debug, Clone, PartialEq)]
pub struct SimulatedCluster {
    /// Concurrent invocations per device; 1 is the LALB paper's rule.
    pub slots: u32,
    /// When a device accepts one more invocation. Under
    /// [`CommittedWork`](DeviceRule::CommittedWork), `slots` are concurrent runs.
    pub rule: DeviceRule,
    /// Number of nodes that the devices are distributed over.
    pub nodes: u32,
    /// Number of groups that the nodes are divided into, each with its own scheduler.
    pub groups: u32,
    /// Interval between reports of the groups' work, from which the groups of requests are chosen.
    pub report_interval_ns: u64,
    /// Kinds of the devices, in turn. If empty, all devices are as the workload defines.
    pub kinds: Vec<SimulatedKind>,
    /// Outages of nodes.
    pub losses: Option<Losses>,
    /// Batching of runs of one model that are ready at the same time.
    pub batching: SimulatedBatching,
    /// Whether the scheduler gets the costs of models, as from a profile. If not, it has to learn
    /// them.
    pub tells_costs: bool,
    /// The order in which the scheduler learns of runs that end at the same instant.
    pub ends: Ends,
    /// Time after which a request expires.
    pub deadline_ns: Option<u64>,
    /// SLOs of requests, if any.
    pub slo: Option<SloRule>,
    /// Maximum relative deviation of run times from their expected values, at random in both
    /// directions.
    pub jitter: f64,
    /// Time from a decision until the device can start the request, under
    /// [`CommittedWork`](DeviceRule::CommittedWork).
    pub hand_over_ns: u64,
    /// Fraction of the requests that fail or are cancelled during their run, from 0 to 1.
    pub faults: f64,
    /// The scheduler's settings.
    pub settings: Settings,
}

/// An order of devices whose runs end at the same time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Ends {
    /// By device number.
    #[default]
    InOrder,
    /// By device number, starting after the device used last. A policy that takes devices in turn
    /// then places each invocation as if all of these runs had already ended.
    InTurn,
}

/// Batching of runs of one model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SimulatedBatching {
    /// Maximum number of runs in a batch. 1 disables batching.
    pub batch_max: u32,
    /// Time added by each run after the first, relative to the time of one run.
    pub marginal: f64,
}

impl Default for SimulatedCluster {
    /// The LALB paper's devices.
    fn default() -> Self {
        Self {
            slots: 1,
            rule: DeviceRule::CountedInvocations,
            nodes: 1,
            groups: 1,
            report_interval_ns: 1_000_000_000,
            kinds: Vec::new(),
            losses: None,
            batching: SimulatedBatching { batch_max: 1, marginal: 1.0 },
            tells_costs: true,
            ends: Ends::InOrder,
            deadline_ns: None,
            slo: None,
            jitter: 0.0,
            hand_over_ns: 0,
            faults: 0.0,
            settings: Settings { queue_len_max: usize::MAX, ..Settings::default() },
        }
    }
}

impl SimulatedCluster {
    /// Devices under Weir's own rule, as on a node with default settings.
    #[must_use]
    pub fn weir() -> Self {
        Self { rule: DeviceRule::CommittedWork, ..Self::default() }
    }

    /// Whether devices have the rule [`CommittedWork`](DeviceRule::CommittedWork).
    pub(super) fn counts_work(&self) -> bool {
        self.rule == DeviceRule::CommittedWork
    }
}

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimulatedPlacement {
    /// The device.
    pub device: u32,
    /// When the request was started.
    pub started_at_ns: u64,
    /// When the request ended.
    pub ended_at_ns: u64,
    /// Whether its model was in memory.
    pub hit: bool,
}

/// The outcome of a workload.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SimulatedSchedule {
    /// By request; `None` for requests that were rejected or lost with their node.
    pub placed: Vec<Option<SimulatedPlacement>>,
    /// Misses of a model that was on another device.
    pub false_misses: u32,
    /// Total computing time of all devices.
    pub computed_ns: u64,
    /// The number of devices that held the most requested model, integrated over time.
    pub top_held_ns: u128,
    /// Calls of `Scheduler::handle`.
    pub decisions: u64,
    /// Outcomes of the requests with an SLO.
    pub slos: SloCounts,
    /// Total cost of the device time used.
    pub cost: Cost,
    /// Requests that failed or were cancelled during their run.
    pub failed: u32,
    /// By model: the run time that the scheduler expected when it placed the last request.
    pub expected_run_ns: Vec<u64>,
    /// By request: the end that the scheduler expected when it placed the request.
    pub expected_end_ns: Vec<u64>,
    /// Requests outside the home group of their model.
    pub elsewhere: u64,
    /// By tenant: the computing time of its requests.
    pub device_time_ns: BTreeMap<u32, u64>,
}
