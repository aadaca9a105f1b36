//! The policies for workflows, by name.

use super::node::NodeWorkflows;
use super::{ClockworkWorkflows, FirstComeWorkflows, WorkflowAdmission, WorkflowDevice, WorkflowPolicy};
use crate::SloSettings;
use std::fmt;
use std::str::FromStr;
use weir_types::{Cost, Platform};

/// A policy for workflows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WorkflowPolicyKind {
    /// Steps in order of the arrival of their workflows, on any idle device.
    Fifo,
    /// Whole workflows on one device, the earliest due time first.
    Clockwork,
    /// Admission with a reservation for each step.
    Admission,
    /// The scheduler of a node: reservations for the steps of workflows that do not meet their
    /// objectives as a whole.
    Node,
}

/// A name that no policy has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no workflow policy {0:?}; there are: fifo, clockwork, admission, node")]
pub struct UnknownWorkflowPolicy(String);

impl WorkflowPolicyKind {
    /// All policies.
    pub const ALL: [Self; 4] = [Self::Fifo, Self::Clockwork, Self::Admission, Self::Node];

    /// Maximum number of kinds of devices under [`Node`](Self::Node).
    pub const NODE_KINDS_MAX: usize = Platform::ALL.len();

    /// The policy's name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fifo => "fifo",
            Self::Clockwork => "clockwork",
            Self::Admission => "admission",
            Self::Node => "node",
        }
    }

    /// Builds the policy. `prices` are the prices of a second by kind of device, which replace
    /// those of the settings; `residents` are the models that every device holds, with their sizes.
    #[must_use]
    pub fn build(
        self,
        settings: &SloSettings,
        devices: &[WorkflowDevice],
        prices: &[Cost],
        residents: &[Vec<(u32, u64)>],
    ) -> Box<dyn WorkflowPolicy> {
        match self {
            Self::Fifo => Box::new(FirstComeWorkflows::new(devices, residents)),
            Self::Clockwork => Box::new(ClockworkWorkflows::new(devices, residents)),
            Self::Admission => Box::new(WorkflowAdmission::new(settings, devices, prices, residents)),
            Self::Node => Box::new(NodeWorkflows::new(settings, devices, prices, residents)),
        }
    }
}

impl fmt::Display for WorkflowPolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for WorkflowPolicyKind {
    type Err = UnknownWorkflowPolicy;
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let kind = Self::ALL.into_iter().find(|kind| kind.as_str() == name);
        kind.ok_or_else(|| UnknownWorkflowPolicy(name.to_owned()))
    }
}
