//! The threads of a device: models are loaded and run here, never on the async runtime's workers.
//!
//! One thread per slot runs jobs; one loads and unloads models, one after another, since loads share the device's bandwidth; one watches
//! deadlines. They end when [`DeviceThreads`] drops: what waits is answered, what runs is told to stop, and the drop waits for it.

mod queue;
pub(crate) use queue::Lane;

use crate::error::InferenceError;
use crate::interrupt::{Interrupt, Reason};
use queue::{Entry, Key, PushError, Queue};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;
use tracing::error;

/// Something to run on a device thread, and the one who waits for it.
pub(crate) trait Work: Send + 'static {
    /// Run, and keep what comes of it. Called on a device thread, at most once.
    fn run(&mut self, interrupt: &Interrupt);

    /// Answer with what came of it. Called after `run`, when the thread and the model's slot are free again.
    fn answer(self: Box<Self>);

    /// Answer that it will not run. Called from anywhere.
    fn refuse(self: Box<Self>, why: InferenceError);
}

/// Something for the loader thread. Their number needs no bound of its own: a model has at most one load or unload under way.
pub(crate) type Load = Box<dyn FnOnce() + Send>;

/// Owns the threads of one device.
pub(crate) struct DeviceThreads {
    runs: Runs,
    threads: Vec<JoinHandle<()>>,
}

/// Takes in jobs for the device's threads. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Runs {
    shared: Arc<Shared>,
    loads: Sender<Option<Load>>,
}

/// A job that was taken in. Dropping it withdraws the job: it does not start any more, or is told to stop.
pub(crate) struct Ticket {
    shared: Arc<Shared>,
    key: Key,
    lane: u64,
    interrupt: Arc<Interrupt>,
}

struct Shared {
    queue: Mutex<State>,
    /// Each device thread waits at its own for a job.
    job_ready: Box<[Condvar]>,
    /// The watcher waits here for the next deadline.
    deadline_near: Condvar,
    len_max: usize,
}

struct State {
    jobs: Queue<Box<dyn Work>>,
    /// Device threads that wait, the last to begin at the end. That one is woken first: what a run touches (its thread's heap, the processor's
    /// caches) is still warm there.
    idle: Vec<usize>,
    /// When the watcher will look next, if it sleeps until a time.
    watcher_wakes_at: Option<Instant>,
}

impl DeviceThreads {
    /// Start `slots` threads, whose names begin with `name`, behind a queue of at most `queue_len_max` jobs.
    pub(crate) fn start(name: &str, slots: usize, queue_len_max: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            queue: Mutex::new(State {
                jobs: Queue::new(queue_len_max, slots),
                idle: Vec::with_capacity(slots),
                watcher_wakes_at: None,
            }),
            job_ready: (0..slots).map(|_| Condvar::new()).collect(),
            deadline_near: Condvar::new(),
            len_max: queue_len_max,
        });
        let (loads, waiting_loads) = channel();
        // Built first: should a thread not start, its drop ends those that have.
        let mut threads = Self { runs: Runs { shared: Arc::clone(&shared), loads }, threads: Vec::new() };
        threads.spawn(format!("{name}-load"), move || load_in_turn(&waiting_loads))?;
        let watched = Arc::clone(&shared);
        threads.spawn(format!("{name}-watch"), move || watched.watch())?;
        for slot in 0..slots {
            let shared = Arc::clone(&shared);
            threads.spawn(format!("{name}-{slot}"), move || shared.run_in_turn(slot))?;
        }
        Ok(threads)
    }

    /// Where to send jobs.
    pub(crate) fn runs(&self) -> &Runs {
        &self.runs
    }

    fn spawn(&mut self, name: String, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        self.threads.push(std::thread::Builder::new().name(name).spawn(body)?);
        Ok(())
    }
}

impl Drop for DeviceThreads {
    fn drop(&mut self) {
        self.runs.shared.close();
        // Loads that wait still come first; whoever sends one after this is told that the loader is gone.
        let _ = self.runs.loads.send(None);
        for thread in self.threads.drain(..) {
            // A thread that panicked has nothing left to end.
            let _ = thread.join();
        }
    }
}

