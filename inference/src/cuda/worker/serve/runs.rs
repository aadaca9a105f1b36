//! Active runs of a worker, and their cancellation.

use crate::interrupt::{Interrupt, Reason};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Interrupts of the active runs.
#[derive(Default)]
pub(super) struct Runs(Mutex<HashMap<u64, Arc<Interrupt>>>);

/// Active run, removed on drop.
pub(super) struct UnderWay<'a> {
    runs: &'a Runs,
    number: u64,
    interrupt: Arc<Interrupt>,
}

impl Runs {
    pub(super) fn begin(&self, number: u64) -> UnderWay<'_> {
        let interrupt = Arc::<Interrupt>::default();
        self.lock().insert(number, Arc::clone(&interrupt));
        UnderWay { runs: self, number, interrupt }
    }

    /// Cancels a run, unless it has ended.
    pub(super) fn cancel(&self, number: u64) {
        let interrupt = self.lock().get(&number).cloned();
        if let Some(interrupt) = interrupt {
            interrupt.fire(Reason::Cancelled);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<Interrupt>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl UnderWay<'_> {
    pub(super) fn interrupt(&self) -> &Interrupt {
        &self.interrupt
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.runs.lock().remove(&self.number);
    }
}
