//! Worker of one tenant on one device, as seen by the node: a process that the next run starts if
//! it is not running.

use super::KernelGraphConfig;
use super::message::{KernelGraphReply, KernelGraphRequest};
use super::process::{GraphCallError, WorkerProcess};
use parking_lot::{Condvar, Mutex};
use std::collections::HashSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tracing::{info, warn};
use weir_device::Device;
use weir_inference::{InferenceError, Interrupt};
use weir_types::TenantId;
use weir_worker::{MEMORY_BYTES_KEPT, Restarts, release_memory_beyond};

/// Maximum time for a worker to start and open its device, and to load a graph, which includes the
/// driver's compilation of PTX.
const START_TIME_MAX: Duration = Duration::from_secs(30);
/// Interval at which a caller that waits for its turn checks its interrupt.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Worker of a tenant. The process ends when the last reference is dropped.
pub(crate) struct GraphWorker {
    config: Arc<KernelGraphConfig>,
    driver: PathBuf,
    ordinal: u32,
    tenant: TenantId,
    /// Limit of the bytes of a run's inputs, and of its outputs.
    tensor_bytes_max: u64,
    /// Counter for unique graph numbers.
    graphs: AtomicU64,
    /// `None` while a caller holds the turn.
    state: Mutex<Option<GraphWorkerState>>,
    returned: Condvar,
    /// Unloaded graphs, which the next run reports to the process.
    unneeded: Mutex<Vec<u64>>,
}

/// State of the worker.
#[derive(Default)]
struct GraphWorkerState {
    process: Option<WorkerProcess>,
    /// Graphs loaded in the process.
    loaded: HashSet<u64>,
    restarts: Restarts,
}

/// Exclusive access to the worker, returned on drop.
pub(super) struct GraphWorkerGuard<'a> {
    worker: &'a GraphWorker,
    interrupt: &'a Interrupt,
    state: GraphWorkerState,
}

impl GraphWorker {
    pub(super) fn new(
        config: Arc<KernelGraphConfig>,
        driver: PathBuf,
        ordinal: u32,
        tenant: TenantId,
        tensor_bytes_max: u64,
    ) -> Self {
        let graphs = AtomicU64::new(0);
        let state = Mutex::new(Some(GraphWorkerState::default()));
        let returned = Condvar::new();
        let unneeded = Mutex::default();
        Self { config, driver, ordinal, tenant, tensor_bytes_max, graphs, state, returned, unneeded }
    }

    /// Returns the number for a new graph.
    pub(super) fn number(&self) -> u64 {
        self.graphs.fetch_add(1, Ordering::Relaxed)
    }

    /// Waits for a turn, until the interrupt.
    pub(super) fn turn<'a>(
        &'a self,
        interrupt: &'a Interrupt,
    ) -> Result<GraphWorkerGuard<'a>, InferenceError> {
        let mut state = self.state.lock();
        loop {
            if let Some(state) = state.take() {
                return Ok(GraphWorkerGuard { worker: self, interrupt, state });
            }
            if interrupt.reason().is_some() {
                return Err(InferenceError::Cancelled);
            }
            self.returned.wait_for(&mut state, LOOK_EVERY);
        }
    }

    /// Schedules a graph for unloading.
    pub(super) fn forget(&self, graph: u64) {
        self.unneeded.lock().push(graph);
    }

    fn take_unneeded(&self) -> Vec<u64> {
        std::mem::take(&mut *self.unneeded.lock())
    }
}

