//! Runs models of the CPU in worker processes. A hostile model can end its worker, but not the
//! node, and cannot reach the tensors of other tenants.
//!
//! ```text
//!   node                                           worker: a process of the same executable
//!   Workers ──WorkerHost per tenant──► restarts    ONNX Runtime, the models of one tenant
//!   loader, device threads ──socket──►             a thread: load, session, run...
//!                          ──shared memory──►      inputs and outputs
//!   control ──connections, cancellations──►        main thread; it ends with the node
//!   WorkerFolder ──links──►                        the files of its models, and no others
//! ```
//!
//! A worker ends when it dies, when a run exceeds its time limit, or when the last of its models is
//! unloaded. Whatever ran in it fails with [`InferenceError::WorkerLost`]; the next run of each
//! model starts a new worker and loads the model there. A model that ran when a worker died is
//! suspect: it gets a separate worker until a run in that worker has succeeded. After two deaths in
//! a row, the model is quarantined ([`Deaths`]).

mod deaths;
mod folder;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod host;
mod message;
mod model;

mod serve;
pub use serve::{CPU_WORKER_COMMAND, cpu_worker_main};

use crate::store::WeightStore;
use deaths::Deaths;
use folder::WorkerFolder;
use host::WorkerHost;
use message::{CpuWorkerReply, CpuWorkerRequest, WorkerSettings};
use model::CpuWorkerModel;
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tracing::warn;
use weir_device::Arena;
use weir_inference::{InferenceError, Interrupt, Model, ModelKey, ModelSource};
use weir_types::TenantId;
use weir_worker::{
    ConnectionPool, Control, InPlaceInputs, PooledConnection, Process, WorkerCallError, WorkerProgram,
    command, wait_for_end,
};

/// Maximum time for a worker to start and to load ONNX Runtime.
const START_TIME_MAX: Duration = Duration::from_secs(60);
/// Maximum time of a short request, such as closing a session.
const CALL_TIME_MAX: Duration = Duration::from_secs(30);
/// Connections in addition to those of the run slots: for loads, unloads and reports.
const CONNECTIONS_BESIDE: usize = 4;

/// Address space that a worker reserves for code, and for the copies of weights during a load.
const RESERVED_BYTES: u64 = 4 << 30;
/// Open files of a connection: its socket, its memory, and a file that a load reads.
const FILES_PER_CONNECTION: u64 = 4;
/// Open files in addition to those of the run slots.
const RESERVED_FILES: u64 = 256;
/// Address space that the C library reserves for the stack and the memory of a thread.
const THREAD_BYTES: u64 = 256 << 20;

/// Settings of the workers that run models on the CPU.
#[derive(Debug, Clone)]
pub struct CpuWorkerConfig {
    /// Worker program and its arguments; `None`: the current program with [`CPU_WORKER_COMMAND`].
    pub command: Option<WorkerProgram>,
    /// Folder for the workers' folders, on the file system of the models' files.
    pub folder: PathBuf,
    /// Prefix of the names of the workers' folders.
    pub folder_prefix: String,
    /// Concurrent runs of the device.
    pub slots: usize,
    /// Maximum time of a run.
    pub run_time_max: Duration,
    /// Limit of the memory of resident models.
    pub memory_bytes_max: u64,
    /// Limit of the memory of a worker's runs for intermediate tensors.
    pub run_memory_bytes_max: u64,
    /// Limit of the memory for the inputs and outputs of a worker's runs.
    pub tensor_bytes_max: u64,
    /// Whether a worker ends at its start if the system does not provide a layer of confinement.
    pub require_confinement: bool,
}

impl CpuWorkerConfig {
    /// Limit of a worker's open files: the socket and memory of each connection, and the files of a
    /// model while it is loaded.
    fn open_files_max(&self) -> u64 {
        (self.slots as u64).saturating_mul(FILES_PER_CONNECTION).saturating_add(RESERVED_FILES)
    }

