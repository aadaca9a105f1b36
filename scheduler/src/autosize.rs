//! Sizes a model for a request rate that changes: reruns [`crate::plan_capacity`] on each
//! interval's rate.
//!
//! Scale-up is immediate and scale-down is delayed, so that the size does not oscillate. The size
//! grows when the current instances would be busy for more than [`BUSY_MAX`] of the time. It
//! shrinks when fewer instances would have served the busiest of the last [`INTERVALS`] intervals.
//! Every new size includes [`HEADROOM`], so a rate has to change by a tenth or more before the size
//! changes back.

use crate::capacity::{CapacityError, InstanceConfiguration, plan_capacity};
use std::collections::VecDeque;

/// Intervals of lower rate before the size shrinks.
const INTERVALS: usize = 3;
/// A new size serves this multiple of the rate.
const HEADROOM: f64 = 1.25;
/// Utilization above which the size grows.
const BUSY_MAX: f64 = 0.9;

/// Capacity available for a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AvailableCapacity {
    /// Concurrent runs.
    pub slots: u32,
    /// Threads of all runs together.
    pub threads: u32,
    /// Maximum items per run.
    pub batch_max: u32,
}

/// The chosen size of a model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Chosen {
    /// Setup of each instance.
    pub configuration: InstanceConfiguration,
    /// Number of instances.
    pub instances: u32,
    /// Whether the available capacity is too small for the rate.
    pub is_short: bool,
}

/// Sizes one model. An `Autosizer` has no clock: the caller passes each interval's rate.
#[derive(Debug, Clone, Default)]
pub struct Autosizer {
    /// Rates of the last intervals, newest last.
    rates_per_s: VecDeque<f64>,
    chosen: Option<Chosen>,
}

impl Chosen {
    /// Concurrent runs.
    #[must_use]
    pub fn sessions(&self) -> u32 {
        self.instances.saturating_mul(self.configuration.concurrency)
    }

    /// Items per second.
    #[must_use]
    pub fn throughput_per_s(&self) -> f64 {
        self.configuration.throughput_per_s() * f64::from(self.instances)
    }

    fn memory_bytes(&self) -> u64 {
        self.configuration.memory_bytes.saturating_mul(u64::from(self.instances))
    }

    fn threads(&self) -> u64 {
        u64::from(self.sessions()) * u64::from(self.configuration.threads)
    }

    /// Whether this size needs less memory than `other`, or equal memory and fewer threads.
    fn is_less_than(&self, other: &Self) -> bool {
        (self.memory_bytes(), self.threads()) < (other.memory_bytes(), other.threads())
    }
}

impl Autosizer {
    /// Returns the size of the model after an interval with `rate_per_s` requested items per
    /// second.
    ///
    /// # Errors
    /// If no measured configuration fits into the room, or none of those that fit meets the SLO.
    /// The previous size then stays in effect.
    pub fn step(
        &mut self,
        rate_per_s: f64,
        slo_ns: u64,
        measured: &[InstanceConfiguration],
        room: &AvailableCapacity,
    ) -> Result<Chosen, CapacityError> {
        if self.rates_per_s.len() == INTERVALS {
            self.rates_per_s.pop_front();
        }
        self.rates_per_s.push_back(rate_per_s.max(0.0));
        let is_usable =
            |one: &&InstanceConfiguration| one.batch <= room.batch_max && instances_max(one, room) > 0;
        let usable: Vec<_> = measured.iter().filter(is_usable).copied().collect();
        let wanted = choose(rate_per_s, slo_ns, &usable, room)?;
        let still_holds = |chosen: &Chosen| {
            usable.contains(&chosen.configuration)
                && chosen.configuration.slo_ns() <= slo_ns
                && chosen.instances <= instances_max(&chosen.configuration, room)
        };
        let Some(before) = self.chosen.filter(still_holds) else { return Ok(self.settle(wanted)) };
        if rate_per_s > before.throughput_per_s() * BUSY_MAX {
            let is_more = wanted.throughput_per_s() > before.throughput_per_s();
            return Ok(self.settle(if is_more {
                wanted
            } else {
                Chosen { is_short: wanted.is_short, ..before }
            }));
        }
        let peak_per_s = self.rates_per_s.iter().copied().fold(0.0, f64::max);
        let enough = choose(peak_per_s, slo_ns, &usable, room)?;
        if self.rates_per_s.len() == INTERVALS && enough.is_less_than(&before) {
            return Ok(self.settle(enough));
        }
        Ok(self.settle(Chosen { is_short: false, ..before }))
    }

