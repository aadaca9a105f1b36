//! The worker of one tenant on one device, as the node sees it: a process that is there when somebody runs something.

use super::KernelGraphConfig;
use super::message::{Answer, Request};
use super::process::{CallError, WorkerProcess};
use crate::cuda::process::{MEMORY_BYTES_KEPT, Restarts};
use crate::error::InferenceError;
use crate::interrupt::Interrupt;
use std::collections::HashSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tracing::{info, warn};
use weir_types::TenantId;

/// How long a worker may take to start and to have its device, and to load a graph: the driver compiles PTX.
const START_TIME_MAX: Duration = Duration::from_secs(30);
/// How often somebody who waits for a turn looks whether it is still wanted.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A tenant's worker. Its process ends with the last who holds this.
pub(crate) struct Worker {
    config: Arc<KernelGraphConfig>,
    driver: PathBuf,
    ordinal: u32,
    tenant: TenantId,
    /// Counts graphs, to tell them from each other.
    graphs: AtomicU64,
    /// Taken by whoever has the turn.
    state: Mutex<Option<State>>,
    returned: Condvar,
    /// Graphs that nobody needs any more: the process hears of them with the next run.
    unneeded: Mutex<Vec<u64>>,
}

/// What is there of it.
#[derive(Default)]
struct State {
    process: Option<WorkerProcess>,
    /// The graphs that the process has.
    loaded: HashSet<u64>,
    restarts: Restarts,
}

/// The turn to ask the worker for things. Gives it back on drop.
pub(super) struct Turn<'a> {
    worker: &'a Worker,
    interrupt: &'a Interrupt,
    state: State,
}

impl Worker {
    pub(super) fn new(
        config: Arc<KernelGraphConfig>,
        driver: PathBuf,
        ordinal: u32,
        tenant: TenantId,
    ) -> Self {
        let (graphs, state, returned) =
            (AtomicU64::new(0), Mutex::new(Some(State::default())), Condvar::new());
        Self { config, driver, ordinal, tenant, graphs, state, returned, unneeded: Mutex::default() }
    }

    /// The number of one more graph.
    pub(super) fn number(&self) -> u64 {
        self.graphs.fetch_add(1, Ordering::Relaxed)
    }

