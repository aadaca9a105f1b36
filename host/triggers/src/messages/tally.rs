//! Requests and errors of a trigger that its stored state does not contain yet.

use crate::record::{TriggerId, encode};
use crate::work::cut;
use crate::{TriggerError, Triggers};
use weir_datastore::{Compare, Transaction};
use weir_telemetry::logs::now_ms;
use weir_types::AsyncId;
use weir_types::api::{TickCounts, TickOutcome, TriggerTick};

/// Attempts to write a state that a client changes at the same time.
const ATTEMPTS: usize = 3;

/// Requests and errors to add to the state of a trigger.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    counts: TickCounts,
    last: Option<TriggerTick>,
    /// Why no messages arrive: set, or cleared with `None`.
    error: Option<Option<String>>,
}

impl Tally {
    /// Records a request.
    pub(crate) fn add(&mut self, outcome: TickOutcome, invocation: Option<AsyncId>, error: Option<String>) {
        self.counts.add(outcome, 1);
        let error = error.map(cut);
        let at_ms = now_ms();
        self.last =
            Some(TriggerTick { scheduled_at_ms: None, at_ms, outcome, invocation, status: None, error });
    }

    /// Records why no messages arrive, or that they do.
    pub(super) fn set_error(&mut self, error: Option<String>) {
        self.error = Some(error.map(cut));
    }

    /// Adds what happened before this.
    pub(crate) fn follow(&mut self, earlier: &Self) {
        self.counts.merge(earlier.counts);
        self.last = self.last.take().or_else(|| earlier.last.clone());
        self.error = self.error.take().or_else(|| earlier.error.clone());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.last.is_none() && self.error.is_none()
    }

    /// Writes the state, and starts over. Keeps what could not be written.
    ///
    /// # Errors
    /// If the datastore fails.
    pub(crate) async fn write(&mut self, triggers: &Triggers, id: &TriggerId) -> Result<(), TriggerError> {
        for _ in 0..ATTEMPTS {
            if self.is_empty() {
                return Ok(());
            }
            let (trigger, stored) = match triggers.read(id).await {
                Err(TriggerError::NotFound(_)) => {
                    *self = Self::default();
                    return Ok(());
                }
                read => read?,
            };
            let key = id.state_key()?;
            let is_current = match &stored {
                Some(stored) => Compare::ModifiedAt(key.clone(), stored.revision),
                None => Compare::Absent(key.clone()),
            };
            let mut state = stored.map(|stored| stored.state).unwrap_or_default();
            state.ticks.merge(self.counts);
            state.invocation = self.last.as_ref().and_then(|last| last.invocation).or(state.invocation);
            state.last = self.last.clone().or(state.last);
            state.error = self.error.clone().unwrap_or(state.error);
            let writing = Transaction::new()
                .when(Compare::ModifiedAt(id.spec_key()?, trigger.revision))
                .when(is_current)
                .put(key, encode(&state));
            if triggers.datastore.commit(writing).await?.done().is_some() {
                *self = Self::default();
            }
        }
        Ok(())
    }
}
