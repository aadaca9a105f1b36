//! Active runs in a worker, and their cancellation.

use crate::interrupt::{Interrupt, Reason};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Interrupts of the active runs.
#[derive(Default)]
pub(crate) struct Runs(Mutex<HashMap<u64, Arc<Interrupt>>>);

/// Active run, removed on drop.
pub(crate) struct UnderWay<'a> {
    runs: &'a Runs,
    number: u64,
    interrupt: Arc<Interrupt>,
}

impl Runs {
    pub(crate) fn begin(&self, number: u64) -> UnderWay<'_> {
        let interrupt = Arc::<Interrupt>::default();
        self.lock().insert(number, Arc::clone(&interrupt));
        UnderWay { runs: self, number, interrupt }
    }

    /// Cancels a run, unless it has ended.
    pub(crate) fn cancel(&self, number: u64) {
        let interrupt = self.lock().get(&number).cloned();
        if let Some(interrupt) = interrupt {
            interrupt.fire(Reason::Cancelled);
        }
    }

    /// Returns whether a run has begun and has not ended.
    pub(crate) fn is_active(&self, number: u64) -> bool {
        self.lock().contains_key(&number)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<Interrupt>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl UnderWay<'_> {
    pub(crate) fn interrupt(&self) -> &Interrupt {
        &self.interrupt
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.runs.lock().remove(&self.number);
    }
}
