//! SLOs of simulated requests, and their outcomes.

use super::SimulatedCluster;
use crate::{DeviceRule, Settings, Slo};
use serde::{Deserialize, Serialize};
use weir_types::Cost;

/// A rule that gives SLOs to requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SloRule {
    /// Maximum latency.
    pub latency: SloLatency,
    /// Maximum cost.
    pub cost_max: Cost,
    /// Fraction of the requests that have an SLO, from 0 to 1.
    pub part: f64,
}

/// The maximum latency of a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SloLatency {
    /// A multiple of its run time, without loads.
    Times(f64),
    /// A fixed time.
    Ns(u64),
}

/// Outcomes of the requests with an SLO.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct SloCounts {
    /// Requests with an SLO.
    pub asked: u32,
    /// Requests that ended in time and within their maximum cost.
    pub met: u32,
    /// Requests rejected on arrival, or once a miss was certain.
    pub rejected: u32,
    /// Requests that ended too late or cost too much.
    pub missed: u32,
    /// The missed requests that were admitted on trial: even an idle cluster would have been too
    /// late.
    pub on_trial: u32,
}

impl SloRule {
    /// The SLO of a request whose run takes `run_time_ns` on a standard device.
    pub(super) fn slo(&self, request: u32, now_ns: u64, run_time_ns: u64) -> Option<Slo> {
        let latency_ns = match self.latency {
            SloLatency::Times(times) => crate::estimate::round_ns(run_time_ns as f64 * times),
            SloLatency::Ns(latency_ns) => latency_ns,
        };
        let slo = Slo { due_at_ns: now_ns.saturating_add(latency_ns), cost_max: self.cost_max };
        (lot(request, 1) < self.part).then_some(slo)
    }
}

impl SimulatedCluster {
    /// Whether everything takes exactly as long as the scheduler expects, so that no admitted
    /// request may miss its SLO.
    pub(super) fn is_exact(&self) -> bool {
        let is_alike = self.kinds.is_empty() && self.losses.is_none() && self.faults == 0.0;
        let is_alone = self.slots == 1 && self.batching.batch_max == 1;
        let is_uncapped =
            Settings { queue_len_max: 0, slo: self.settings.slo.clone(), ..Settings::default() }
                == Settings { queue_len_max: 0, ..self.settings.clone() };
        is_alike
            && self.rule == DeviceRule::CountedInvocations
            && is_alone
            && is_uncapped
            && self.jitter == 0.0
            && self.tells_costs
            && self.settings.slo.admission
    }

    /// The fraction of its run after which a request fails or is cancelled, if it does.
    pub(super) fn fault(&self, request: u32) -> Option<f64> {
        (lot(request, 3) < self.faults).then(|| lot(request, 4))
    }

    /// Whether a request that does not succeed is cancelled.
    pub(super) fn is_cancelled(request: u32) -> bool {
        lot(request, 5) < 0.5
    }

    /// Divides the time of a request off the device at random: before its run, and after it.
    pub(super) fn split_ns(request: u32, off_device_ns: u64) -> (u64, u64) {
        let before_ns = crate::estimate::round_ns(off_device_ns as f64 * lot(request, 6)).min(off_device_ns);
        (before_ns, off_device_ns - before_ns)
    }

    /// The actual run time of a request.
    pub(super) fn jittered_ns(&self, request: u32, run_time_ns: f64) -> f64 {
        run_time_ns * (1.0 + self.jitter * (2.0 * lot(request, 2) - 1.0))
    }
}

/// A pseudo-random number from 0 to 1, determined by a request.
pub(super) fn lot(request: u32, salt: u64) -> f64 {
    let mut bits = (u64::from(request) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(salt << 32);
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((bits ^ bits >> 31) >> 11) as f64 / (1_u64 << 53) as f64
}
