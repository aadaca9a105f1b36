//! Device threads: models are loaded and run here, never on the async runtime's workers.
//!
//! One thread per run slot runs jobs. One thread loads and unloads models, one after another, since
//! loads share the device's bandwidth. One thread watches deadlines. Dropping [`DeviceThreads`]
//! ends all of them: it answers waiting jobs, stops running jobs, and waits for the threads.

mod queue;
pub(crate) use queue::{Lane, LaneSlots, QueueEntry, Taken};

use crate::batching::Fit;
use crate::error::InferenceError;
use crate::interrupt::{Interrupt, StopReason};
use parking_lot::{Condvar, Mutex};
use queue::{JobOrder, JobQueue, PushError, ThreadInstruction};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tracing::error;

/// A job for a device thread, with its reply channel.
pub(crate) trait DeviceWork: Sized + Send + 'static {
    /// Batch class and size of the job; `None` if it runs alone.
    fn fit(&self, lane: &Lane) -> Option<Fit>;

    /// Runs all taken jobs as one run, and stores the outcomes. Called on a device thread.
    fn run(taken: &mut Taken<Self>);

    /// Whether the job has an outcome or was stopped. A job of a batch without either returns to
    /// the queue, to run alone.
    fn has_ended(&self) -> bool;

    /// Sends the outcome. Called after `run`, when the thread and the model's slot are free again.
    fn answer(self);

    /// Sends the error `why` without running. Called from any thread.
    fn refuse(self, why: InferenceError);
}

/// A task for the loader thread. The number of tasks needs no limit: a model has at most one
/// pending load or unload.
pub(crate) type LoaderTask = Box<dyn FnOnce() + Send>;

/// Owns the threads of one device.
pub(crate) struct DeviceThreads<W: DeviceWork> {
    runs: Runs<W>,
    threads: Vec<JoinHandle<()>>,
}

/// Accepts jobs for the device's threads. Cheap to clone.
pub(crate) struct Runs<W: DeviceWork> {
    shared: Arc<ThreadsShared<W>>,
    loads: Sender<Option<LoaderTask>>,
}

/// An accepted job. Dropping the ticket withdraws the job: a waiting job does not start, and a
/// running job is stopped.
pub(crate) struct Ticket<W: DeviceWork> {
    shared: Arc<ThreadsShared<W>>,
    key: JobOrder,
    lane: u64,
    interrupt: Arc<Interrupt>,
}

struct ThreadsShared<W: DeviceWork> {
    queue: Mutex<ThreadsState<W>>,
    /// One condition variable per device thread, which waits on it for a job.
    job_ready: Box<[Condvar]>,
    /// The watcher waits here for the next deadline.
    deadline_near: Condvar,
    /// Paused threads wait here for the shutdown.
    closing: Condvar,
    len_max: usize,
}

struct ThreadsState<W: DeviceWork> {
    jobs: JobQueue<W>,
    /// Idle device threads; the last to become idle is at the end and is woken first, while its
    /// heap and the processor's caches are still warm.
    idle: Vec<usize>,
    /// Time at which the watcher wakes next, if it sleeps with a timeout.
    watcher_wakes_at: Option<Instant>,
}

impl<W: DeviceWork> DeviceThreads<W> {
    /// Starts `slots` threads that take jobs from a queue of at most `queue_len_max` jobs. The
    /// names of the threads begin with `name`.
    pub(crate) fn start(name: &str, slots: usize, queue_len_max: usize) -> std::io::Result<Self> {
        let shared = Arc::new(ThreadsShared {
            queue: Mutex::new(ThreadsState {
                jobs: JobQueue::new(queue_len_max, slots),
                idle: Vec::with_capacity(slots),
                watcher_wakes_at: None,
            }),
            job_ready: (0..slots).map(|_| Condvar::new()).collect(),
            deadline_near: Condvar::new(),
            closing: Condvar::new(),
            len_max: queue_len_max,
        });
        let (loads, waiting_loads) = channel();
        // Built first: if a thread fails to start, the drop ends the threads that have started.
        let mut threads = Self { runs: Runs { shared: shared.clone(), loads }, threads: Vec::new() };
        threads.spawn(format!("{name}-load"), move || load_in_turn(&waiting_loads))?;
        let watched = shared.clone();
        threads.spawn(format!("{name}-watch"), move || watched.watch())?;
        for slot in 0..slots {
            let shared = shared.clone();
            threads.spawn(format!("{name}-{slot}"), move || shared.run_in_turn(slot))?;
        }
        Ok(threads)
    }

