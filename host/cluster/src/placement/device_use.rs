//! Device use of a call: recorded while it runs, and reported to the scheduler at its
//! end.

use super::Placements;
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use weir_inference::{ObservedRun, RunObserver};
use weir_scheduler::{Arrival, DeviceUse, Outcome};
use weir_types::{InvocationId, Ordinal, TenantId};

/// Records the use of the device by one call that runs on this node.
#[derive(Debug)]
pub struct UseRecorder {
    invocation: InvocationId,
    placements: Weak<Placements>,
    placed_at: Instant,
    state: Mutex<Recorded>,
}

#[derive(Debug, Default)]
struct Recorded {
    used: DeviceUse,
    load_time: Duration,
    has_started: bool,
}

/// A call that runs on this node.
pub(super) struct RunningCall {
    pub(super) recorder: Arc<UseRecorder>,
    /// The tenant; `None` if the call arrived on another node.
    pub(super) tenant: Option<TenantId>,
    /// Reported to the next placer; `None` where there can be no other placer, or where another
    /// node reports the call.
    pub(super) arrival: Option<Arrival>,
    pub(super) device: Option<Ordinal>,
}

impl UseRecorder {
    pub(super) fn new(placements: &Weak<Placements>, invocation: InvocationId) -> Arc<Self> {
        let placements = placements.clone();
        Arc::new(Self { invocation, placements, placed_at: Instant::now(), state: Mutex::default() })
    }

    /// Adds a time for which the call waited for the device: for a run slot, or for a batch to
    /// form.
    pub fn waited(&self, time: Duration) {
        let mut state = self.state.lock();
        state.used.wait_ns = state.used.wait_ns.saturating_add(nanoseconds(time));
    }

    /// Adds the time of a load for which the call waited.
    pub fn loaded(&self, time: Duration) {
        let mut state = self.state.lock();
        state.load_time = state.load_time.saturating_add(time);
        state.used.wait_ns = state.used.wait_ns.saturating_add(nanoseconds(time));
    }

    /// The use of the device so far.
    pub(super) fn used(&self) -> DeviceUse {
        self.state.lock().used
    }

    /// Times of the call from its placement until now.
    pub(super) fn outcome(&self) -> Outcome {
        let total_ns = nanoseconds(self.placed_at.elapsed());
        let state = self.state.lock();
        let load_time_ns = nanoseconds(state.load_time);
        let wait_ns = state.used.wait_ns.saturating_sub(load_time_ns);
        let known_ns = state.used.wait_ns.saturating_add(state.used.run_time_ns);
        Outcome {
            wait_ns,
            load_time_ns,
            move_time_ns: 0,
            run_time_ns: state.used.run_time_ns,
            off_device_ns: total_ns.saturating_sub(known_ns),
        }
    }
}

impl RunObserver for UseRecorder {
    fn started(&self) {
        let is_first = !std::mem::replace(&mut self.state.lock().has_started, true);
        if is_first && let Some(placements) = self.placements.upgrade() {
            placements.run_started(self.invocation);
        }
    }

    fn ended(&self, run: &ObservedRun) {
        let used = &mut self.state.lock().used;
        used.device_time_ns = used.device_time_ns.saturating_add(run.part_ns);
        used.run_time_ns = used.run_time_ns.saturating_add(run.run_time_ns);
        used.batch_items = used.batch_items.max(run.items);
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_and_queues_are_waits_and_runs_are_device_time() {
        let recorder = UseRecorder::new(&Weak::new(), InvocationId(1));
        recorder.loaded(Duration::from_nanos(30));
        recorder.waited(Duration::from_nanos(12));
        recorder.started();
        recorder.ended(&ObservedRun { part_ns: 5, run_time_ns: 20, items: 4 });
        recorder.ended(&ObservedRun { part_ns: 7, run_time_ns: 7, items: 1 });
        let used = DeviceUse { device_time_ns: 12, run_time_ns: 27, batch_items: 4, wait_ns: 42 };
        assert_eq!(recorder.used(), used);
        let outcome = recorder.outcome();
        assert_eq!((outcome.wait_ns, outcome.load_time_ns, outcome.run_time_ns), (12, 30, 27));
    }
}
