//! Dependencies of steps, and the duration of a run: the longest chain of dependent steps, over all
//! cases.

use super::{Plan, PlannedStep};
use crate::document::STEPS_MAX;

/// A set of steps of a plan, by index.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct StepSet(u64);

const _: () = assert!(STEPS_MAX <= u64::BITS as usize, "a set has a bit for each step");

/// Time estimate of a run, as the maximum over all cases.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RunEstimate {
    /// Duration with unlimited parallelism.
    pub critical_path_ns: u64,
    /// Total work of all steps, which is the duration without parallelism.
    pub work_ns: u64,
}

impl StepSet {
    pub(super) fn from_flags(is_in: &[bool]) -> Self {
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
    /// Estimates the time of a run from the times of its steps. All cases of conditions are
    /// considered, and the longest counts.
    #[must_use]
    pub fn estimate(&self, time_ns: impl Fn(&PlannedStep) -> u64) -> RunEstimate {
        let times_ns: Vec<u64> = self.steps.iter().map(time_ns).collect();
        let estimates = self.together.iter().map(|steps| self.estimate_of(*steps, &times_ns));
        estimates.reduce(RunEstimate::max).unwrap_or_default()
    }

    /// The steps that each step waits for, by index. All come before it.
    #[must_use]
    pub fn dependencies(&self) -> Vec<Vec<usize>> {
        let before = |step: &PlannedStep| {
            let mut before: Vec<usize> = self.awaited(step).filter_map(|value| self.giver(value)).collect();
            before.sort_unstable();
            before.dedup();
            before
        };
        self.steps.iter().map(before).collect()
    }

    fn estimate_of(&self, steps: StepSet, times_ns: &[u64]) -> RunEstimate {
        // When each value is computed.
        let mut there_ns = vec![0_u64; self.values.len()];
        let mut estimate = RunEstimate::default();
        let in_case = self.steps.iter().zip(times_ns).enumerate().filter(|(place, _)| steps.has(*place));
        for (_, (step, time_ns)) in in_case {
            let begin_ns =
                self.awaited(step).filter_map(|value| there_ns.get(value).copied()).max().unwrap_or(0);
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
    /// A lower bound on the duration with `slots` steps at a time. A slot runs one step at a time.
    /// Any schedule without idle slots takes less than twice this time.
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
