//! Stages of the checks, and their cases.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Stage of the checks. Each stage takes at most some minutes, depends on no other stage, and runs
/// in a separate process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// Driver, devices and libraries of the machine.
    Environment,
    /// Every kind of operation in every precision, compared with the reference.
    Operations,
    /// Copies between host and device, by size.
    Transfers,
    /// Overhead of a launch, alone and in a graph, and the load time of every kernel module.
    Launches,
    /// Memory of a context, out of memory, isolation of tenants, and the cost of mapping.
    Memory,
    /// Hand-over of intermediates on the device, compared with a hand-over through the host.
    HandingOver,
    /// Whole models: load, run, repeated run, cold run.
    Networks,
    /// Memory of many functions with models of one family.
    Functions,
    /// Models in a worker process, as on nodes: overhead of the process boundary, and replacement
    /// of a worker.
    Worker,
    /// Kernel graphs in the workers of their tenants, including misbehaving kernels.
    KernelGraphs,
}

/// Selection of a stage's cases.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaseSelection {
    /// Names of cases, or prefixes of names that end before a comma. Empty for all cases.
    pub only: Vec<String>,
    /// Names of skipped cases.
    pub skip: Vec<String>,
}

impl Stage {
    /// All stages, in order.
    pub const ALL: [Self; 10] = [
        Self::Environment,
        Self::Operations,
        Self::Transfers,
        Self::Launches,
        Self::Memory,
        Self::HandingOver,
        Self::Networks,
        Self::Functions,
        Self::Worker,
        Self::KernelGraphs,
    ];

    /// Returns the stage's name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Environment => "environment",
            Self::Operations => "operations",
            Self::Transfers => "transfers",
            Self::Launches => "launches",
            Self::Memory => "memory",
            Self::HandingOver => "handing-over",
            Self::Networks => "networks",
            Self::Functions => "functions",
            Self::Worker => "worker",
            Self::KernelGraphs => "kernel-graphs",
        }
    }

    /// Returns whether the stage uses cuBLASLt and NVRTC in its own process. The other stages
    /// measure a process without these libraries.
    pub(crate) fn uses_libraries(self) -> bool {
        matches!(self, Self::Operations | Self::Networks)
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Stage {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|stage| stage.as_str() == text);
        found.ok_or_else(|| format!("one of {}", Self::ALL.map(Self::as_str).join(", ")))
    }
}

impl CaseSelection {
    /// Returns whether the case called `name` is selected.
    #[must_use]
    pub fn includes(&self, name: &str) -> bool {
        let is_meant = |wanted: &String| {
            name.strip_prefix(wanted.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with(", "))
        };
        let is_wanted = self.only.is_empty() || self.only.iter().any(is_meant);
        is_wanted && !self.skip.iter().any(|skipped| skipped == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selection_matches_name_or_prefix_before_comma() {
        let only = |only: &str| CaseSelection { only: vec![only.to_owned()], skip: Vec::new() };
        assert!(CaseSelection::default().includes("conv 3x3, tf32, own"));
        for wanted in ["conv 3x3", "conv 3x3, tf32", "conv 3x3, tf32, own"] {
            assert!(only(wanted).includes("conv 3x3, tf32, own"), "{wanted}");
        }
        for other in ["conv 3", "conv 3x3, tf", "conv 3x3, tf32, own, more", "conv 1x1"] {
            assert!(!only(other).includes("conv 3x3, tf32, own"), "{other}");
        }
        let skip = CaseSelection { skip: vec!["conv 3x3, tf32, own".to_owned()], ..only("conv 3x3") };
        assert!(!skip.includes("conv 3x3, tf32, own") && skip.includes("conv 3x3, fp16, own"));
    }
}