    /// Limit of a worker's address space: models, tensors, and reservations of the C library and
    /// ONNX Runtime.
    fn address_space_bytes_max(&self) -> u64 {
        let connections = self.slots.saturating_add(CONNECTIONS_BESIDE) as u64;
        [self.memory_bytes_max, self.run_memory_bytes_max, self.tensor_bytes_max, RESERVED_BYTES]
            .into_iter()
            .fold(connections.saturating_mul(THREAD_BYTES), u64::saturating_add)
    }
}

/// Workers of a node, by tenant.
pub(crate) struct Workers {
    shared: Arc<WorkersShared>,
    hosts: Mutex<HashMap<Tenancy, Weak<WorkerHost>>>,
}

/// Models that share a worker: those of a tenant, or one suspect model.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Tenancy {
    tenant: TenantId,
    suspect: Option<ModelKey>,
}

/// State of all workers.
struct WorkersShared {
    config: CpuWorkerConfig,
    library: PathBuf,
    deaths: Deaths,
}

impl Workers {
    /// Starts no process. `library` is the path of ONNX Runtime.
    pub(crate) fn new(config: CpuWorkerConfig, library: PathBuf) -> Self {
        let shared = Arc::new(WorkersShared { config, library, deaths: Deaths::default() });
        Self { shared, hosts: Mutex::default() }
    }

    /// Loads a model in the worker of its tenant, which starts if it is not running. Blocks.
    pub(crate) fn load(
        self: &Arc<Self>,
        source: &ModelSource,
        arena: &Arena,
        store: &WeightStore,
    ) -> Result<Box<dyn Model>, InferenceError> {
        Ok(Box::new(CpuWorkerModel::load(self, source, arena, store)?))
    }

    /// Memory that the runs of all workers hold for intermediate tensors. Blocks.
    pub(crate) fn run_memory_bytes(&self) -> u64 {
        let report = |worker: Arc<Worker>| match worker.call(&CpuWorkerRequest::Memory, CALL_TIME_MAX) {
            Ok(CpuWorkerReply::Memory { bytes }) => bytes,
            _ => 0,
        };
        self.running().into_iter().map(report).sum()
    }

    /// Makes all workers free unused memory. Blocks.
    pub(crate) fn trim(&self) {
        self.running().iter().for_each(|worker| worker.release(&CpuWorkerRequest::Trim));
    }

    /// Why a model is quarantined, if it is.
    pub(crate) fn quarantine(&self, key: &ModelKey) -> Option<Arc<str>> {
        self.shared.deaths.quarantine(key)
    }

    /// Ends the quarantine of a model. Returns whether the model was quarantined.
    pub(crate) fn release(&self, key: &ModelKey) -> bool {
        self.shared.deaths.release(key)
    }

    /// The host of a model: its tenant's, or its own if the model is suspect.
    fn host(&self, key: &ModelKey) -> Arc<WorkerHost> {
        let suspect = self.shared.deaths.is_suspect(key).then(|| key.clone());
        let tenancy = Tenancy { tenant: key.id.tenant.clone(), suspect };
        let mut hosts = self.hosts.lock();
        if let Some(host) = hosts.get(&tenancy).and_then(Weak::upgrade) {
            return host;
        }
        hosts.retain(|_, host| host.strong_count() > 0);
        let host = Arc::new(WorkerHost::new(&self.shared, key.id.tenant.clone()));
        hosts.insert(tenancy, Arc::downgrade(&host));
        host
    }

    fn running(&self) -> Vec<Arc<Worker>> {
        let hosts: Vec<_> = self.hosts.lock().values().filter_map(Weak::upgrade).collect();
        hosts.iter().filter_map(|host| host.running()).collect()
    }
}

/// Process that runs models of one tenant. Killed on drop.
struct Worker {
    shared: Arc<WorkersShared>,
    tenant: TenantId,
    process: Mutex<Process>,
    control: Control,
    connections: ConnectionPool,
    folder: WorkerFolder,
    /// Counter for unique numbers of models, sessions and runs.
    numbers: AtomicU64,
    /// Models that are being loaded or run, by the number of the request.
    active: Mutex<HashMap<u64, ModelKey>>,
    /// Set after the first successful run.
    has_worked: AtomicBool,
    /// Reason of the worker's end, once it has ended.
    ended: OnceLock<Arc<str>>,
}

