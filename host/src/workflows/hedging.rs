//! When a step of a workflow is started a second time, and how often at most.
//!
//! A second copy is due once a run has taken longer than 95 of 100 runs of the step have. How long they take is measured: until enough have
//! ended there is none. Under overload, when every run takes longer than runs did before, so many second copies would make it worse: a
//! step earns the right to one by the runs that it makes, and saves up few.

use crate::telemetry::HedgeMetrics;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use weir_types::api::StepHedge;

/// Runs of a step that have to be measured before any has a second copy: of fewer, no 95 in 100 can be told.
pub(crate) const SAMPLES_MIN: usize = 20;
/// The runs that are looked back on.
const SAMPLES_MAX: usize = 256;
/// So many runs earn one second copy.
const RUNS_PER_HEDGE: u32 = 10;
/// Second copies that are saved up.
const SAVED_MAX: u32 = 4;

/// One step of one version of a workflow, on this node.
#[derive(Debug)]
pub(crate) struct Hedge {
    state: Mutex<State>,
    metrics: HedgeMetrics,
}

#[derive(Debug, Default)]
struct State {
    /// The latest runs, oldest first.
    times: VecDeque<Duration>,
    /// Runs that have earned no second copy yet; [`RUNS_PER_HEDGE`] are the price of one.
    saved: u32,
    runs: u64,
}

impl Hedge {
    pub(crate) fn new(metrics: HedgeMetrics) -> Self {
        Self { state: Mutex::default(), metrics }
    }

    /// A run begins: after how long it may have a second copy, if ever.
    pub(crate) fn begin(&self) -> Option<Duration> {
        let mut state = self.lock();
        state.runs = state.runs.saturating_add(1);
        state.saved = (state.saved + 1).min(SAVED_MAX * RUNS_PER_HEDGE);
        state.due_after()
    }

    /// Whether a run that has taken so long may have its second copy now.
    pub(crate) fn start(&self) -> bool {
        let mut state = self.lock();
        let Some(left) = state.saved.checked_sub(RUNS_PER_HEDGE) else { return false };
        state.saved = left;
        self.metrics.started.inc();
        true
    }

    /// A first copy has taken so long, or at least so long when its second answered.
    pub(crate) fn ran(&self, time: Duration) {
        let mut state = self.lock();
        if state.times.len() >= SAMPLES_MAX {
            state.times.pop_front();
        }
        state.times.push_back(time);
    }

    /// A second copy has answered first.
    pub(crate) fn won(&self) {
        self.metrics.won.inc();
    }

    /// What has come of it, for people.
    pub(crate) fn describe(&self) -> StepHedge {
        let state = self.lock();
        StepHedge {
            after_ns: state.due_after().map(|after| u64::try_from(after.as_nanos()).unwrap_or(u64::MAX)),
            runs: state.runs,
            started: self.metrics.started.get(),
            won: self.metrics.won.get(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The time that 95 of 100 runs keep within; none while too few were measured.
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
    use crate::telemetry::Metrics;
    use weir_types::{Name, TenantId, Version, WorkflowId};

    fn hedge() -> Hedge {
        let (tenant, name) = (TenantId::default(), Name::new("w").unwrap());
        Hedge::new(Metrics::new().hedges(&WorkflowId { tenant, name, version: Version(1) }, "a"))
    }

    #[test]
    fn nothing_is_due_until_enough_was_measured_and_then_after_most_have_ended() {
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
    fn one_run_in_ten_may_have_a_second_copy_and_few_are_saved_up() {
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
