//! The worker of a device: the process that runs the models of all tenants there, as its node sees it.
//!
//! ```text
//!   node                                         worker
//!   Cuda ──starts, and starts anew──►            a process of this same program
//!   a device thread ──Connection: socket──►      a thread: load, session, run...
//!                   ──Connection: memory──►      outputs and small inputs, which both read and write as a file
//!   the arena ──its file──►                      large inputs, which the worker reads where they lie
//!   control ──one way: connections, cancels──►   its main thread, which ends the process with the node
//!   a thread ──Connection──►                     which outputs that have stayed there nobody has any more
//!   the run of another worker ──Export──►        keeps such an output where it is, and gives the files of its blocks, which go there with the run
//!   a thread ──Export, and to a sibling──►       which outputs that have stayed make room, and go to another worker
//! ```
//!
//! A fault of a device ends everything that a process has there, and the driver gives the process no second chance. So the device is held by a worker, which
//! can be done away with. What ends one: a fault; a run that takes too long; the worker's own death; its node drops it, or ends. After the first three
//! [`Supervisor::restart`] gives the next one, which has nothing loaded.

mod connection;
mod control;
mod message;
pub(super) use message::FILES_MAX;

mod let_go;
mod lines;

mod memory;
pub(super) use memory::HandOvers;
mod reported;
pub(super) use reported::ReportedMemory;
mod export;
mod files;

mod group;
pub use group::GpuGroup;
mod spill;

mod supervisor;
pub(super) use supervisor::Supervisor;

mod model;
pub(super) use model::WorkerModel;
mod session;

mod serve;
pub use serve::{DEVICE_WORKER_COMMAND, device_worker_main};

use super::captured::CaptureFailures;
use super::device::GpuConfig;
use super::process::{Process, Program, command};
use crate::error::InferenceError;
use crate::interrupt::Interrupt;
use crate::value::{DeviceTensor, WeakDeviceTensor};
use connection::CallError;
use control::Control;
use files::Files;
use let_go::LetGo;
use lines::{Lent, Lines};
use message::{Answer, Opened, Request};
use spill::Spill;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tracing::warn;
use weir_device::{Arena, Device};

/// How long a worker may take to start and to have its device.
const START_TIME_MAX: Duration = Duration::from_secs(60);
/// How long it may take for what is done at once: a session, letting go of something.
const CALL_TIME_MAX: Duration = Duration::from_secs(30);
/// Connections beside those of the device's slots: for the loader, for whoever lets go of something, and for what is moved from here and to here.
pub(super) const CONNECTIONS_BESIDE: usize = 6;

/// What a worker is started with.
#[derive(Debug)]
pub(super) struct WorkerConfig {
    pub(super) program: Option<Program>,
    pub(super) driver: PathBuf,
    pub(super) gpu: GpuConfig,
    pub(super) run_time_max: Duration,
    /// What inputs are in, mostly: the worker reads them there.
    pub(super) arena: Arena,
    /// Counts for all workers of the device.
    pub(super) hand_overs: HandOvers,
    /// The same.
    pub(super) capture_failures: CaptureFailures,
    /// What the workers of the device report of its memory.
    pub(super) memory: ReportedMemory,
    /// The devices that make room for each other.
    pub(super) group: GpuGroup,
}

impl WorkerConfig {
    fn device(&self) -> Device {
        Device::Cuda { ordinal: self.gpu.ordinal }
    }
}

/// A process that holds a device. Killed on drop.
pub(super) struct Worker {
    config: Arc<WorkerConfig>,
    /// None once it was waited for.
    process: Mutex<Option<Process>>,
    control: Control,
    /// The arena, to be read.
    arena: File,
    lines: Lines,
    let_go: LetGo,
    spill: Spill,
    /// The tensors that runs have left there, by their numbers.
    left: Mutex<HashMap<u64, WeakDeviceTensor>>,
    /// Counts models, sessions, runs and tensors, to tell them from each other.
    numbers: AtomicU64,
    /// The ordinals of devices whose memory it reads where it lies.
    siblings: Mutex<Vec<u32>>,
    /// Files of those, on their way there.
    files: Files,
    has_worked: AtomicBool,
    /// Why it is of no use any more.
    ended: OnceLock<Arc<str>>,
}

impl Worker {
    /// Start one, and have it take hold of the device; gives what it says of it. Blocks.
    pub(super) fn start(config: &Arc<WorkerConfig>) -> Result<(Arc<Self>, Opened), InferenceError> {
        let started = Control::pair().and_then(|(control, theirs)| {
            let arena = config.arena.share()?;
            let mut command = command(config.program.as_ref(), DEVICE_WORKER_COMMAND);
            // The number is for people who look at processes. The driver keeps what it compiles in the home.
            command.arg(config.device().to_string()).stdin(theirs);
            command.envs(std::env::var_os("HOME").map(|home| ("HOME", home)));
            Ok((control, arena, Process::start(&mut command)?))
        });
        let cannot = |error| format!("{}: its worker cannot be started: {error}", config.device());
        let (control, arena, process) =
            started.map_err(|error| InferenceError::DeviceLost(cannot(error).into()))?;
        let ((let_go, gone), (spill, offered)) = (LetGo::channel(), Spill::channel());
        let worker = Arc::new(Self {
            config: Arc::clone(config),
            process: Mutex::new(Some(process)),
            control,
            arena,
            lines: Lines::new(config.gpu.slots.saturating_add(CONNECTIONS_BESIDE)),
            let_go,
            spill,
            left: Mutex::default(),
            numbers: AtomicU64::new(0),
            siblings: Mutex::default(),
            files: Files::new(FILES_MAX),
            has_worked: AtomicBool::new(false),
            ended: OnceLock::new(),
        });
        let started = let_go::start(&worker, gone).and_then(|()| spill::start(&worker, offered));
        started.map_err(|error| InferenceError::DeviceLost(cannot(error).into()))?;
        let open = Request::Open { driver: config.driver.clone(), gpu: config.gpu.clone() };
        match worker.call(&open, START_TIME_MAX)? {
            Answer::Opened(opened) => {
                *worker.siblings() = opened.siblings.clone();
                config.group.join(&worker);
                Ok((worker, opened))
            }
            answer => Err(worker.senseless(&answer)),
        }
    }

