//! Worker of a device, as seen by its node: the process that runs the models of all tenants on the
//! device.
//!
//! ```text
//!   node                                         worker
//!   Cuda ──starts, restarts──►                   a process of the same executable
//!   device thread ──Connection: socket──►        a thread: load, session, run...
//!                 ──Connection: memory──►        outputs and small inputs, in a shared file
//!   arena ──its file──►                          large inputs, which the worker reads in place
//!   control ──connections, cancellations──►      main thread; it ends with the node
//!   release thread ──Connection──►               frees unreferenced device-resident outputs
//!   run of another worker ──Export──►            exports the memory blocks of an output
//!   spill thread ──Export to a peer device──►    outputs that move to another worker
//! ```
//!
//! A device fault destroys the CUDA context of the process, and the driver cannot recover that
//! process. Therefore a replaceable worker process owns the device. A worker ends after a fault,
//! after a run that exceeds its time limit, when the process dies, or when its node drops it or
//! ends. In the first three cases, [`Supervisor::restart`] starts a new worker, which has no models
//! loaded.

mod in_place;
pub(crate) mod message;
pub(crate) use message::FILES_MAX;

mod release;

mod memory;
pub(crate) use memory::HandOvers;
mod reported;
pub(crate) use reported::ReportedMemory;
mod export;
mod files;

mod group;
pub use group::GpuGroup;
mod spill;

mod supervisor;
pub(crate) use supervisor::Supervisor;

mod model;
pub(crate) use model::GpuWorkerModel;
mod session;

mod serve;
pub use serve::{DEVICE_WORKER_COMMAND, device_worker_main};

use crate::captured::CaptureFailures;
use crate::device::GpuConfig;
use crate::process::command;
use files::FileBudget;
use message::{GpuWorkerReply, GpuWorkerRequest, Opened};
use parking_lot::{Mutex, MutexGuard};
use release::ReleaseQueue;
use spill::Spill;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tracing::warn;
use weir_device::{Arena, Device};
use weir_inference::{DeviceTensor, InferenceError, Interrupt, WeakDeviceTensor};
use weir_worker::{ConnectionPool, Control, PooledConnection, Process, WorkerCallError, WorkerProgram};

/// Maximum time for a worker to start and open its device.
const START_TIME_MAX: Duration = Duration::from_secs(60);
/// Maximum time of a short request, such as opening a session or releasing an object.
const CALL_TIME_MAX: Duration = Duration::from_secs(30);
/// Connections in addition to those of the run slots: for loads, for releases, and for moves from
/// and to this device.
pub(crate) const CONNECTIONS_BESIDE: usize = 6;

/// Configuration of a worker.
#[derive(Debug)]
pub(crate) struct WorkerConfig {
    pub(crate) program: Option<WorkerProgram>,
    pub(crate) driver: PathBuf,
    pub(crate) gpu: GpuConfig,
    pub(crate) run_time_max: Duration,
    /// Arena that contains most inputs. The worker reads them in place.
    pub(crate) arena: Arena,
    /// Counters shared by all workers of the device.
    pub(crate) hand_overs: HandOvers,
    /// Counters of failed captures, shared by all workers of the device.
    pub(crate) capture_failures: CaptureFailures,
    /// Memory of the device, as reported by its workers.
    pub(crate) memory: ReportedMemory,
    /// Devices that can spill intermediates to each other.
    pub(crate) group: GpuGroup,
}

impl WorkerConfig {
    fn device(&self) -> Device {
        Device::Cuda { ordinal: self.gpu.ordinal }
    }
}

/// Process that owns a device. Killed on drop.
pub(crate) struct DeviceWorker {
    config: Arc<WorkerConfig>,
    /// `None` after the process was reaped.
    process: Mutex<Option<Process>>,
    control: Control,
    /// File of the arena, for reading.
    arena: File,
    connections: ConnectionPool,
    let_go: ReleaseQueue,
    spill: Spill,
    /// Device-resident tensors by number.
    left: Mutex<HashMap<u64, WeakDeviceTensor>>,
    /// Counter for unique numbers of models, sessions, runs and tensors.
    numbers: AtomicU64,
    /// Ordinals of the devices whose memory this device can read.
    siblings: Mutex<Vec<u32>>,
    /// Budget for open files of other devices' memory on their way to this worker.
    files: FileBudget,
    has_worked: AtomicBool,
    /// Reason of the worker's end, once it has ended.
    ended: OnceLock<Arc<str>>,
}

