//! What placements cost, as learned from those before.

use crate::{DeviceKind, DeviceView, Estimate, ModelDemand};
use std::collections::HashMap;
use weir_types::{ModelId, RunningMean};

/// Models whose loads are remembered per kind of device. Beyond that, new ones are estimated by size alone.
const MODELS_MAX: usize = 16_384;

/// How fast a kind of device loads before any load was seen: a slow disk, so that the first loads are not taken lightly.
const PRIOR_BYTES_PER_NS: f64 = 0.25;

/// Load times by model and kind of device.
#[derive(Debug, Default)]
pub struct LoadTimes {
    kinds: HashMap<DeviceKind, KindTimes>,
}

#[derive(Debug, Default)]
struct KindTimes {
    /// By model.
    models: HashMap<ModelId, RunningMean>,
    /// Nanoseconds per MiB, over all models.
    per_mib: RunningMean,
}

const MIB: f64 = (1_u64 << 20) as f64;

impl LoadTimes {
    /// Take in a measured load.
    pub fn add(&mut self, kind: &DeviceKind, model: &ModelId, bytes: u64, load_time_ns: u64) {
        if !self.kinds.contains_key(kind) {
            self.kinds.insert(kind.clone(), KindTimes::default());
        }
        let Some(times) = self.kinds.get_mut(kind) else { return };
        if bytes > 0 {
            times.per_mib.add(round(load_time_ns as f64 * MIB / bytes as f64));
        }
        let is_full = times.models.len() >= MODELS_MAX;
        match times.models.get_mut(model) {
            Some(mean) => mean.add(load_time_ns),
            None if is_full => {}
            None => times.models.entry(model.clone()).or_default().add(load_time_ns),
        }
    }

    /// The expected time to load `demand` on a device of `kind`: as measured there, else as the caller says, else by size.
    #[must_use]
    pub fn estimate_ns(&self, kind: &DeviceKind, demand: &ModelDemand) -> u64 {
        let times = self.kinds.get(kind);
        if let Some(mean) = times.and_then(|times| times.models.get(&demand.model)) {
            return round(mean.mean);
        }
        demand.load_time_ns.unwrap_or_else(|| {
            let per_byte = match times {
                Some(KindTimes { per_mib, .. }) if per_mib.count > 0 => per_mib.mean / MIB,
                _ => 1.0 / PRIOR_BYTES_PER_NS,
            };
            round(demand.bytes as f64 * per_byte)
        })
    }
}

/// What granting `demands` on a device is expected to take, if there is room.
#[must_use]
pub fn expect(load_times: &LoadTimes, device: &DeviceView, demands: &[ModelDemand]) -> Estimate {
    let missing = || demands.iter().filter(|demand| device.is_missing(&demand.model));
    let load_time_ns = missing().map(|demand| load_times.estimate_ns(&device.spec().kind, demand));
    let slots = u64::from(device.spec().slots.max(1));
    let ahead = (u64::from(device.running()) + 1).saturating_sub(slots);
    Estimate {
        wait_ns: round(device.run_time_ns().mean).saturating_mul(ahead) / slots,
        load_time_ns: load_time_ns.fold(0, u64::saturating_add),
        missing_bytes: missing().map(|demand| demand.bytes).fold(0, u64::saturating_add),
    }
}

/// The nearest whole number of nanoseconds; the conversion saturates, and takes NaN for 0.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturating is what is wanted")]
fn round(ns: f64) -> u64 {
    ns.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_types::{Name, TenantId, Version};

    fn demand(name: &str, bytes: u64, load_time_ns: Option<u64>) -> ModelDemand {
        let model =
            ModelId { tenant: TenantId::default(), name: Name::new(name).unwrap(), version: Version(1) };
        ModelDemand { model, bytes, load_time_ns }
    }

    #[test]
    fn what_was_measured_goes_before_what_is_said_goes_before_what_is_guessed() {
        let (cpu, gpu) = (DeviceKind::from("cpu"), DeviceKind::from("gpu"));
        let mut times = LoadTimes::default();
        assert_eq!(times.estimate_ns(&cpu, &demand("m", 1_000, None)), 4_000);
        assert_eq!(times.estimate_ns(&cpu, &demand("m", 1_000, Some(7))), 7);
        times.add(&cpu, &demand("m", 0, None).model, 1 << 20, 100);
        times.add(&cpu, &demand("m", 0, None).model, 1 << 20, 200);
        assert_eq!(times.estimate_ns(&cpu, &demand("m", 1_000, Some(7))), 150);
        assert_eq!(times.estimate_ns(&cpu, &demand("other", 2 << 20, None)), 300, "as fast as the others");
        assert_eq!(times.estimate_ns(&gpu, &demand("m", 1_000, Some(7))), 7, "kinds are apart");
    }

    #[test]
    fn nonsense_saturates() {
        let cpu = DeviceKind::from("cpu");
        let mut times = LoadTimes::default();
        let huge = demand("huge", u64::MAX, None);
        times.add(&cpu, &huge.model, 0, u64::MAX);
        times.add(&cpu, &demand("tiny", 1, None).model, 1, u64::MAX);
        assert_eq!(times.estimate_ns(&cpu, &huge), u64::MAX);
        assert_eq!(times.estimate_ns(&cpu, &demand("other", u64::MAX, None)), u64::MAX);
    }
}