    fn settle(&mut self, chosen: Chosen) -> Chosen {
        self.chosen = Some(chosen);
        chosen
    }
}

/// The size that serves a rate with headroom, or the largest that fits into the room.
fn choose(
    rate_per_s: f64,
    slo_ns: u64,
    usable: &[InstanceConfiguration],
    room: &AvailableCapacity,
) -> Result<Chosen, CapacityError> {
    // `size` rejects a rate of 0. An idle model keeps one instance.
    let asked_per_s = rate_per_s;
    let rate_per_s = (rate_per_s * HEADROOM).max(f64::MIN_POSITIVE);
    let best = plan_capacity(rate_per_s, slo_ns, usable)?;
    let fits = |configuration: &InstanceConfiguration, instances: u64| {
        u32::try_from(instances).ok().filter(|instances| *instances <= instances_max(configuration, room))
    };
    if let Some(instances) = fits(&best.configuration, best.instances) {
        return Ok(Chosen { configuration: best.configuration, instances, is_short: false });
    }
    // A configuration that needs more memory may serve more on the same CPUs.
    let all_fit = |one: &&InstanceConfiguration| {
        plan_capacity(rate_per_s, slo_ns, std::slice::from_ref(*one))
            .is_ok_and(|plan| fits(one, plan.instances).is_some())
    };
    let fitting: Vec<_> = usable.iter().filter(all_fit).copied().collect();
    if let Ok(plan) = plan_capacity(rate_per_s, slo_ns, &fitting)
        && let Some(instances) = fits(&plan.configuration, plan.instances)
    {
        return Ok(Chosen { configuration: plan.configuration, instances, is_short: false });
    }
    let most = |one: &InstanceConfiguration| {
        let most = Chosen { configuration: *one, instances: instances_max(one, room), is_short: false };
        Chosen { is_short: most.throughput_per_s() < asked_per_s, ..most }
    };
    let keeping = usable.iter().filter(|one| one.slo_ns() <= slo_ns).map(most);
    keeping.max_by(|a, b| a.throughput_per_s().total_cmp(&b.throughput_per_s())).ok_or(CapacityError::Nothing)
}

