//! Time limits of stages and cases.

use std::time::Duration;
use weir_gpu_check::Stage;

/// Maximum number of restarts of a stage after cases that ended its process.
pub(super) const RESTARTS_MAX: usize = 8;
/// Time limit for a killed process to exit: the driver may wait for a kernel.
pub(super) const KILL_TIME_MAX: Duration = Duration::from_secs(10);
/// Time limit for a case without progress, in seconds. It includes the time of the CPU reference.
pub(super) const CASE_TIME_S: u64 = 120;

/// Time limit of each stage, in seconds.
const ENVIRONMENT_TIME_S: u64 = 60;
const OPERATIONS_TIME_S: u64 = 600;
const TRANSFERS_TIME_S: u64 = 120;
const LAUNCHES_TIME_S: u64 = 120;
const MEMORY_TIME_S: u64 = 120;
const HANDING_OVER_TIME_S: u64 = 120;
const WORKER_TIME_S: u64 = 120;
const KERNEL_GRAPHS_TIME_S: u64 = 300;
/// Additional time limit per model, in seconds.
const NETWORKS_MODEL_TIME_S: u64 = 600;
const FUNCTIONS_MODEL_TIME_S: u64 = 300;
const WORKER_MODEL_TIME_S: u64 = 120;

/// Time limits of one stage.
#[derive(Debug, Clone, Copy)]
pub(super) struct StageLimits {
    /// Limit for the whole stage, including restarts.
    pub(super) stage: Duration,
    /// Limit between two events of a case.
    pub(super) case: Duration,
}

impl StageLimits {
    /// Limits of a stage with `models` models. `stage_s` overrides the default limit of the stage.
    pub(super) fn new(stage: Stage, models: usize, stage_s: Option<u64>, case_s: u64) -> Self {
        let models = u64::try_from(models).unwrap_or(u64::MAX);
        let own_s = match stage {
            Stage::Environment => ENVIRONMENT_TIME_S,
            Stage::Operations => OPERATIONS_TIME_S,
            Stage::Transfers => TRANSFERS_TIME_S,
            Stage::Launches => LAUNCHES_TIME_S,
            Stage::Memory => MEMORY_TIME_S,
            Stage::HandingOver => HANDING_OVER_TIME_S,
            Stage::Networks => NETWORKS_MODEL_TIME_S.saturating_mul(models),
            Stage::Functions => FUNCTIONS_MODEL_TIME_S.saturating_mul(models),
            Stage::Worker => WORKER_TIME_S.saturating_add(WORKER_MODEL_TIME_S.saturating_mul(models)),
            Stage::KernelGraphs => KERNEL_GRAPHS_TIME_S,
        };
        let stage = stage_s.unwrap_or(own_s);
        let case = case_s;
        Self { stage: Duration::from_secs(stage), case: Duration::from_secs(case) }
    }
}