    /// Handle for submitting jobs.
    pub(crate) fn runs(&self) -> &Runs<W> {
        &self.runs
    }

    fn spawn(&mut self, name: String, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        self.threads.push(std::thread::Builder::new().name(name).spawn(body)?);
        Ok(())
    }
}

impl<W: DeviceWork> Drop for DeviceThreads<W> {
    fn drop(&mut self) {
        self.runs.shared.close();
        // The loader finishes the queued loads first; sending a load after this fails.
        let _ = self.runs.loads.send(None);
        for thread in self.threads.drain(..) {
            // A thread that panicked has ended already.
            let _ = thread.join();
        }
    }
}

impl<W: DeviceWork> Clone for Runs<W> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), loads: self.loads.clone() }
    }
}

impl<W: DeviceWork> Runs<W> {
    /// Queues a job. Dropping the ticket withdraws it.
    pub(crate) fn submit(
        &self,
        lane: Lane,
        priority: u32,
        deadline: Option<Instant>,
        work: W,
    ) -> Result<Ticket<W>, InferenceError> {
        let arrived = Instant::now();
        if deadline.is_some_and(|deadline| deadline <= arrived) {
            return Err(InferenceError::DeadlineExceeded);
        }
        let interrupt = Arc::<Interrupt>::default();
        let fit = work.fit(&lane);
        let number = lane.number;
        let entry = QueueEntry { lane, arrived, deadline, interrupt: interrupt.clone(), fit, job: work };
        let mut state = self.shared.queue.lock();
        let full = || InferenceError::QueueFull { len_max: self.shared.len_max };
        let (key, displaced) = state.jobs.push(priority, entry).map_err(|error| match error {
            PushError::Full => full(),
            PushError::Closed => shutting_down(),
        })?;
        let watcher_sleeps_past =
            |deadline| state.watcher_wakes_at.is_none_or(|wakes_at| deadline < wakes_at);
        let wake_watcher = deadline.is_some_and(watcher_sleeps_past);
        let woken = state.idle.pop().and_then(|thread| self.shared.job_ready.get(thread));
        drop(state);
        if let Some(job_ready) = woken {
            job_ready.notify_one();
        }
        if wake_watcher {
            self.shared.deadline_near.notify_one();
        }
        if let Some(displaced) = displaced {
            displaced.job.refuse(full());
        }
        Ok(Ticket { shared: self.shared.clone(), key, lane: number, interrupt })
    }

    /// Limits a lane to `slots` concurrent runs. Current runs continue.
    pub(crate) fn resize(&self, lane: &Lane, slots: usize) {
        let mut state = self.shared.queue.lock();
        state.jobs.resize(lane, slots);
        // Any idle thread may have a job now; each checks the queue after waking.
        let woken = std::mem::take(&mut state.idle);
        drop(state);
        for job_ready in woken.into_iter().filter_map(|thread| self.shared.job_ready.get(thread)) {
            job_ready.notify_one();
        }
    }

    /// Queues `load` for the loader thread, after the loads that already wait.
    pub(crate) fn load(&self, load: LoaderTask) -> Result<(), InferenceError> {
        self.loads.send(Some(load)).map_err(|_| shutting_down())
    }