impl GraphWorkerGuard<'_> {
    /// Returns the memory for tensors, which exists once a graph is loaded.
    pub(super) fn memory(&self) -> Result<&File, InferenceError> {
        let process = self.state.process.as_ref();
        process.map(|process| &process.memory).ok_or_else(|| unavailable("its worker is not running"))
    }

    /// Loads a graph, and starts the process first if necessary.
    pub(super) fn ready(&mut self, graph: u64, file: &Path) -> Result<(), InferenceError> {
        if self.state.process.is_none() {
            self.start()?;
        }
        for unneeded in self.worker.take_unneeded() {
            if self.state.loaded.remove(&unneeded) {
                self.prepare(&KernelGraphRequest::Forget { graph: unneeded })?;
            }
        }
        if self.state.loaded.contains(&graph) {
            return Ok(());
        }
        match self.prepare(&KernelGraphRequest::Load { graph, file: file.to_owned() })? {
            KernelGraphReply::Failed(why) => {
                Err(InferenceError::Run(format!("the device does not take the kernels: {why}").into()))
            }
            answer => self.expect(answer).map(|_| _ = self.state.loaded.insert(graph)),
        }
    }

    /// Runs a loaded graph, and returns the answer of a successful run.
    pub(super) fn run(&mut self, request: &KernelGraphRequest) -> Result<KernelGraphReply, InferenceError> {
        let called = self.call(request, self.worker.config.run_time_max, self.interrupt);
        let answer = called.map_err(|error| match error {
            GraphCallError::Interrupted => InferenceError::Cancelled,
            GraphCallError::OverTime(time_max) => InferenceError::WorkerLost(
                format!(
                    "the run took longer than {} ms (kernel_graphs.run_wall_ms_max)",
                    time_max.as_millis()
                )
                .into(),
            ),
            error => InferenceError::WorkerLost(error.to_string().into()),
        })?;
        if let KernelGraphReply::Lost(why) = &answer {
            self.end(why);
            return Err(InferenceError::WorkerLost(format!("a kernel has lost the device: {why}").into()));
        }
        let answer = self.expect(answer)?;
        self.state.restarts.worked();
        Ok(answer)
    }

    fn start(&mut self) -> Result<(), InferenceError> {
        let GraphWorker { config, driver, ordinal, tenant, tensor_bytes_max, .. } = self.worker;
        if let Some(wait) = self.state.restarts.wait(Instant::now()) {
            return Err(unavailable(&format!(
                "the worker for kernels of {tenant} has ended again and again, and is not started within {} ms",
                wait.as_millis()
            )));
        }
        let name = format!("kernel graphs of {tenant} on {}", Device::Cuda { ordinal: *ordinal });
        let process = WorkerProcess::start(config.command.as_ref(), *tensor_bytes_max, name);
        self.state.process = Some(process.map_err(|error| {
            self.state.restarts.died(Instant::now());
            unavailable(&format!("its worker cannot be started: {error}"))
        })?);
        let driver = driver.clone();
        let memory_bytes_max = config.memory_bytes_max;
        let answer =
            self.prepare(&KernelGraphRequest::Open { driver, ordinal: *ordinal, memory_bytes_max })?;
        if !matches!(answer, KernelGraphReply::Done) {
            self.end(&format!("{answer:?}"));
        }
        self.expect(answer)?;
        info!(%tenant, ordinal, "kernel graph worker started");
        Ok(())
    }

    /// Sends a preparatory request that cannot be interrupted. If it could, the next call would
    /// restart an interrupted start, which might then never complete.
    fn prepare(&mut self, request: &KernelGraphRequest) -> Result<KernelGraphReply, InferenceError> {
        let called = self.call(request, START_TIME_MAX, &Interrupt::default());
        called.map_err(|error| match error {
            GraphCallError::OverTime(time_max) => unavailable(&format!(
                "its worker took longer than {} ms to start, or to load its kernels",
                time_max.as_millis()
            )),
            error => unavailable(&error.to_string()),
        })
    }

    fn call(
        &mut self,
        request: &KernelGraphRequest,
        time_max: Duration,
        interrupt: &Interrupt,
    ) -> Result<KernelGraphReply, GraphCallError> {
        let process =
            self.state.process.as_mut().ok_or_else(|| std::io::Error::other("it is not running"))?;
        let called = process.call(request, time_max, interrupt);
        if let Err(error) = &called {
            self.end(&error.to_string());
        }
        called
    }

    /// Maps an answer to the error that the caller gets.
    fn expect(&mut self, answer: KernelGraphReply) -> Result<KernelGraphReply, InferenceError> {
        match answer {
            KernelGraphReply::Done | KernelGraphReply::Ran { .. } => Ok(answer),
            KernelGraphReply::Refused(why) => Err(InferenceError::Refused(why.into())),
            KernelGraphReply::OutOfMemory(why) => Err(InferenceError::RunOutOfMemory(why.into())),
            KernelGraphReply::Failed(why) => Err(InferenceError::Run(why.into())),
            KernelGraphReply::Lost(why) => {
                self.end(&why);
                Err(unavailable(&format!("its worker has lost the device: {why}")))
            }
        }
    }

    /// Discards the process after a failure.
    fn end(&mut self, why: &str) {
        let GraphWorker { tenant, ordinal, .. } = self.worker;
        warn!(%tenant, ordinal, why, "kernel graph worker ended");
        self.state.process = None;
        self.state.restarts.died(Instant::now());
        self.state.loaded.clear();
    }
}

impl Drop for GraphWorkerGuard<'_> {
    fn drop(&mut self) {
        let state = std::mem::take(&mut self.state);
        if let Some(process) = &state.process {
            // The data of this run is useless to the next run.
            release_memory_beyond(&process.memory, MEMORY_BYTES_KEPT);
        }
        *self.worker.state.lock() = Some(state);
        self.worker.returned.notify_one();
    }
}

fn unavailable(why: &str) -> InferenceError {
    InferenceError::Unavailable(format!("the kernel graph did not run: {why}; try again").into())
}
