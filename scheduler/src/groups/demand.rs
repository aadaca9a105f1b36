//! Measured demand of families, for the reports of a group's dispatcher.

use super::FamilyKey;
use std::collections::HashMap;

/// Time constant of the average. Short enough to follow a family that becomes popular, and long
/// enough that a family's width does not change with every burst.
const DECAY_NS: f64 = 10e9;

/// Part of a run slot below which the demand of a family is forgotten.
const FORGOTTEN: f64 = 0.001;

/// Families that are counted. Beyond it, families without a count get none until others are
/// forgotten.
const FAMILIES_MAX: usize = 65_536;

/// Exponential average of the work that arrives for each family.
#[derive(Debug, Default)]
pub struct DemandMeter {
    /// When the first invocation arrived.
    from_ns: Option<u64>,
    /// Time of the last decay.
    now_ns: u64,
    /// Device time that arrived, decayed until `now_ns`, in nanoseconds.
    work_ns: HashMap<FamilyKey, f64>,
}

impl DemandMeter {
    /// Counts the predicted device time of an invocation.
    pub fn arrived(&mut self, now_ns: u64, family: FamilyKey, run_time_ns: u64) {
        let from_ns = *self.from_ns.get_or_insert(now_ns);
        self.now_ns = self.now_ns.max(from_ns);
        if self.work_ns.len() < FAMILIES_MAX || self.work_ns.contains_key(&family) {
            // Work that arrives after the last decay counts as if it had arrived at that time.
            let grown = (self.now_ns.abs_diff(now_ns) as f64 / DECAY_NS).exp();
            *self.work_ns.entry(family).or_default() += run_time_ns as f64 * grown;
        }
    }

    /// The families whose demand is at least `slots_min` run slots, with their demand.
    pub fn report(&mut self, now_ns: u64, slots_min: f64) -> Vec<(FamilyKey, f64)> {
        let Some(from_ns) = self.from_ns else { return Vec::new() };
        let decayed = (-(now_ns.saturating_sub(self.now_ns) as f64) / DECAY_NS).exp();
        self.now_ns = self.now_ns.max(now_ns);
        // Until the average has seen several time constants, it has seen only this part of them.
        let seen = 1.0 - (-(self.now_ns.saturating_sub(from_ns) as f64) / DECAY_NS).exp();
        let window_ns = DECAY_NS * seen.max(0.01);
        self.work_ns.retain(|_, work_ns| {
            *work_ns *= decayed;
            *work_ns >= FORGOTTEN * window_ns
        });
        let demands = self.work_ns.iter().map(|(family, work_ns)| (*family, work_ns / window_ns));
        let mut demands: Vec<_> = demands.filter(|(_, slots)| *slots >= slots_min).collect();
        demands.sort_by_key(|(family, _)| *family);
        demands
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAMILY: FamilyKey = FamilyKey(7);

    fn demand_after(seconds: u64, interval_ns: u64) -> f64 {
        let mut meter = DemandMeter::default();
        let mut demand = 0.0;
        for at_ns in (0..seconds * 1_000_000_000).step_by(interval_ns as usize) {
            meter.arrived(at_ns, FAMILY, 1_000_000_000);
            if at_ns % 1_000_000_000 == 0 {
                demand = meter.report(at_ns, 0.0).first().map_or(0.0, |(_, slots)| *slots);
            }
        }
        demand
    }

    #[test]
    fn constant_demand_is_measured_within_seconds_and_stays() {
        // 50 invocations of one second each second.
        for seconds in [3, 10, 100] {
            let demand = demand_after(seconds, 20_000_000);
            assert!((45.0..55.0).contains(&demand), "{demand} after {seconds} s");
        }
    }

    #[test]
    fn demand_that_has_ended_is_forgotten() {
        let mut meter = DemandMeter::default();
        (0..100).for_each(|_| meter.arrived(0, FAMILY, 1_000_000_000));
        assert_eq!(meter.report(1_000_000_000, 1.0).len(), 1);
        assert!(meter.report(200_000_000_000, 0.0).is_empty());
    }

    #[test]
    fn report_names_families_above_the_minimum_only() {
        let mut meter = DemandMeter::default();
        meter.arrived(0, FAMILY, 50_000_000_000);
        meter.arrived(0, FamilyKey(8), 50_000_000);
        let reported = meter.report(10_000_000_000, 1.0);
        assert_eq!(reported.iter().map(|(family, _)| *family).collect::<Vec<_>>(), [FAMILY]);
    }
}