impl DeviceWorker {
    /// Starts a worker that opens the device, and returns its description of the device. Blocks.
    pub(crate) fn start(config: &Arc<WorkerConfig>) -> Result<(Arc<Self>, Opened), InferenceError> {
        let started = Control::pair().and_then(|(control, theirs)| {
            let arena = config.arena.share()?;
            let mut command = command(config.program.as_ref(), DEVICE_WORKER_COMMAND);
            // The argument is only for process listings. The driver's compilation cache needs HOME.
            command.arg(config.device().to_string()).stdin(theirs);
            command.envs(std::env::var_os("HOME").map(|home| ("HOME", home)));
            Ok((control, arena, Process::start(&mut command, config.device().to_string())?))
        });
        let cannot = |error| format!("{}: its worker cannot be started: {error}", config.device());
        let (control, arena, process) =
            started.map_err(|error| InferenceError::DeviceLost(cannot(error).into()))?;
        let ((let_go, gone), (spill, offered)) = (ReleaseQueue::channel(), Spill::channel());
        let worker = Arc::new(Self {
            config: config.clone(),
            process: Mutex::new(Some(process)),
            control,
            arena,
            connections: ConnectionPool::new(config.gpu.slots.saturating_add(CONNECTIONS_BESIDE)),
            let_go,
            spill,
            left: Mutex::default(),
            numbers: AtomicU64::new(0),
            siblings: Mutex::default(),
            files: FileBudget::new(FILES_MAX),
            has_worked: AtomicBool::new(false),
            ended: OnceLock::new(),
        });
        let started = release::start(&worker, gone).and_then(|()| spill::start(&worker, offered));
        started.map_err(|error| InferenceError::DeviceLost(cannot(error).into()))?;
        let open = GpuWorkerRequest::Open { driver: config.driver.clone(), gpu: config.gpu.clone() };
        match worker.call(&open, START_TIME_MAX)? {
            GpuWorkerReply::Opened(opened) => {
                *worker.siblings() = opened.siblings.clone();
                config.group.join(&worker);
                Ok((worker, opened))
            }
            answer => Err(worker.senseless(&answer)),
        }
    }

    /// Sends a request that cannot be interrupted.
    fn call(&self, request: &GpuWorkerRequest, time_max: Duration) -> Result<GpuWorkerReply, InferenceError> {
        let wanted = Interrupt::default();
        let mut line = self.line(&wanted)?;
        let answered = line.connection().and_then(|connection| {
            connection.settle(&wanted)?;
            connection.call(request, &mut (), time_max, &wanted)
        });
        self.understand(answered)
    }