    /// Handles the loss of the device: refuses waiting jobs and stops running jobs. New jobs can be
    /// submitted immediately.
    pub(crate) fn lose(&self) {
        let (waiting, running) = self.shared.queue.lock().jobs.drain();
        waiting.into_iter().for_each(|entry| entry.job.refuse(lost()));
        running.iter().for_each(|interrupt| interrupt.fire(StopReason::DeviceLost));
    }

    /// Waits for `time` or until the device shuts down; returns whether it shuts down.
    pub(crate) fn pause(&self, time: Duration) -> bool {
        let goes_on = |state: &mut ThreadsState<W>| !state.jobs.is_closed();
        let mut state = self.shared.queue.lock();
        self.shared.closing.wait_while_for(&mut state, goes_on, time);
        state.jobs.is_closed()
    }

    /// Number of jobs that wait for a thread.
    pub(crate) fn queue_len(&self) -> usize {
        self.shared.queue.lock().jobs.len()
    }
}

impl<W: DeviceWork> Ticket<W> {
    /// Withdraws the job: a waiting job does not start, and a running job is stopped.
    pub(crate) fn cancel(&self) {
        let waiting = self.shared.queue.lock().jobs.remove(self.key, self.lane);
        match waiting {
            Some(entry) => entry.job.refuse(InferenceError::Cancelled),
            None => self.interrupt.fire(StopReason::Cancelled),
        }
    }
}

impl<W: DeviceWork> Drop for Ticket<W> {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// The error of a run that was stopped for this reason.
pub(crate) fn error_of(reason: StopReason) -> InferenceError {
    match reason {
        StopReason::Deadline => InferenceError::DeadlineExceeded,
        StopReason::Cancelled => InferenceError::Cancelled,
        StopReason::ShutDown => shutting_down(),
        StopReason::DeviceLost => lost().in_use(),
    }
}

/// The error of waiting runs whose device was lost by another run.
pub(crate) fn lost() -> InferenceError {
    InferenceError::DeviceLost("another run on it has failed".into())
}

/// The error while the device shuts down.
pub(crate) fn shutting_down() -> InferenceError {
    InferenceError::Unavailable("the device is shutting down".into())
}

impl<W: DeviceWork> ThreadsShared<W> {
    fn run_in_turn(&self, thread: usize) {
        while let Some(mut taken) = self.next_run(thread) {
            guard_against_panic("run", || W::run(&mut taken));
            let Taken { lane, jobs, .. } = taken;
            let runs_again = jobs.len() > 1;
            let (again, ended): (Vec<_>, Vec<_>) =
                jobs.into_iter().partition(|(_, entry)| runs_again && !entry.job.has_ended());
            let refused = self.finish(thread, &lane, again);
            for (_, entry) in ended {
                guard_against_panic("answer", || entry.job.answer());
            }
            refused.into_iter().for_each(|entry| entry.job.refuse(shutting_down()));
        }
    }

    /// Ends the run of a thread. Returns the jobs of `again` if the queue is closed and they cannot
    /// run any more.
    fn finish(
        &self,
        thread: usize,
        lane: &Lane,
        again: Vec<(JobOrder, QueueEntry<W>)>,
    ) -> Vec<QueueEntry<W>> {
        let mut state = self.queue.lock();
        if state.jobs.is_closed() {
            state.jobs.finish(thread, lane, Vec::new(), Instant::now());
            return again.into_iter().map(|(_, entry)| entry).collect();
        }
        let count = again.len();
        state.jobs.finish(thread, lane, again, Instant::now());
        // This thread takes one of them.
        for _ in 1..count {
            let Some(woken) = state.idle.pop().and_then(|thread| self.job_ready.get(thread)) else { break };
            woken.notify_one();
        }
        if count > 0 {
            self.deadline_near.notify_one();
        }
        Vec::new()
    }

