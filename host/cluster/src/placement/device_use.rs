//! Device use of a call: recorded while it runs, and reported to the scheduler at its
//! end.

use super::Placements;
use super::clock::now;
use super::guard::CallEnd;
use super::timeline::Timeline;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;
use weir_inference::{ObservedRun, RunObserver};
use weir_scheduler::{Arrival, DeviceUse, InvocationOutcome};
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
    timeline: Timeline,
    /// Device time of the ended runs. A run in a batch counts with the call's share of the batch.
    device_time_ns: u64,
    batch_items: u32,
    has_started: bool,
    /// The requests that wait for the device or run there; at most as many as the device's queue
    /// and run slots hold.
    requests: Vec<DeviceRequest>,
    /// The number of the next request.
    next: u64,
    /// How the call has ended, while some of its requests are still on the device.
    end: Option<CallEnd>,
}

/// A request that waits for the device or runs there.
#[derive(Debug)]
struct DeviceRequest {
    number: u64,
    phase: Phase,
    /// The start of the phase, since the placement.
    since_ns: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Waits,
    Runs,
    /// A run has ended. The request is over, or runs again alone because its batch failed.
    Ran,
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
    /// The estimate of the scheduler that has placed a call of another node.
    pub(super) estimate_ns: Option<u64>,
}

impl UseRecorder {
    pub(super) fn new(placements: &Weak<Placements>, invocation: InvocationId) -> Arc<Self> {
        let placements = placements.clone();
        Arc::new(Self { invocation, placements, placed_at: now(), state: Mutex::default() })
    }

    /// Adds a load for which the call has waited since `asked`.
    pub fn loaded(&self, asked: Instant) {
        let to_ns = self.now_ns();
        self.state.lock().timeline.load(self.time_ns(asked), to_ns);
    }

    /// Begins a request. The call's end is reported once the observer has learnt of the request's
    /// end, or is dropped.
    pub fn request(self: &Arc<Self>) -> Arc<dyn RunObserver> {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.requests.push(DeviceRequest { number, phase: Phase::Waits, since_ns: self.now_ns() });
        Arc::new(RequestObserver { recorder: self.clone(), number, is_over: AtomicBool::new(false) })
    }

    /// Keeps the end of the call until its last request is over. Returns false if no request runs.
    pub(super) fn defer(&self, end: CallEnd) -> bool {
        let mut state = self.state.lock();
        let is_deferred = !state.requests.is_empty();
        state.end = is_deferred.then_some(end);
        is_deferred
    }

    /// Takes the end of the call if it waits for requests. Called when the device is lost, which
    /// ends these requests.
    pub(super) fn take_end(&self) -> Option<CallEnd> {
        self.state.lock().end.take()
    }

    /// The use of the device so far, with the runs that are on the device now.
    pub(super) fn used(&self) -> DeviceUse {
        self.state.lock().used(self.now_ns())
    }

    /// Times of the call from its placement until now. Moves of inputs are not measured; their time
    /// counts as time off the device.
    pub(super) fn outcome(&self) -> InvocationOutcome {
        let total_ns = self.now_ns();
        let state = self.state.lock();
        let run_time_ns = state.timeline.run_ns();
        let load_time_ns = state.timeline.load_ns();
        let wait_ns = state.timeline.wait_ns();
        let known_ns = run_time_ns.saturating_add(load_time_ns).saturating_add(wait_ns);
        let off_device_ns = total_ns.saturating_sub(known_ns);
        InvocationOutcome { wait_ns, load_time_ns, move_time_ns: None, run_time_ns, off_device_ns }
    }

    fn now_ns(&self) -> u64 {
        self.time_ns(now())
    }

    fn time_ns(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.placed_at).as_nanos()).unwrap_or(u64::MAX)
    }
}

impl Recorded {
    /// The device starts a run of a request. Returns whether it is the first run of the call.
    fn started(&mut self, number: u64, now_ns: u64) -> bool {
        if let Some(request) = self.requests.iter_mut().find(|request| request.number == number) {
            self.timeline.wait(request.since_ns, now_ns);
            request.phase = Phase::Runs;
            request.since_ns = now_ns;
        }
        !std::mem::replace(&mut self.has_started, true)
    }

