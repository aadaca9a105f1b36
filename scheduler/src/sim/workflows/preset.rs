//! Generated workloads of workflows.

use super::WorkflowWorkload;
use crate::sim::WorkloadError;
use crate::sim::generate::at;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use std::str::FromStr;

/// Named workloads of workflows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WorkflowPreset {
    /// The two pipelines of the KaaS thesis, chapter 3, with the arrivals of chapter 4: an ensemble
    /// and a cascade, 1,200 requests in 1,200 ms.
    Pipelines,
}

/// The devices, models and workflows of [`WorkflowPreset::Pipelines`], in the format of files.
const PIPELINES: &[u8] = include_bytes!("pipelines.json");

const PIPELINES_REQUESTS: u32 = 1_200;
const PIPELINES_NS: f64 = 1.2e9;

impl WorkflowPreset {
    /// All presets.
    pub const ALL: [Self; 1] = [Self::Pipelines];

    /// The preset's name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pipelines => "pipelines",
        }
    }

    /// Generates the workload for a seed: independent arrivals, of workflows with equal
    /// probability.
    ///
    /// # Errors
    /// Never: the preset is valid.
    pub fn make(self, seed: u64) -> Result<WorkflowWorkload, WorkloadError> {
        let workload = WorkflowWorkload::from_json(PIPELINES)?;
        let mut rng = Pcg64::seed_from_u64(seed);
        let workflows = workload.workflows.len();
        let request = |_| (at(rng.random::<f64>() * PIPELINES_NS), rng.random_range(0..workflows));
        let mut requests: Vec<(u64, usize)> = (0..PIPELINES_REQUESTS).map(request).collect();
        requests.sort_unstable();
        workload.with_requests(requests)
    }
}

impl FromStr for WorkflowPreset {
    type Err = String;
    fn from_str(name: &str) -> Result<Self, String> {
        let preset = Self::ALL.into_iter().find(|preset| preset.as_str() == name);
        preset.ok_or_else(|| {
            format!("there is no preset {name:?}; there are: {}", Self::ALL.map(Self::as_str).join(", "))
        })
    }
}