    /// Wait for a turn, for as long as it is wanted.
    pub(super) fn turn<'a>(&'a self, interrupt: &'a Interrupt) -> Result<Turn<'a>, InferenceError> {
        let mut state = self.lock();
        loop {
            if let Some(state) = state.take() {
                return Ok(Turn { worker: self, interrupt, state });
            }
            if interrupt.reason().is_some() {
                return Err(InferenceError::Cancelled);
            }
            let waited = self.returned.wait_timeout(state, LOOK_EVERY);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Nobody needs a graph any more.
    pub(super) fn forget(&self, graph: u64) {
        self.unneeded.lock().unwrap_or_else(PoisonError::into_inner).push(graph);
    }

    fn take_unneeded(&self) -> Vec<u64> {
        std::mem::take(&mut *self.unneeded.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn lock(&self) -> MutexGuard<'_, Option<State>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn<'_> {
    /// The memory that tensors go through. There is one once a graph is loaded.
    pub(super) fn memory(&self) -> Result<&File, InferenceError> {
        let process = self.state.process.as_ref();
        process.map(|process| &process.memory).ok_or_else(|| unavailable("its worker is not there"))
    }

    /// Have a graph ready, in a process that runs.
    pub(super) fn ready(&mut self, graph: u64, file: &Path) -> Result<(), InferenceError> {
        if self.state.process.is_none() {
            self.start()?;
        }
        for unneeded in self.worker.take_unneeded() {
            if self.state.loaded.remove(&unneeded) {
                self.prepare(&Request::Forget { graph: unneeded })?;
            }
        }
        if self.state.loaded.contains(&graph) {
            return Ok(());
        }
        match self.prepare(&Request::Load { graph, file: file.to_owned() })? {
            Answer::Failed(why) => {
                Err(InferenceError::Run(format!("the device does not take the kernels: {why}").into()))
            }
            answer => self.expect(answer).map(|_| _ = self.state.loaded.insert(graph)),
        }
    }

    /// Run a graph that is ready. Gives the answer, which is that it ran.
    pub(super) fn run(&mut self, request: &Request) -> Result<Answer, InferenceError> {
        let called = self.call(request, self.worker.config.run_time_max, self.interrupt);
        let answer = called.map_err(|error| match error {
            CallError::Interrupted => InferenceError::Cancelled,
            CallError::OverTime(time_max) => unavailable(&format!(
                "it took longer than {} ms (kernel_graphs.run_time_ms_max), and its worker was stopped",
                time_max.as_millis()
            )),
            error => unavailable(&error.to_string()),
        })?;
        let answer = self.expect(answer)?;
        self.state.restarts.worked();
        Ok(answer)
    }

    fn start(&mut self) -> Result<(), InferenceError> {
        let Worker { config, driver, ordinal, tenant, .. } = self.worker;
        if let Some(wait) = self.state.restarts.wait(Instant::now()) {
            return Err(unavailable(&format!(
                "the worker for kernels of {tenant} has ended again and again, and is not started within {} ms",
                wait.as_millis()
            )));
        }
        let process = WorkerProcess::start(config.command.as_ref());
        self.state.process = Some(process.map_err(|error| {
            self.state.restarts.died(Instant::now());
            unavailable(&format!("its worker cannot be started: {error}"))
        })?);
        let (driver, memory_bytes_max) = (driver.clone(), config.memory_bytes_max);
        let answer = self.prepare(&Request::Open { driver, ordinal: *ordinal, memory_bytes_max })?;
        if !matches!(answer, Answer::Done) {
            self.end(&format!("{answer:?}"));
        }
        self.expect(answer)?;
        info!(%tenant, ordinal, "a worker for kernels was started");
        Ok(())
    }

    /// Have the worker ready for something, wanted or not: a start that is broken off would be begun anew by the next call, and never be over.
    fn prepare(&mut self, request: &Request) -> Result<Answer, InferenceError> {
        let called = self.call(request, START_TIME_MAX, &Interrupt::default());
        called.map_err(|error| match error {
            CallError::OverTime(time_max) => unavailable(&format!(
                "its worker took longer than {} ms to start, or to load its kernels",
                time_max.as_millis()
            )),
            error => unavailable(&error.to_string()),
        })
    }

    fn call(
        &mut self,
        request: &Request,
        time_max: Duration,
        interrupt: &Interrupt,
    ) -> Result<Answer, CallError> {
        let process = self.state.process.as_mut().ok_or_else(|| std::io::Error::other("it is not there"))?;
        let called = process.call(request, time_max, interrupt);
        if let Err(error) = &called {
            self.end(&error.to_string());
        }
        called
    }

    /// What an answer means to whoever has called.
    fn expect(&mut self, answer: Answer) -> Result<Answer, InferenceError> {
        match answer {
            Answer::Done | Answer::Ran { .. } => Ok(answer),
            Answer::Refused(why) => Err(InferenceError::Refused(why.into())),
            Answer::OutOfMemory(why) => Err(InferenceError::RunOutOfMemory(why.into())),
            Answer::Failed(why) => Err(InferenceError::Run(why.into())),
            Answer::Lost(why) => {
                self.end(&why);
                Err(unavailable(&format!("a kernel has lost its worker the device: {why}")))
            }
        }
    }

    /// The process is of no use any more.
    fn end(&mut self, why: &str) {
        let Worker { tenant, ordinal, .. } = self.worker;
        warn!(%tenant, ordinal, why, "a worker for kernels has ended");
        self.state.process = None;
        self.state.restarts.died(Instant::now());
        self.state.loaded.clear();
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let state = std::mem::take(&mut self.state);
        if let Some(process) = &state.process {
            // What this run has left there is of no use to the next.
            let is_large = process.memory.metadata().is_ok_and(|memory| memory.len() > MEMORY_BYTES_KEPT);
            if is_large {
                let _ = process.memory.set_len(0);
            }
        }
        *self.worker.lock() = Some(state);
        self.worker.returned.notify_one();
    }
}

fn unavailable(why: &str) -> InferenceError {
    InferenceError::Unavailable(format!("the kernel graph did not run: {why}; try again").into())
}
