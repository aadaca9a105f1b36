//! Pause of a scheduler while nodes report their running invocations. Arrivals wait until the pause
//! ends.

use super::Scheduler;
use crate::{Action, Arrival, Event, Rejection};
use weir_types::InvocationId;

impl Scheduler {
    pub(super) fn pause(&mut self) {
        self.held.get_or_insert_default();
    }

    /// Judges and places the invocations that have arrived during the pause.
    pub(super) fn resume(&mut self, actions: &mut Vec<Action>) {
        let held = self.held.take();
        self.judge_waiting(actions);
        for arrival in held.into_iter().flatten() {
            self.handle(self.now_ns, Event::Arrived(arrival), actions);
        }
    }

    /// Keeps an arrival until the end of the pause, within the limit of waiting invocations.
    pub(super) fn hold(&mut self, arrival: Arrival, actions: &mut Vec<Action>) {
        let invocation = arrival.invocation;
        if self.is_known(invocation) {
            self.corrections.arrived_twice += 1;
        } else if self.waiting() >= self.queue_len_max {
            let (estimate, alternatives) = Default::default();
            actions.push(Action::Reject { invocation, why: Rejection::QueueFull, estimate, alternatives });
        } else if let Some(held) = &mut self.held {
            held.push(arrival);
        }
    }

    pub(super) fn is_held(&self, invocation: InvocationId) -> bool {
        self.held.iter().flatten().any(|arrival| arrival.invocation == invocation)
    }

    /// Withdraws an arrival of the pause. Returns whether there was one.
    pub(super) fn drop_held(&mut self, invocation: InvocationId) -> bool {
        let Some(held) = &mut self.held else { return false };
        let before = held.len();
        held.retain(|arrival| arrival.invocation != invocation);
        held.len() < before
    }
}
