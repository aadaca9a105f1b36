//! Device use of a call: recorded while it runs, and reported to the scheduler at its
//! end.

use super::Placements;
use super::guard::End;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use weir_inference::{ObservedRun, RunObserver};
use weir_scheduler::{Arrival, DeviceUse, Outcome};
use weir_types::{InvocationId, NodeId, Ordinal, TenantId};

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
    /// The requests that wait for the device or run there; at most as many as the device's queue
    /// and run slots hold.
    requests: Vec<Request>,
    /// The number of the next request.
    next: u64,
    /// How the call has ended, while requests that it left behind are still on the device.
    end: Option<End>,
}

/// A request that waits for the device or runs there.
#[derive(Debug)]
struct Request {
    number: u64,
    /// When its current run has started.
    run_since: Option<Instant>,
}

/// Observes the runs of one request.
#[derive(Debug)]
struct RequestObserver {
    recorder: Arc<UseRecorder>,
    number: u64,
    is_over: AtomicBool,
}

/// A call that runs on this node.
pub(super) struct RunningCall {
    pub(super) recorder: Arc<UseRecorder>,
    /// The tenant; `None` if the call arrived on another node.
    pub(super) tenant: Option<TenantId>,
    /// Reported to the next placer; `None` where there can be no other placer, or where no placer
    /// knows that the call runs here.
    pub(super) arrival: Option<Arrival>,
    pub(super) device: Option<Ordinal>,
    /// The node that has forwarded the call to this one.
    pub(super) origin: Option<NodeId>,
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

    /// Begins a request. The call's end is reported once the observer has learnt of the request's
    /// end, or is dropped.
    pub fn request(self: &Arc<Self>) -> Arc<dyn RunObserver> {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.requests.push(Request { number, run_since: None });
        Arc::new(RequestObserver { recorder: self.clone(), number, is_over: AtomicBool::new(false) })
    }

    /// Keeps the end of the call until its last request is over. Returns false if no request is
    /// under way.
    pub(super) fn defer(&self, end: End) -> bool {
        let mut state = self.state.lock();
        let is_deferred = !state.requests.is_empty();
        state.end = is_deferred.then_some(end);
        is_deferred
    }

    /// The end of the call, if it waits for requests. These are given up: their device is lost.
    pub(super) fn take_end(&self) -> Option<End> {
        self.state.lock().end.take()
    }

    /// The use of the device so far, with the runs that are on the device now.
    pub(super) fn used(&self) -> DeviceUse {
        let state = self.state.lock();
        let open = state.requests.iter().filter_map(|request| request.run_since);
        open.fold(state.used, |used, since| {
            let run_ns = nanoseconds(since.elapsed());
            DeviceUse {
                device_time_ns: used.device_time_ns.saturating_add(run_ns),
                run_time_ns: used.run_time_ns.saturating_add(run_ns),
                ..used
            }
        })
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

impl Recorded {
    /// Sets or clears the start of a request's current run.
    fn set_run(&mut self, number: u64, run_since: Option<Instant>) {
        if let Some(request) = self.requests.iter_mut().find(|request| request.number == number) {
            request.run_since = run_since;
        }
    }
}

impl RunObserver for RequestObserver {
    fn started(&self) {
        let is_first = {
            let mut state = self.recorder.state.lock();
            state.set_run(self.number, Some(Instant::now()));
            !std::mem::replace(&mut state.has_started, true)
        };
        if is_first && let Some(placements) = self.recorder.placements.upgrade() {
            placements.run_started(self.recorder.invocation);
        }
    }

    fn ended(&self, run: &ObservedRun) {
        let mut state = self.recorder.state.lock();
        state.set_run(self.number, None);
        let used = &mut state.used;
        used.device_time_ns = used.device_time_ns.saturating_add(run.part_ns);
        used.run_time_ns = used.run_time_ns.saturating_add(run.run_time_ns);
        used.batch_items = used.batch_items.max(run.items);
    }

    fn over(&self) {
        if self.is_over.swap(true, Ordering::AcqRel) {
            return;
        }
        let end = {
            let mut state = self.recorder.state.lock();
            state.requests.retain(|request| request.number != self.number);
            if state.requests.is_empty() { state.end.take() } else { None }
        };
        if let Some((end, placements)) = end.zip(self.recorder.placements.upgrade()) {
            placements.requests_over(&self.recorder, self.recorder.invocation, end);
        }
    }
}

impl Drop for RequestObserver {
    /// The device did not accept the request.
    fn drop(&mut self) {
        self.over();
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
        let request = recorder.request();
        request.started();
        request.ended(&ObservedRun { part_ns: 5, run_time_ns: 20, items: 4 });
        request.ended(&ObservedRun { part_ns: 7, run_time_ns: 7, items: 1 });
        let used = DeviceUse { device_time_ns: 12, run_time_ns: 27, batch_items: 4, wait_ns: 42 };
        assert_eq!(recorder.used(), used);
        let outcome = recorder.outcome();
        assert_eq!((outcome.wait_ns, outcome.load_time_ns, outcome.run_time_ns), (12, 30, 27));
    }
}