    /// Takes a connection, and waits for one until the interrupt.
    fn line(&self, interrupt: &Interrupt) -> Result<PooledConnection<'_>, InferenceError> {
        if let Some(why) = self.ended.get() {
            return Err(InferenceError::DeviceLost(why.clone()));
        }
        self.connections
            .take(interrupt, || self.control.connect(self.config.arena.bytes_max(), Some(&self.arena)))
            .map_err(|error| self.failed(error))
    }

    /// Sends a release request. A worker that has ended has already released everything.
    fn release(&self, request: &GpuWorkerRequest) {
        if self.ended.get().is_none() {
            // On failure the worker has ended, which has already been reported.
            let _ = self.call(request, CALL_TIME_MAX);
        }
    }

    /// Makes the worker free unused memory.
    pub(crate) fn trim(&self) {
        self.release(&GpuWorkerRequest::Trim);
    }

    /// Maps an answer to a result. An answer that shows that the worker is unusable ends the
    /// worker.
    fn understand(
        &self,
        answered: Result<GpuWorkerReply, WorkerCallError>,
    ) -> Result<GpuWorkerReply, InferenceError> {
        let answer = answered.map_err(|error| self.failed(error))?;
        if let Some(memory) = answer.memory() {
            self.config.memory.note(memory);
        }
        match answer {
            GpuWorkerReply::Failed { failure, .. } => Err(match failure.into_error() {
                InferenceError::DeviceLost(why) => InferenceError::DeviceLost(self.end(&why)),
                error => error,
            }),
            answer => Ok(answer),
        }
    }

    fn failed(&self, error: WorkerCallError) -> InferenceError {
        let why = match error {
            WorkerCallError::Unwanted => return InferenceError::Cancelled,
            WorkerCallError::Ended(_) if self.ended.get().is_some() => "its worker was stopped".to_owned(),
            WorkerCallError::Ended(error) => {
                let how = self.process().as_mut().map(Process::last_words).unwrap_or_default();
                format!("its worker has ended: {how} ({error})")
            }
            WorkerCallError::OverTime(time_max) => {
                let setting =
                    if time_max == self.config.run_time_max { " (gpu.run_wall_ms_max)" } else { "" };
                format!("its worker took longer than {} ms{setting}, and was stopped", time_max.as_millis())
            }
        };
        InferenceError::DeviceLost(self.end(&why))
    }

    fn senseless(&self, answer: &impl std::fmt::Debug) -> InferenceError {
        InferenceError::DeviceLost(self.end(&format!("unexpected reply of its worker: {answer:?}")))
    }

    /// Ends the worker, and notifies all waiting callers. Returns the reason that was given first.
    fn end(&self, why: &str) -> Arc<str> {
        let why = self.ended.get_or_init(|| {
            let device = self.config.device();
            warn!(%device, why, "device worker ended");
            format!("{device}: {why}").into()
        });
        if let Some(process) = self.process().as_mut() {
            process.kill();
        }
        why.clone()
    }

    /// Waits until the device memory of the worker is free.
    fn wait_for_end(&self, time_max: Duration) {
        let process = self.process().take();
        if let Some(process) = process {
            process.end(time_max);
        }
    }

    /// Records a successful run.
    fn note_worked(&self) {
        self.has_worked.store(true, Ordering::Relaxed);
    }

    fn has_worked(&self) -> bool {
        self.has_worked.load(Ordering::Relaxed)
    }

    /// Handles the end of the process, and returns the error for waiting callers.
    fn has_ended(&self) -> InferenceError {
        self.failed(WorkerCallError::Ended(io::ErrorKind::UnexpectedEof.into()))
    }

    /// Returns whether this worker can read the device memory of `other`.
    fn reads(&self, other: &Self) -> bool {
        self.siblings().contains(&other.config.gpu.ordinal)
    }

    /// Records that this worker cannot read the memory of a device. No further attempt is made
    /// until the worker is restarted.
    fn reads_no_more(&self, ordinal: u32, why: &str) {
        let device = self.config.device();
        let sibling = Device::Cuda { ordinal };
        warn!(%device, %sibling, why, "peer access between devices failed: tensors pass through the host");
        self.siblings().retain(|sibling| *sibling != ordinal);
    }

    fn siblings(&self) -> MutexGuard<'_, Vec<u32>> {
        self.siblings.lock()
    }

    /// Records a device-resident tensor of this worker.
    fn note_left(&self, number: u64, tensor: &DeviceTensor) {
        self.tensors().insert(number, tensor.downgrade());
    }

    /// Forgets a tensor that was released or moved.
    fn note_gone(&self, number: u64) {
        self.tensors().remove(&number);
    }

    /// Returns the tensor with this number, if it is still referenced.
    fn left(&self, number: u64) -> Option<DeviceTensor> {
        let known = self.tensors().get(&number).cloned();
        // Upgrade outside the lock, because dropping the last handle takes the lock.
        known?.upgrade()
    }

    fn tensors(&self) -> MutexGuard<'_, HashMap<u64, WeakDeviceTensor>> {
        self.left.lock()
    }

    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock()
    }
}