    /// Ask for something that is wanted whatever happens.
    fn call(&self, request: &Request, time_max: Duration) -> Result<Answer, InferenceError> {
        let wanted = Interrupt::default();
        let mut line = self.line(&wanted)?;
        let answered = line.connection().and_then(|connection| {
            connection.settle(&wanted)?;
            connection.call(request, None, time_max, &wanted)
        });
        self.understand(answered)
    }

    /// A connection to ask things over, for as long as the answer is wanted.
    fn line(&self, interrupt: &Interrupt) -> Result<Lent<'_>, InferenceError> {
        if let Some(why) = self.ended.get() {
            return Err(InferenceError::DeviceLost(Arc::clone(why)));
        }
        self.lines.take(interrupt, || self.control.connect(&self.arena)).map_err(|error| self.failed(error))
    }

    /// Have it let go of something; what has ended has let go of everything.
    fn release(&self, request: &Request) {
        if self.ended.get().is_none() {
            // Where that fails the worker has ended, which was told.
            let _ = self.call(request, CALL_TIME_MAX);
        }
    }

    /// Have it give up memory that nobody needs.
    pub(super) fn trim(&self) {
        self.release(&Request::Trim);
    }

    /// What an answer means. Whatever says that the worker is of no use any more ends it.
    fn understand(&self, answered: Result<Answer, CallError>) -> Result<Answer, InferenceError> {
        let answer = answered.map_err(|error| self.failed(error))?;
        if let Some(memory) = answer.memory() {
            self.config.memory.note(memory);
        }
        match answer {
            Answer::Failed { failure, .. } => Err(match failure.into_error() {
                InferenceError::DeviceLost(why) => InferenceError::DeviceLost(self.end(&why)),
                error => error,
            }),
            answer => Ok(answer),
        }
    }

    fn failed(&self, error: CallError) -> InferenceError {
        let why = match error {
            CallError::Unwanted => return InferenceError::Cancelled,
            CallError::Ended(_) if self.ended.get().is_some() => "its worker was stopped".to_owned(),
            CallError::Ended(error) => {
                let how = self.process().as_mut().map(Process::last_words).unwrap_or_default();
                format!("its worker has ended: {how} ({error})")
            }
            CallError::OverTime(time_max) => {
                let setting =
                    if time_max == self.config.run_time_max { " (gpu_run_time_ms_max)" } else { "" };
                format!("its worker took longer than {} ms{setting}, and was stopped", time_max.as_millis())
            }
        };
        InferenceError::DeviceLost(self.end(&why))
    }

    fn senseless(&self, answer: &impl std::fmt::Debug) -> InferenceError {
        InferenceError::DeviceLost(self.end(&format!("its worker gave a senseless answer: {answer:?}")))
    }

    /// It is of no use any more: whoever waits for it is told. Gives why, which is the reason that was given first.
    fn end(&self, why: &str) -> Arc<str> {
        let why = self.ended.get_or_init(|| {
            let device = self.config.device();
            warn!(%device, why, "the worker of a device has ended");
            format!("{device}: {why}").into()
        });
        if let Some(process) = self.process().as_mut() {
            process.kill();
        }
        Arc::clone(why)
    }

    /// Wait until what it held is free.
    fn wait_for_end(&self, time_max: Duration) {
        let process = self.process().take();
        if let Some(process) = process {
            process.end(time_max);
        }
    }

    /// A run has ended as it should.
    fn note_worked(&self) {
        self.has_worked.store(true, Ordering::Relaxed);
    }

    fn has_worked(&self) -> bool {
        self.has_worked.load(Ordering::Relaxed)
    }

    /// Its process has ended, as whoever watches that has found out. Says what that means to those who wait for something.
    fn has_ended(&self) -> InferenceError {
        self.failed(CallError::Ended(io::ErrorKind::UnexpectedEof.into()))
    }

    /// Whether it reads what `other` has where that is.
    fn reads(&self, other: &Self) -> bool {
        self.siblings().contains(&other.config.gpu.ordinal)
    }

    /// It turned out not to read what that device has. Nobody tries again before this one is started anew.
    fn reads_no_more(&self, ordinal: u32, why: &str) {
        let (device, sibling) = (self.config.device(), Device::Cuda { ordinal });
        warn!(%device, %sibling, why, "a device does not read the other's memory: tensors go over the host");
        self.siblings().retain(|sibling| *sibling != ordinal);
    }

    fn siblings(&self) -> MutexGuard<'_, Vec<u32>> {
        self.siblings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A tensor has been left there, by that number.
    fn note_left(&self, number: u64, tensor: &DeviceTensor) {
        self.tensors().insert(number, tensor.downgrade());
    }

    /// Nobody has that tensor any more, or it was moved.
    fn note_gone(&self, number: u64) {
        self.tensors().remove(&number);
    }

    /// The tensor of that number, if somebody has it.
    fn left(&self, number: u64) -> Option<DeviceTensor> {
        let known = self.tensors().get(&number).cloned();
        // Outside the lock: it may be the last handle that drops.
        known?.upgrade()
    }

    fn tensors(&self) -> MutexGuard<'_, HashMap<u64, WeakDeviceTensor>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