impl Runs {
    /// Put a job in line. The ticket withdraws it on drop.
    pub(crate) fn submit(
        &self,
        lane: Lane,
        priority: u32,
        deadline: Option<Instant>,
        work: Box<dyn Work>,
    ) -> Result<Ticket, InferenceError> {
        if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Err(InferenceError::DeadlineExceeded);
        }
        let interrupt = Arc::<Interrupt>::default();
        let entry = Entry { lane, deadline, interrupt: Arc::clone(&interrupt), job: work };
        let mut state = self.shared.lock();
        let key = state.jobs.push(priority, entry).map_err(|error| match error {
            PushError::Full => InferenceError::QueueFull { len_max: self.shared.len_max },
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
        Ok(Ticket { shared: Arc::clone(&self.shared), key, lane: lane.number, interrupt })
    }

    /// Have `load` called on the loader thread, after those that wait already.
    pub(crate) fn load(&self, load: Load) -> Result<(), InferenceError> {
        self.loads.send(Some(load)).map_err(|_| shutting_down())
    }

    /// Jobs that wait for a thread.
    pub(crate) fn queue_len(&self) -> usize {
        self.shared.lock().jobs.len()
    }
}

impl Ticket {
    /// Withdraw the job: it does not start any more, or is told to stop.
    pub(crate) fn cancel(&self) {
        let waiting = self.shared.lock().jobs.remove(self.key, self.lane);
        match waiting {
            Some(entry) => entry.job.refuse(InferenceError::Cancelled),
            None => self.interrupt.fire(Reason::Cancelled),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// What a run that was told to stop ends with.
pub(crate) fn error_of(reason: Reason) -> InferenceError {
    match reason {
        Reason::Deadline => InferenceError::DeadlineExceeded,
        Reason::Cancelled => InferenceError::Cancelled,
        Reason::ShutDown => shutting_down(),
    }
}

/// What is answered when the device is about to go away.
pub(crate) fn shutting_down() -> InferenceError {
    InferenceError::Unavailable("the device is shutting down".into())
}

impl Shared {
    fn run_in_turn(&self, thread: usize) {
        while let Some(entry) = self.next_job(thread) {
            let Entry { lane, interrupt, mut job, .. } = entry;
            guard_against_panic("run", || job.run(&interrupt));
            self.lock().jobs.finish(thread, lane);
            guard_against_panic("answer", || job.answer());
        }
    }

    fn next_job(&self, thread: usize) -> Option<Entry<Box<dyn Work>>> {
        let mut state = self.lock();
        loop {
            if state.jobs.is_closed() {
                return None;
            }
            if let Some(entry) = state.jobs.take(thread) {
                return Some(entry);
            }
            state.idle.push(thread);
            let is_idle = |state: &mut State| state.idle.contains(&thread) && !state.jobs.is_closed();
            state = self
                .job_ready
                .get(thread)?
                .wait_while(state, is_idle)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn watch(&self) {
        let mut state = self.lock();
        while !state.jobs.is_closed() {
            let now = Instant::now();
            let (expired, overdue) = state.jobs.expire(now);
            if !expired.is_empty() || !overdue.is_empty() {
                drop(state);
                expired.into_iter().for_each(|entry| entry.job.refuse(InferenceError::DeadlineExceeded));
                overdue.iter().for_each(|interrupt| interrupt.fire(Reason::Deadline));
                state = self.lock();
                continue;
            }
            state.watcher_wakes_at = state.jobs.next_deadline();
            state = match state.watcher_wakes_at {
                None => self.deadline_near.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(at) => {
                    let timeout = at.saturating_duration_since(now);
                    self.deadline_near.wait_timeout(state, timeout).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    fn close(&self) {
        let (waiting, running) = self.lock().jobs.close();
        waiting.into_iter().for_each(|entry| entry.job.refuse(shutting_down()));
        running.iter().for_each(|interrupt| interrupt.fire(Reason::ShutDown));
        self.job_ready.iter().for_each(Condvar::notify_all);
        self.deadline_near.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The queue is whole whenever the lock is free: nothing under it can panic half-way.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn load_in_turn(waiting: &Receiver<Option<Load>>) {
    while let Ok(Some(load)) = waiting.recv() {
        guard_against_panic("load", load);
    }
}

/// A backend's bug must cost its own job, not the device.
fn guard_against_panic(what: &str, body: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(body)).is_err() {
        error!(what, "a backend panicked");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::ThreadId;
    use std::time::Duration;

    /// Says which thread ran it.
    struct WhoAmI(Sender<ThreadId>);

    impl Work for WhoAmI {
        fn run(&mut self, _: &Interrupt) {
            self.0.send(std::thread::current().id()).unwrap();
        }

        fn answer(self: Box<Self>) {}

        fn refuse(self: Box<Self>, why: InferenceError) {
            panic!("{why}");
        }
    }

    #[test]
    fn the_thread_that_ran_last_is_the_one_to_run_next() {
        const SLOTS: usize = 4;
        let threads = DeviceThreads::start("test", SLOTS, 10).unwrap();
        let runs = threads.runs();
        let (ran, who) = channel();
        let all_are_idle = || {
            let began = Instant::now();
            while runs.shared.lock().idle.len() < SLOTS {
                assert!(began.elapsed() < Duration::from_secs(30), "a thread does not come back");
                std::thread::yield_now();
            }
        };
        let ran_by: Vec<ThreadId> = (0..20)
            .map(|number| {
                all_are_idle();
                let lane = Lane { number, slots: 1 };
                let _ticket = runs.submit(lane, 0, None, Box::new(WhoAmI(ran.clone()))).unwrap();
                who.recv().unwrap()
            })
            .collect();
        assert!(ran_by.iter().all(|thread| *thread == ran_by[0]), "{ran_by:?}");
    }
}