/// Maximum number of instances that fit into the room.
fn instances_max(configuration: &InstanceConfiguration, room: &AvailableCapacity) -> u32 {
    let runs = configuration.concurrency.max(1);
    let threads = runs.saturating_mul(configuration.threads.max(1));
    (room.slots / runs).min(room.threads / threads)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;
    const ROOM: AvailableCapacity = AvailableCapacity { slots: 4, threads: 4, batch_max: 1 };

    fn configuration(
        threads: u32,
        concurrency: u32,
        latency_ms: u64,
        memory_bytes: u64,
    ) -> InstanceConfiguration {
        InstanceConfiguration { threads, batch: 1, concurrency, latency_ns: latency_ms * MS, memory_bytes }
    }

    /// One thread serves 100 items per second, two serve about 143.
    fn measured() -> Vec<InstanceConfiguration> {
        vec![configuration(1, 1, 10, 100), configuration(2, 1, 7, 110)]
    }

    fn sessions(sizer: &mut Autosizer, rates: &[f64], slo_ms: u64) -> Vec<u32> {
        let step = |rate: &f64| sizer.step(*rate, slo_ms * MS, &measured(), &ROOM).unwrap().sessions();
        rates.iter().map(step).collect()
    }

    #[test]
    fn autosizer_scales_up_at_once_and_down_with_delay() {
        let mut sizer = Autosizer::default();
        assert_eq!(sessions(&mut sizer, &[0.0, 10.0, 60.0], 1_000), [1, 1, 1]);
        // At first two threads, which serve more per byte; then one thread, which serves more per
        // CPU.
        assert_eq!(sessions(&mut sizer, &[150.0, 170.0, 300.0], 1_000), [2, 2, 4]);
        assert_eq!(sessions(&mut sizer, &[10.0, 10.0, 10.0], 1_000), [4, 4, 1]);
    }

    #[test]
    fn autosizer_uses_more_threads_for_a_tight_slo_within_room() {
        let mut sizer = Autosizer::default();
        let chosen = sizer.step(10.0, 8 * MS, &measured(), &ROOM).unwrap();
        assert_eq!((chosen.configuration.threads, chosen.sessions(), chosen.is_short), (2, 1, false));
        let chosen = sizer.step(1_000.0, 8 * MS, &measured(), &ROOM).unwrap();
        assert_eq!((chosen.configuration.threads, chosen.sessions(), chosen.is_short), (2, 2, true));
        // Two threads per run need less memory, but only two such runs fit. One thread per run
        // serves more.
        let chosen = sizer.step(350.0, 1_000 * MS, &measured(), &ROOM).unwrap();
        assert_eq!((chosen.configuration.threads, chosen.sessions()), (1, 4));
        let unattainable = sizer.step(1.0, 5 * MS, &measured(), &ROOM);
        assert_eq!(unattainable, Err(CapacityError::Unattainable { slo_ns: 5 * MS, best_ns: 7 * MS }));
        // Unsupported batch sizes and configurations beyond the available slots count as
        // unmeasured.
        let batches = [InstanceConfiguration { batch: 2, ..measured()[0] }, configuration(1, 5, 10, 1)];
        assert_eq!(sizer.step(1.0, 1_000 * MS, &batches, &ROOM), Err(CapacityError::Nothing));
    }

    #[test]
    fn autosizer_applies_new_measurements_at_once() {
        let mut sizer = Autosizer::default();
        assert_eq!(sessions(&mut sizer, &[150.0], 1_000), [2]);
        let slower = [configuration(1, 1, 20, 100)];
        assert_eq!(sizer.step(150.0, 1_000 * MS, &slower, &ROOM).unwrap().sessions(), 4);
    }

    proptest! {
        /// At a steady rate the size settles: it grows at most in the first interval, and shrinks
        /// at most once.
        #[test]
        fn autosizer_does_not_oscillate_at_a_steady_rate(
            rate in 1.0_f64..400.0,
            noise in prop::collection::vec(-0.05_f64..0.05, 30),
            latencies_ms in prop::collection::vec(1_u64..40, 1..5),
        ) {
            let latencies = latencies_ms.iter().zip(1..);
            let measured: Vec<_> =
                latencies.map(|(ms, threads)| configuration(threads, 1, *ms, 100 + u64::from(threads))).collect();
            let mut sizer = Autosizer::default();
            let mut chosen = Vec::new();
            for part in &noise {
                let one = sizer.step(rate * (1.0 + part), 100 * MS, &measured, &ROOM).unwrap();
                prop_assert!(one.configuration.slo_ns() <= 100 * MS);
                prop_assert!(one.sessions() <= ROOM.slots && one.threads() <= u64::from(ROOM.threads));
                prop_assert!(one.is_short || one.throughput_per_s() >= rate * (1.0 + part));
                chosen.push((one.configuration, one.instances));
            }
            chosen.dedup();
            prop_assert!(chosen.len() <= 3, "{chosen:?}");
            for (place, one) in chosen.iter().enumerate() {
                prop_assert!(!chosen[place + 1..].contains(one), "back again: {chosen:?}");
            }
        }
    }
}
