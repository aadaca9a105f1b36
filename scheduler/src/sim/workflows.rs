//! Simulation of workflows whose steps are placed separately, on devices of different kinds.
//!
//! A [`WorkflowWorkload`] has the devices, the models with their times on each kind of device, the
//! workflows with their objectives, and the arrivals. [`run_workflows`] runs it under a
//! [`WorkflowPolicy`](crate::WorkflowPolicy), and checks every start: inputs exist, the device is
//! idle, memory suffices.

mod file;

mod preset;
pub use preset::WorkflowPreset;

mod world;
pub use world::{WorkflowOptions, run_workflows};

mod metrics;
pub use metrics::WorkflowMetrics;

mod table;
pub use table::{TABLE_4_1, Table41Row, table_4_1};

use super::WorkloadError;
use crate::{WorkflowDevice, WorkflowGraph};
use std::sync::Arc;
use weir_types::Cost;

/// A workload of workflows, and the devices that it is meant for.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkflowWorkload {
    /// Price of a second, by kind of device.
    prices: Vec<Cost>,
    devices: Vec<WorkflowDevice>,
    /// By device: the models in memory at the start, with their sizes.
    residents: Vec<Vec<(u32, u64)>>,
    workflows: Vec<SimulatedWorkflow>,
    /// Arrival times in order, and the indexes of the workflows.
    requests: Vec<(u64, usize)>,
    /// The measured time: workflows that end later do not count as goodput.
    window_ns: u64,
}

/// A workflow with its objectives.
#[derive(Debug, Clone, PartialEq)]
struct SimulatedWorkflow {
    graph: Arc<WorkflowGraph>,
    latency_ns: u64,
    cost_max: Cost,
}

/// The outcome of a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkflowSchedule {
    /// By request.
    pub outcomes: Vec<WorkflowOutcome>,
    /// By device: the time that it loaded models or ran steps within the measured time.
    pub busy_ns: Vec<u64>,
}

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkflowOutcome {
    /// Rejected on arrival.
    Rejected,
    /// Given up while it waited.
    GivenUp,
    /// All steps ended.
    Ended {
        /// When the last step ended.
        at_ns: u64,
        /// Cost of the device time, loads included.
        cost: Cost,
        /// Whether it was admitted, that is, expected to meet its objectives.
        is_admitted: bool,
    },
}

impl WorkflowWorkload {
    /// Number of kinds of devices.
    #[must_use]
    pub fn kinds_len(&self) -> usize {
        self.prices.len()
    }

    /// The same workload with other arrivals, in order: times and indexes of workflows.
    fn with_requests(self, requests: Vec<(u64, usize)>) -> Result<Self, WorkloadError> {
        let mut before_ns = 0;
        for (index, (at_ns, workflow)) in requests.iter().enumerate() {
            let bad = |why: String| Err(WorkloadError::Bad { what: "request", index, why });
            if *workflow >= self.workflows.len() {
                return bad(format!("there is no workflow {workflow}"));
            }
            if *at_ns < before_ns {
                return bad("it arrives before the one that it follows".to_owned());
            }
            before_ns = *at_ns;
        }
        Ok(Self { requests, ..self })
    }

    /// Number of requests.
    #[must_use]
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there are no requests.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }
}