    fn ended(&mut self, number: u64, run: &ObservedRun, now_ns: u64) {
        if let Some(request) = self.requests.iter_mut().find(|request| request.number == number) {
            request.phase = Phase::Ran;
            request.since_ns = now_ns;
        }
        self.timeline.run(now_ns.saturating_sub(run.run_time_ns), now_ns);
        self.device_time_ns = self.device_time_ns.saturating_add(run.part_ns);
        self.batch_items = self.batch_items.max(run.items);
    }

    /// Removes a request. Returns the end of the call if it has waited for this request.
    fn over(&mut self, number: u64, now_ns: u64) -> Option<CallEnd> {
        for request in self.requests.extract_if(.., |request| request.number == number) {
            if request.phase == Phase::Waits {
                self.timeline.wait(request.since_ns, now_ns);
            }
        }
        if self.requests.is_empty() { self.end.take() } else { None }
    }

    fn used(&self, now_ns: u64) -> DeviceUse {
        let mut timeline = self.timeline.clone();
        let mut device_time_ns = self.device_time_ns;
        for request in self.requests.iter().filter(|request| request.phase == Phase::Runs) {
            timeline.run(request.since_ns, now_ns);
            device_time_ns = device_time_ns.saturating_add(now_ns.saturating_sub(request.since_ns));
        }
        DeviceUse {
            device_time_ns,
            run_time_ns: timeline.run_ns(),
            batch_items: self.batch_items,
            wait_ns: timeline.load_ns().saturating_add(timeline.wait_ns()),
        }
    }
}

impl RunObserver for RequestObserver {
    fn started(&self) {
        let now_ns = self.recorder.now_ns();
        let is_first = self.recorder.state.lock().started(self.number, now_ns);
        if is_first && let Some(placements) = self.recorder.placements.upgrade() {
            placements.run_started(self.recorder.invocation);
        }
    }

    fn ended(&self, run: &ObservedRun) {
        let now_ns = self.recorder.now_ns();
        self.recorder.state.lock().ended(self.number, run, now_ns);
    }

    fn over(&self) {
        if self.is_over.swap(true, Ordering::AcqRel) {
            return;
        }
        let now_ns = self.recorder.now_ns();
        let end = self.recorder.state.lock().over(self.number, now_ns);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn run(part_ns: u64, run_time_ns: u64, items: u32) -> ObservedRun {
        ObservedRun { part_ns, run_time_ns, items }
    }

    impl Recorded {
        fn request(&mut self, number: u64, since_ns: u64) {
            self.requests.push(DeviceRequest { number, phase: Phase::Waits, since_ns });
        }
    }

    #[test]
    fn loads_and_queues_are_waits_and_runs_are_device_time() {
        let mut recorded = Recorded::default();
        recorded.timeline.load(0, 30);
        recorded.request(0, 30);
        assert!(recorded.started(0, 42));
        recorded.ended(0, &run(5, 20, 4), 62);
        // Off the device until 70; the batch of the second request fails, and it runs alone.
        recorded.request(1, 70);
        assert!(!recorded.started(1, 70));
        recorded.ended(1, &run(1, 5, 2), 75);
        recorded.started(1, 80);
        recorded.ended(1, &run(7, 7, 1), 87);
        recorded.over(0, 90);
        recorded.over(1, 90);
        let used = DeviceUse { device_time_ns: 13, run_time_ns: 32, batch_items: 4, wait_ns: 47 };
        assert_eq!(recorded.used(100), used);
        assert_eq!((recorded.timeline.load_ns(), recorded.timeline.wait_ns()), (30, 17));
    }

    #[test]
    fn parallel_branches_never_take_longer_than_the_call() {
        let mut recorded = Recorded::default();
        for branch in 0..3 {
            recorded.timeline.load(0, 40);
            recorded.request(branch, 40);
        }
        recorded.started(0, 50);
        recorded.started(1, 60);
        recorded.ended(0, &run(50, 50, 1), 100);
        recorded.ended(1, &run(60, 60, 1), 120);
        // The third branch is withdrawn before it runs.
        recorded.over(2, 130);
        let used = DeviceUse { device_time_ns: 110, run_time_ns: 70, batch_items: 1, wait_ns: 60 };
        assert_eq!(recorded.used(200), used);
    }

    #[test]
    fn run_on_the_device_counts_up_to_now() {
        let mut recorded = Recorded::default();
        recorded.request(0, 0);
        recorded.started(0, 10);
        assert_eq!(recorded.used(25).device_time_ns, 15);
        recorded.ended(0, &run(20, 20, 1), 30);
        assert_eq!(recorded.used(99).device_time_ns, 20);
    }
}