/// A load or run in progress, until this drops. An abandoned run stays in progress until its
/// pending reply arrives.
#[derive(Default)]
struct Active(Option<(Weak<Worker>, u64)>);

impl InPlaceInputs for Active {}

impl Drop for Active {
    fn drop(&mut self) {
        if let Some((worker, number)) = self.0.take()
            && let Some(worker) = worker.upgrade()
        {
            worker.active().remove(&number);
        }
    }
}

impl Worker {
    /// Starts a worker with an open runtime and no models. Blocks.
    fn start(shared: &Arc<WorkersShared>, tenant: &TenantId) -> Result<Arc<Self>, InferenceError> {
        let cannot = |error: io::Error| {
            InferenceError::Unavailable(format!("a worker for models cannot be started: {error}").into())
        };
        let config = &shared.config;
        let started = Control::pair().and_then(|(control, theirs)| {
            let folder = WorkerFolder::create(&config.folder, &config.folder_prefix)?;
            let start = WorkerSettings {
                tenant: tenant.clone(),
                library: shared.library.clone(),
                folder: std::path::absolute(folder.path())?,
                open_files_max: config.open_files_max(),
                memory_bytes_max: config.address_space_bytes_max(),
                run_memory_bytes_max: config.run_memory_bytes_max,
                tensor_bytes_max: config.tensor_bytes_max,
                require_confinement: config.require_confinement,
            };
            let mut command = command(config.command.as_ref(), CPU_WORKER_COMMAND);
            command.arg(serde_json::to_string(&start)?).stdin(theirs);
            let process = Process::start(&mut command, format!("models of {tenant}"))?;
            Ok((control, folder, process))
        });
        let (control, folder, process) = started.map_err(cannot)?;
        let worker = Arc::new(Self {
            shared: shared.clone(),
            tenant: tenant.clone(),
            process: Mutex::new(process),
            control,
            connections: ConnectionPool::new(config.slots.saturating_add(CONNECTIONS_BESIDE)),
            folder,
            numbers: AtomicU64::new(0),
            active: Mutex::default(),
            has_worked: AtomicBool::new(false),
            ended: OnceLock::new(),
        });
        worker.watch().map_err(cannot)?;
        worker.request(&CpuWorkerRequest::Open, START_TIME_MAX)?;
        Ok(worker)
    }

    /// Watches for the end of the process. The thread ends with the process.
    fn watch(self: &Arc<Self>) -> io::Result<()> {
        let control = self.control.watched()?;
        let watched = Arc::downgrade(self);
        let watch = move || {
            wait_for_end(&control);
            if let Some(worker) = watched.upgrade() {
                worker.failed(WorkerCallError::Ended(io::ErrorKind::UnexpectedEof.into()), None);
            }
        };
        std::thread::Builder::new().name("weir-worker-end".to_owned()).stack_size(256 << 10).spawn(watch)?;
        Ok(())
    }

    /// Records a load or run of a model, which is suspect if the worker dies before the returned
    /// guard drops.
    fn begin(self: &Arc<Self>, key: &ModelKey) -> (Active, u64) {
        let number = self.number();
        self.active().insert(number, key.clone());
        (Active(Some((Arc::downgrade(self), number))), number)
    }

    /// Sends a request that cannot be interrupted, and expects no other answer than that it is
    /// done.
    fn request(&self, request: &CpuWorkerRequest, time_max: Duration) -> Result<(), InferenceError> {
        match self.call(request, time_max)? {
            CpuWorkerReply::Done => Ok(()),
            answer => Err(self.senseless(&answer)),
        }
    }

