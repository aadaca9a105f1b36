//! Commitments that end by themselves: batches that form, and work of overdue invocations.

use crate::{DeviceKey, Settings};
use smallvec::SmallVec;
use std::collections::BTreeSet;
use weir_types::InvocationId;

/// The bound on committed work, and the commitments that end by themselves.
#[derive(Debug)]
pub(super) struct Commitments {
    /// Device work that may be committed ahead of the runs, for each run slot.
    ahead_ns: u64,
    /// Devices on which a batch forms while the current event is handled.
    forming: SmallVec<[DeviceKey; 4]>,
    /// Invocations whose work is committed, by the time at which they are overdue.
    overdue_at: BTreeSet<(u64, InvocationId)>,
}

/// Multiple of the expected time from start to end after which an invocation is overdue.
const LIVES: u64 = 4;

/// Time added to that multiple, for variation that does not depend on the expected time.
const SLACK_NS: u64 = 100_000_000;

impl Commitments {
    pub(super) fn new(settings: &Settings) -> Self {
        let ahead_ns = u64::from(settings.commit_ahead_ms) * 1_000_000;
        Self { ahead_ns, forming: SmallVec::new(), overdue_at: BTreeSet::new() }
    }

    pub(super) fn ahead_ns(&self) -> u64 {
        self.ahead_ns
    }

    pub(super) fn forms_on(&mut self, device: DeviceKey) {
        if !self.forming.contains(&device) {
            self.forming.push(device);
        }
    }

    pub(super) fn take_forming(&mut self) -> SmallVec<[DeviceKey; 4]> {
        std::mem::take(&mut self.forming)
    }

    /// Begins to watch an invocation that should begin to run at `ready_at_ns` and live for
    /// `life_ns` from then. Returns the time at which it is overdue.
    pub(super) fn watch(&mut self, invocation: InvocationId, ready_at_ns: u64, life_ns: u64) -> u64 {
        let lives_ns = life_ns.saturating_mul(LIVES).saturating_add(SLACK_NS);
        let overdue_at_ns = ready_at_ns.saturating_add(lives_ns);
        self.overdue_at.insert((overdue_at_ns, invocation));
        overdue_at_ns
    }

    pub(super) fn unwatch(&mut self, invocation: InvocationId, overdue_at_ns: u64) {
        self.overdue_at.remove(&(overdue_at_ns, invocation));
    }

    /// Stops watching an invocation that is overdue, and returns it.
    pub(super) fn next_overdue(&mut self, now_ns: u64) -> Option<InvocationId> {
        let (overdue_at_ns, invocation) = *self.overdue_at.first()?;
        (overdue_at_ns <= now_ns).then(|| {
            self.overdue_at.pop_first();
            invocation
        })
    }

    /// When the next invocation is overdue.
    pub(super) fn overdue_at_ns(&self) -> Option<u64> {
        self.overdue_at.first().map(|(overdue_at_ns, _)| *overdue_at_ns)
    }
}
