//! How long a run takes: the longest chain of steps that wait for each other, in the case in which that is longest.

use super::{Plan, PlannedStep};
use crate::document::STEPS_MAX;

/// Some of a plan's steps, by their places.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct StepSet(u64);

const _: () = assert!(STEPS_MAX <= u64::BITS as usize, "a set has a bit for each step");

/// What the steps of a run take, in the case that takes longest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RunEstimate {
    /// From its beginning to its end, with room for all steps that could run at the same time.
    pub critical_path_ns: u64,
    /// All of its steps together: with room for one at a time, it takes so long.
    pub work_ns: u64,
}

impl StepSet {
    pub(super) fn of(is_in: &[bool]) -> Self {
        let bits = is_in.iter().take(STEPS_MAX).enumerate().filter(|(_, is_in)| **is_in);
        Self(bits.fold(0, |set, (step, _)| set | 1 << step))
    }

    pub(super) fn has_all_of(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    fn has(self, step: usize) -> bool {
        step < STEPS_MAX && self.0 >> step & 1 == 1
    }
}

impl Plan {
    /// What a run takes whose steps take as long as `time_ns` says. Of switches, every way is looked at, and the one counts that takes longest.
    #[must_use]
    pub fn estimate(&self, time_ns: impl Fn(&PlannedStep) -> u64) -> RunEstimate {
        let times_ns: Vec<u64> = self.steps.iter().map(time_ns).collect();
        let estimates = self.together.iter().map(|steps| self.estimate_of(*steps, &times_ns));
        estimates.reduce(RunEstimate::max).unwrap_or_default()
    }

    fn estimate_of(&self, steps: StepSet, times_ns: &[u64]) -> RunEstimate {
        // When each value is there.
        let mut there_ns = vec![0_u64; self.values.len()];
        let mut estimate = RunEstimate::default();
        let in_case = self.steps.iter().zip(times_ns).enumerate().filter(|(place, _)| steps.has(*place));
        for (_, (step, time_ns)) in in_case {
            let of_guard = step.guard.and_then(|guard| self.conditions.get(guard.condition)?.test.value());
            let reads = step.inputs.iter().map(|(_, value)| *value).chain(of_guard);
            let begin_ns = reads.filter_map(|value| there_ns.get(value).copied()).max().unwrap_or(0);
            let end_ns = begin_ns.saturating_add(*time_ns);
            for value in &step.outputs {
                if let Some(there_ns) = there_ns.get_mut(*value) {
                    *there_ns = end_ns;
                }
            }
            estimate.critical_path_ns = estimate.critical_path_ns.max(end_ns);
            estimate.work_ns = estimate.work_ns.saturating_add(*time_ns);
        }
        estimate
    }
}

impl RunEstimate {
    /// What it takes with room for so many steps at a time, at least: no schedule of them is quicker, and one that is never idle is not twice as
    /// long.
    #[must_use]
    pub fn with_slots_ns(&self, slots: u32) -> u64 {
        self.critical_path_ns.max(self.work_ns.div_ceil(u64::from(slots.max(1))))
    }

    fn max(self, other: Self) -> Self {
        Self {
            critical_path_ns: self.critical_path_ns.max(other.critical_path_ns),
            work_ns: self.work_ns.max(other.work_ns),
        }
    }
}