    /// Sends a request that cannot be interrupted.
    fn call(&self, request: &CpuWorkerRequest, time_max: Duration) -> Result<CpuWorkerReply, InferenceError> {
        let wanted = Interrupt::default();
        let mut line = self.line(&wanted)?;
        let answered = line.connection().and_then(|connection| {
            connection.settle(&wanted)?;
            connection.call(request, &mut (), time_max, &wanted)
        });
        self.understand(answered, None)
    }

    /// Takes a connection, and waits for one until the interrupt.
    fn line(&self, interrupt: &Interrupt) -> Result<PooledConnection<'_>, InferenceError> {
        if let Some(why) = self.ended.get() {
            return Err(InferenceError::WorkerLost(why.clone()));
        }
        let line = self
            .connections
            .take(interrupt, || self.control.connect(self.shared.config.tensor_bytes_max, None));
        line.map_err(|error| self.failed(error, None))
    }

    /// Sends a release request. A worker that has ended has already released everything.
    fn release(&self, request: &CpuWorkerRequest) {
        if !self.has_ended() {
            // On failure the worker has ended, which has already been reported.
            let _ = self.call(request, CALL_TIME_MAX);
        }
    }

    /// Maps an answer to a result. `culprit` is the model that a time limit applies to.
    fn understand(
        &self,
        answered: Result<CpuWorkerReply, WorkerCallError>,
        culprit: Option<&ModelKey>,
    ) -> Result<CpuWorkerReply, InferenceError> {
        match answered.map_err(|error| self.failed(error, culprit))? {
            CpuWorkerReply::Failed(failure) => Err(failure.into_error()),
            answer => Ok(answer),
        }
    }

    /// Handles a call without an answer. Except after a cancellation, the worker ends.
    fn failed(&self, error: WorkerCallError, culprit: Option<&ModelKey>) -> InferenceError {
        match error {
            WorkerCallError::Unwanted => InferenceError::Cancelled,
            WorkerCallError::Ended(_) if self.has_ended() => self.end("it was stopped", None),
            WorkerCallError::Ended(error) => {
                let how = self.process().last_words();
                self.end(&format!("{how} ({error})"), None)
            }
            WorkerCallError::OverTime(time_max) => {
                let over = time_max.as_millis();
                let what = match time_max == self.shared.config.run_time_max {
                    true => format!("a run took longer than {over} ms (models.run_wall_ms_max)"),
                    false => format!("it did not answer within {over} ms"),
                };
                self.end(&what, culprit)
            }
        }
    }

    fn senseless(&self, answer: &impl std::fmt::Debug) -> InferenceError {
        self.end(&format!("unexpected reply: {answer:?}"), None)
    }

    /// Ends the worker, and notifies all waiting callers. The models that it ran, or the `culprit`
    /// alone, become suspect. Returns the error for callers, with the reason that was given first.
    fn end(&self, why: &str, culprit: Option<&ModelKey>) -> InferenceError {
        let why = self.ended.get_or_init(|| {
            let suspects = match culprit {
                Some(key) => vec![key.clone()],
                None => self.suspects(),
            };
            let models: Vec<_> = suspects.iter().map(|key| key.id.to_string()).collect();
            warn!(tenant = %self.tenant, why, models = models.join(", "), "model worker ended");
            self.shared.deaths.died(&suspects, why);
            why.into()
        });
        self.process().kill();
        InferenceError::WorkerLost(why.clone())
    }

    /// Models that are being loaded or run, each once.
    fn suspects(&self) -> Vec<ModelKey> {
        let mut suspects: Vec<ModelKey> = Vec::new();
        for key in self.active().values() {
            if !suspects.contains(key) {
                suspects.push(key.clone());
            }
        }
        suspects
    }

    fn has_ended(&self) -> bool {
        self.ended.get().is_some()
    }

    /// Records a successful run of a model.
    fn note_ran(&self, key: &ModelKey) {
        self.has_worked.store(true, Ordering::Relaxed);
        self.shared.deaths.ran(key);
    }

    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    fn active(&self) -> MutexGuard<'_, HashMap<u64, ModelKey>> {
        self.active.lock()
    }

    fn process(&self) -> MutexGuard<'_, Process> {
        self.process.lock()
    }
}