    fn next_run(&self, thread: usize) -> Option<Taken<W>> {
        let mut state = self.queue.lock();
        loop {
            if state.jobs.is_closed() {
                return None;
            }
            let now = Instant::now();
            let wakes_at = match state.jobs.take(thread, now) {
                ThreadInstruction::Run(taken) => return Some(taken),
                ThreadInstruction::Wait(wakes_at) => wakes_at,
            };
            state.idle.push(thread);
            let job_ready = self.job_ready.get(thread)?;
            let is_idle =
                |state: &mut ThreadsState<W>| state.idle.contains(&thread) && !state.jobs.is_closed();
            match wakes_at {
                None => job_ready.wait_while(&mut state, is_idle),
                Some(at) => {
                    job_ready.wait_while_for(&mut state, is_idle, at.saturating_duration_since(now));
                }
            }
            state.idle.retain(|other| *other != thread);
        }
    }

    fn watch(&self) {
        let mut state = self.queue.lock();
        while !state.jobs.is_closed() {
            let now = Instant::now();
            let (expired, overdue) = state.jobs.expire(now);
            if !expired.is_empty() || !overdue.is_empty() {
                drop(state);
                expired.into_iter().for_each(|entry| entry.job.refuse(InferenceError::DeadlineExceeded));
                overdue.iter().for_each(|interrupt| interrupt.fire(StopReason::Deadline));
                state = self.queue.lock();
                continue;
            }
            state.watcher_wakes_at = state.jobs.next_deadline();
            match state.watcher_wakes_at {
                None => self.deadline_near.wait(&mut state),
                Some(at) => {
                    self.deadline_near.wait_for(&mut state, at.saturating_duration_since(now));
                }
            }
        }
    }

    fn close(&self) {
        let (waiting, running) = self.queue.lock().jobs.close();
        waiting.into_iter().for_each(|entry| entry.job.refuse(shutting_down()));
        running.iter().for_each(|interrupt| interrupt.fire(StopReason::ShutDown));
        self.job_ready.iter().for_each(|job_ready| {
            job_ready.notify_all();
        });
        self.deadline_near.notify_all();
        self.closing.notify_all();
    }
}

fn load_in_turn(waiting: &Receiver<Option<LoaderTask>>) {
    while let Ok(Some(load)) = waiting.recv() {
        guard_against_panic("load", load);
    }
}

/// A panic in a backend must fail only its own job, not the device.
fn guard_against_panic(what: &str, body: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(body)).is_err() {
        error!(what, "a backend panicked");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::ThreadId;
    use weir_types::TenantId;

    /// Reports the thread that ran it.
    struct WhoAmI(Sender<ThreadId>);

    impl DeviceWork for WhoAmI {
        fn fit(&self, _: &Lane) -> Option<Fit> {
            None
        }

        fn run(taken: &mut Taken<Self>) {
            taken.jobs.iter().for_each(|(_, entry)| entry.job.0.send(std::thread::current().id()).unwrap());
        }

        fn has_ended(&self) -> bool {
            true
        }

        fn answer(self) {}

        fn refuse(self, why: InferenceError) {
            panic!("{why}");
        }
    }

    #[test]
    fn thread_that_idled_last_runs_next() {
        const SLOTS: usize = 4;
        let threads = DeviceThreads::start("test", SLOTS, 10).unwrap();
        let runs = threads.runs();
        let (ran, who) = channel();
        let all_are_idle = || {
            let began = Instant::now();
            while runs.shared.queue.lock().idle.len() < SLOTS {
                assert!(began.elapsed() < Duration::from_secs(30), "a thread does not come back");
                std::thread::yield_now();
            }
        };
        let ran_by: Vec<ThreadId> = (0..20)
            .map(|number| {
                all_are_idle();
                let tenant = TenantId::default();
                let lane = Lane { number, tenant, slots: LaneSlots::new(1), batcher: None };
                let _ticket = runs.submit(lane, 0, None, WhoAmI(ran.clone())).unwrap();
                who.recv().unwrap()
            })
            .collect();
        assert!(ran_by.iter().all(|thread| *thread == ran_by[0]), "{ran_by:?}");
    }
}
