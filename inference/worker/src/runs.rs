//! Active runs in a worker, and their cancellation.

use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use weir_inference::{Interrupt, StopReason};

/// Maximum number of cancellations that wait for their run. Further ones replace the oldest.
const EARLY_MAX: usize = 64;

/// Interrupts of the active runs.
#[derive(Default)]
pub struct ActiveRuns(Mutex<RunsState>);

#[derive(Default)]
struct RunsState {
    active: HashMap<u64, Arc<Interrupt>>,
    /// Runs that were cancelled before they began: a cancellation takes another socket than its
    /// run, and may overtake it. Some of them ended before their cancellation arrived, and never
    /// begin.
    early: VecDeque<u64>,
}

/// Active run, removed on drop.
pub struct ActiveRun<'a> {
    runs: &'a ActiveRuns,
    number: u64,
    interrupt: Arc<Interrupt>,
}

impl ActiveRuns {
    /// Adds a run. It is cancelled at once if its cancellation arrived earlier.
    #[must_use]
    pub fn begin(&self, number: u64) -> ActiveRun<'_> {
        let interrupt = Arc::<Interrupt>::default();
        let mut state = self.0.lock();
        state.active.insert(number, interrupt.clone());
        let early = state.early.iter().position(|cancelled| *cancelled == number);
        if early.and_then(|place| state.early.remove(place)).is_some() {
            interrupt.fire(StopReason::Cancelled);
        }
        drop(state);
        ActiveRun { runs: self, number, interrupt }
    }

    /// Cancels a run, unless it has ended.
    pub fn cancel(&self, number: u64) {
        let mut state = self.0.lock();
        let interrupt = state.active.get(&number).cloned();
        if interrupt.is_none() {
            if state.early.len() >= EARLY_MAX {
                state.early.pop_front();
            }
            state.early.push_back(number);
        }
        drop(state);
        if let Some(interrupt) = interrupt {
            interrupt.fire(StopReason::Cancelled);
        }
    }

    /// Returns whether a run has begun and has not ended.
    pub fn is_active(&self, number: u64) -> bool {
        self.0.lock().active.contains_key(&number)
    }
}

impl ActiveRun<'_> {
    /// The interrupt of the run.
    #[must_use]
    pub fn interrupt(&self) -> &Interrupt {
        &self.interrupt
    }
}

impl Drop for ActiveRun<'_> {
    fn drop(&mut self) {
        self.runs.0.lock().active.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cancellation_reaches_runs_that_begin_before_or_after_it() {
        let runs = ActiveRuns::default();
        let active = runs.begin(1);
        runs.cancel(1);
        assert_eq!(active.interrupt().reason(), Some(StopReason::Cancelled));
        drop(active);
        runs.cancel(2);
        assert_eq!(runs.begin(2).interrupt().reason(), Some(StopReason::Cancelled));
        assert_eq!(runs.begin(2).interrupt().reason(), None, "it counts once");
    }

    #[test]
    fn early_cancellations_are_bounded() {
        let runs = ActiveRuns::default();
        (0..10 * EARLY_MAX as u64).for_each(|number| runs.cancel(number));
        assert_eq!(runs.0.lock().early.len(), EARLY_MAX);
        assert_eq!(runs.begin(0).interrupt().reason(), None);
    }
}
