//! Configuration of a node's scheduler.

use super::shadow_config::ShadowConfig;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use weir_scheduler::{Network, PolicyKind, PolicyOptions, Settings, Setup, SloSettings};

/// Scheduler: the placement policy, service level objectives and the recording.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SchedulerConfig {
    /// Placement policy: `finish-first`, or another policy that `weir simulate --help` lists. In a
    /// cluster, the dispatcher's setting applies.
    pub policy: PolicyKind,
    /// Options of the policy: the visits after which `lalb-o3` places a call at any cost
    /// (`o3_limit`), the busy device that `lalb` and `lalb-o3` wait for (`busy_choice`: `first` or
    /// `soonest`), whether devices move from short queues to long ones under `exclusive`
    /// (`exclusive.stealing`), and the choice of eviction victims (`victims`: `least_recently_used`
    /// or `least_loss`). In a cluster, the dispatcher's setting applies.
    pub options: PolicyOptions,
    /// Service level objectives: whether calls that would miss their objective are rejected
    /// (`admission`), which placement within the objective is chosen (`choice`: `cheapest`,
    /// `fastest` or `random`), how many placements are compared (`sample_len`), which fraction of
    /// the time is held back as a margin (`margin`), and the price of a second on each kind of
    /// device (`prices`). In a cluster, the dispatcher's setting applies.
    pub slo: SloSettings,
    /// Device work, in milliseconds for each run slot, that calls commit to a device ahead of its
    /// runs. All other calls wait in the scheduler, which places them as late as possible. In a
    /// cluster, the dispatcher's setting applies.
    pub commit_ahead_ms: u32,
    /// Maximum part of a device's memory for copies of models that `copies_min` of their manifest
    /// keeps in memory, in percent; 0: models are loaded when calls need them. In a cluster, the
    /// dispatcher's setting applies.
    pub required_percent_max: u32,
    /// Longest time, in milliseconds, that a call waits while the cluster has no device, within the
    /// call's deadline; 0: such a call fails at once. In a cluster, the dispatcher's setting applies.
    pub device_wait_ms: u32,
    /// Inter-node bandwidth and latency, used to place workflow steps.
    pub network: Network,
    /// Limits of the copies of calls for shadows, on each node.
    pub shadow: ShadowConfig,
    /// Path prefix of the recording: all inputs and decisions of the scheduler, in files of up to 1
    /// GiB each. `weir simulate --replay FILE` replays a file. None: no recording.
    pub record: Option<PathBuf>,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        let Settings { slo, network, commit_ahead_ms, required_percent_max, device_wait_ms, .. } =
            Settings::default();
        Self {
            policy: PolicyKind::default(),
            options: PolicyOptions::default(),
            slo,
            commit_ahead_ms,
            required_percent_max,
            device_wait_ms,
            network,
            shadow: ShadowConfig::default(),
            record: None,
        }
    }
}

impl SchedulerConfig {
    /// The setup of the scheduler. `settings` holds the settings of the tenants.
    #[must_use]
    pub fn setup(&self, settings: Settings) -> Setup {
        let settings = Settings {
            slo: self.slo.clone(),
            network: self.network,
            commit_ahead_ms: self.commit_ahead_ms,
            required_percent_max: self.required_percent_max,
            device_wait_ms: self.device_wait_ms,
            ..settings
        };
        Setup { policy: self.policy, options: self.options.clone(), settings }
    }
}
