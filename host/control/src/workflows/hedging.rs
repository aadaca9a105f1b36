//! The policy for hedging a workflow step: when a second copy starts, and how often at most.
//!
//! A second copy is due once a run takes longer than the 95th percentile of the step's runs. Run
//! times are measured, so there is no second copy until enough runs have ended. Under overload,
//! when every run takes longer than earlier runs did, second copies would add to the load: so a
//! step earns second copies by its runs, and saves up only a few.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::time::Duration;
use weir_telemetry::HedgeMetrics;
use weir_types::api::StepHedge;

/// The number of measured runs before a run may have a second copy: fewer samples do not give a
/// 95th percentile.
pub(super) const SAMPLES_MIN: usize = 20;
/// The number of recent runs considered.
const SAMPLES_MAX: usize = 256;
/// The number of runs that earn one second copy.
const RUNS_PER_HEDGE: u32 = 10;
/// The limit of second copies saved up.
const SAVED_MAX: u32 = 4;

/// The hedging state of one step of one version of a workflow, on this node.
#[derive(Debug)]
pub struct Hedge {
    state: Mutex<HedgeState>,
    metrics: HedgeMetrics,
}

#[derive(Debug, Default)]
struct HedgeState {
    /// The times of the latest runs, oldest first.
    times: VecDeque<Duration>,
    /// Runs that are not spent yet; a second copy costs [`RUNS_PER_HEDGE`] of them.
    saved: u32,
    runs: u64,
}

impl Hedge {
    pub(crate) fn new(metrics: HedgeMetrics) -> Self {
        Self { state: Mutex::default(), metrics }
    }

    /// Starts a run. Returns the time after which it may have a second copy, if ever.
    pub fn begin(&self) -> Option<Duration> {
        let mut state = self.state.lock();
        state.runs = state.runs.saturating_add(1);
        state.saved = (state.saved + 1).min(SAVED_MAX * RUNS_PER_HEDGE);
        state.due_after()
    }

    /// Whether a run that exceeded this time may have its second copy now. If so, spends
    /// `RUNS_PER_HEDGE` saved runs.
    pub fn start(&self) -> bool {
        let mut state = self.state.lock();
        let Some(left) = state.saved.checked_sub(RUNS_PER_HEDGE) else { return false };
        state.saved = left;
        self.metrics.started.inc();
        true
    }

    /// Records the time of a first copy; a lower bound if its second copy was faster.
    pub fn ran(&self, time: Duration) {
        let mut state = self.state.lock();
        if state.times.len() >= SAMPLES_MAX {
            state.times.pop_front();
        }
        state.times.push_back(time);
    }

    /// Records that a second copy was faster.
    pub fn won(&self) {
        self.metrics.won.inc();
    }

    /// The statistics for the API.
    pub fn describe(&self) -> StepHedge {
        let state = self.state.lock();
        StepHedge {
            after_ns: state.due_after().map(|after| u64::try_from(after.as_nanos()).unwrap_or(u64::MAX)),
            runs: state.runs,
            started: self.metrics.started.get(),
            won: self.metrics.won.get(),
        }
    }
}

impl HedgeState {
    /// The 95th percentile of the run times; `None` while too few runs were measured.
    fn due_after(&self) -> Option<Duration> {
        if self.times.len() < SAMPLES_MIN {
            return None;
        }
        let mut times: Vec<_> = self.times.iter().copied().collect();
        let rank = (times.len() * 95).div_ceil(100);
        Some(*times.select_nth_unstable(rank.saturating_sub(1)).1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_telemetry::Metrics;
    use weir_types::{Name, TenantId, Version, WorkflowId};

    fn hedge() -> Hedge {
        let tenant = TenantId::default();
        let name = Name::new("w").unwrap();
        Hedge::new(Metrics::new().hedges(&WorkflowId { tenant, name, version: Version(1) }, "a"))
    }

    #[test]
    fn second_copy_is_due_after_the_95th_percentile_of_enough_runs() {
        let hedge = hedge();
        for ms in 1..=19 {
            hedge.ran(Duration::from_millis(ms));
            assert_eq!(hedge.begin(), None, "after {ms} runs");
        }
        hedge.ran(Duration::from_secs(60));
        assert_eq!(
            hedge.begin(),
            Some(Duration::from_millis(19)),
            "one in twenty may be as slow as it likes"
        );
        (0..SAMPLES_MAX).for_each(|_| hedge.ran(Duration::from_millis(5)));
        assert_eq!(hedge.begin(), Some(Duration::from_millis(5)), "what is long ago is forgotten");
    }

    #[test]
    fn one_run_in_ten_is_hedged_and_savings_are_limited() {
        let hedge = hedge();
        let mut started = 0;
        for run in 1..=1_000 {
            hedge.begin();
            started += u32::from(hedge.start());
            assert!(started * RUNS_PER_HEDGE <= run, "{started} of {run}");
        }
        assert_eq!(started, 100, "all that were earned");
        (0..1_000).for_each(|_| _ = hedge.begin());
        assert_eq!((0..1_000).filter(|_| hedge.start()).count(), SAVED_MAX as usize);
        let StepHedge { runs, started, won, .. } = hedge.describe();
        assert_eq!((runs, started, won), (2_000, 104, 0));
    }
}
