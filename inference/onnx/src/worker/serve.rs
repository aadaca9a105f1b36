//! Worker process for models on the CPU: the entry point of a process started with
//! [`CPU_WORKER_COMMAND`].

use super::message::{CpuWorkerReply, CpuWorkerRequest, WorkerSettings};
use crate::runtime::Runtime;
use crate::session::CpuModel;
use crate::store::WeightStore;
use parking_lot::Mutex;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use weir_child::{Confinement, confine_access, confine_process};
use weir_device::Arena;
use weir_inference::{InferenceError, Job, Meter, Model, ModelKey, ModelSource, Prepared, Session};
use weir_types::{Batching, ModelId, Signature};
use weir_worker::{
    ActiveRuns, ConnectionFiles, ControlMessage, Forecast, ServedConnection, TensorLocation, WireError,
    end_at_once, read_tensor, receive_control, write_tensors,
};

/// Hidden subcommand with which a node starts itself as a worker of models on the CPU.
pub const CPU_WORKER_COMMAND: &str = "__run-cpu-models";

/// Maximum time for a cancelled run to end.
const CANCEL_TIME_MAX: Duration = Duration::from_secs(10);
/// Maximum number of threads: far more than the sessions of a worker start.
const THREADS_MAX: u64 = 16_384;
/// Maximum number of cancelled runs whose end is watched.
const CANCELLED_MAX: usize = 1_024;

/// Runs a worker: serves the connections that arrive over the socket on standard input, until it
/// closes.
#[must_use]
pub fn cpu_worker_main() -> ExitCode {
    let served = serve();
    if let Err(error) = &served {
        // Standard error, which the node logs, is the only remaining channel.
        eprintln!("a worker of models: {error}");
    }
    end_at_once();
    ExitCode::FAILURE
}

/// Reads control messages. This thread never runs a model, so that the process ends with its node.
fn serve() -> io::Result<()> {
    let start: WorkerSettings = match std::env::args().nth(2) {
        Some(start) => serde_json::from_str(&start)?,
        None => return Err(io::Error::other("it is started by a node")),
    };
    confine(&start)?;
    let control: OwnedFd = io::stdin().as_fd().try_clone_to_owned()?;
    let service = Arc::new(Service::new(start));
    let watch = Watch::start(&service)?;
    while let Some(news) = receive_control(&control)? {
        match news {
            ControlMessage::Connection(connection, files) => attend(&service, connection, files)?,
            ControlMessage::Cancel(run) => {
                service.runs.cancel(run);
                watch.cancelled(run);
            }
        }
    }
    Ok(())
}

/// Confines the process, before it has threads or has read anything from a model.
fn confine(start: &WorkerSettings) -> io::Result<()> {
    let mut missing = confine_process();
    limit(start)?;
    // Before the files of the library's dependencies are out of reach. An error is reported when
    // the runtime is opened.
    let _ = Runtime::preload(&start.library);
    let readable = vec![start.library.clone(), start.folder.clone()];
    missing.extend(confine_access(&Confinement { readable, writable: Vec::new() }));
    match missing.first() {
        Some(missing) if start.require_confinement => {
            Err(io::Error::other(format!("it cannot be confined: {missing}")))
        }
        _ => Ok(()),
    }
}

/// Limits the process's files, threads and memory.
fn limit(start: &WorkerSettings) -> io::Result<()> {
    let limits = [
        (Resource::As, start.memory_bytes_max),
        // The only files that it can write are those of its connections.
        (Resource::Fsize, start.tensor_bytes_max),
        (Resource::Nofile, start.open_files_max),
        // Counted for this user namespace alone, and so without effect on other processes.
        (Resource::Nproc, THREADS_MAX),
        (Resource::Memlock, 0),
        (Resource::Msgqueue, 0),
    ];
    for (resource, bound) in limits {
        // Lower limits of the node stay in force.
        let bound = getrlimit(resource).maximum.map_or(bound, |maximum| maximum.min(bound));
        setrlimit(resource, Rlimit { current: Some(bound), maximum: Some(bound) })?;
    }
    Ok(())
}

/// Thread that ends the process if a cancelled run does not end soon. An operator that computes for
/// long does not notice its cancellation.
struct Watch(SyncSender<(Instant, u64)>);

impl Watch {
    fn start(service: &Arc<Service>) -> io::Result<Self> {
        let (sender, cancelled) = sync_channel::<(Instant, u64)>(CANCELLED_MAX);
        let service = service.clone();
        let watch = move || {
            for (cancelled_at, run) in cancelled {
                std::thread::sleep(CANCEL_TIME_MAX.saturating_sub(cancelled_at.elapsed()));
                if service.runs.is_active(run) {
                    eprintln!("a worker of models: a cancelled run has not ended within {CANCEL_TIME_MAX:?}");
                    end_at_once();
                }
            }
        };
        std::thread::Builder::new().name("cancelled".to_owned()).stack_size(64 << 10).spawn(watch)?;
        Ok(Self(sender))
    }

    fn cancelled(&self, run: u64) {
        // While so many runs wait for their check, one of them ends the process if need be.
        let _ = self.0.try_send((Instant::now(), run));
    }
}

/// Starts a thread for a connection. The node bounds the number of connections.
fn attend(service: &Arc<Service>, connection: ServedConnection, files: ConnectionFiles) -> io::Result<()> {
    let service = service.clone();
    std::thread::Builder::new().name("connection".to_owned()).spawn(move || {
        if let Err(error) = service.attend(connection, &files) {
            eprintln!("a worker of models: {error}");
        }
    })?;
    Ok(())
}

/// State shared by the connections of a worker.
struct Service {
    start: WorkerSettings,
    opened: OnceLock<Opened>,
    models: Mutex<HashMap<u64, Arc<ServedModel>>>,
    sessions: Mutex<HashMap<u64, Arc<OpenSession>>>,
    runs: ActiveRuns,
}

/// The open runtime.
struct Opened {
    runtime: &'static Runtime,
    arena: Arena,
    store: WeightStore,
}

struct ServedModel {
    model: CpuModel,
    signature: Signature,
}

/// An open session. Fields drop in order: the session before its model.
struct OpenSession {
    session: Mutex<Box<dyn Session>>,
    model: Arc<ServedModel>,
}

impl Service {
    fn new(start: WorkerSettings) -> Self {
        let (models, sessions, runs) = Default::default();
        Self { start, opened: OnceLock::new(), models, sessions, runs }
    }

    /// Answers the requests of a connection until it closes.
    fn attend(&self, mut connection: ServedConnection, files: &ConnectionFiles) -> io::Result<()> {
        // The runs need the processors.
        let mut requests = Forecast::sleeping();
        while let Some(request) = connection.receive(&mut requests)? {
            let answer = self
                .answer(request, files)
                .unwrap_or_else(|error| CpuWorkerReply::Failed(WireError::from_error(&error)));
            connection.reply(&answer)?;
        }
        Ok(())
    }

    fn answer(
        &self,
        request: CpuWorkerRequest,
        files: &ConnectionFiles,
    ) -> Result<CpuWorkerReply, InferenceError> {
        match request {
            CpuWorkerRequest::Open => self.open()?,
            CpuWorkerRequest::Load { model, id, prepared } => self.load(model, id, prepared)?,
            CpuWorkerRequest::Unload { model } => _ = self.models.lock().remove(&model),
            CpuWorkerRequest::Session { model, session, threads } => self.session(model, session, threads)?,
            CpuWorkerRequest::Forget { session } => {
                let forgotten = self.sessions.lock().remove(&session);
                drop(forgotten);
            }
            CpuWorkerRequest::Run { session, run, inputs, outputs } => {
                return self.run(session, run, &inputs, outputs, files);
            }
            CpuWorkerRequest::Trim => {
                let opened = self.opened()?;
                opened.arena.trim();
                opened.runtime.trim();
                crate::memory::release_free();
            }
            CpuWorkerRequest::Memory => {
                return Ok(CpuWorkerReply::Memory { bytes: self.opened()?.runtime.run_memory_bytes() });
            }
        }
        Ok(CpuWorkerReply::Done)
    }

    fn open(&self) -> Result<(), InferenceError> {
        let runtime = Runtime::open(&self.start.library, self.start.run_memory_bytes_max)?;
        let arena = Arena::new(self.start.tensor_bytes_max);
        let opened = self.opened.set(Opened { runtime, arena, store: WeightStore::default() });
        opened.map_err(|_| InferenceError::Run("the worker is open already".into()))
    }

    fn load(&self, number: u64, id: ModelId, prepared: Prepared) -> Result<(), InferenceError> {
        let Opened { runtime, arena, store } = self.opened()?;
        let signature = prepared.signature.clone();
        let source = ModelSource {
            key: ModelKey { id, generation: number },
            prepared: Arc::new(prepared),
            blobs: self.start.folder.clone(),
            slots: None,
            batching: Batching::default(),
            meter: Meter::default(),
        };
        let model = CpuModel::load(runtime, &source, arena, store)?;
        self.models.lock().insert(number, Arc::new(ServedModel { model, signature }));
        Ok(())
    }

    fn session(&self, model: u64, number: u64, threads: u32) -> Result<(), InferenceError> {
        let model = self.models.lock().get(&model).cloned().ok_or_else(unknown)?;
        let session = Mutex::new(model.model.session(threads)?);
        self.sessions.lock().insert(number, Arc::new(OpenSession { session, model }));
        Ok(())
    }

    fn run(
        &self,
        session: u64,
        run: u64,
        inputs: &[TensorLocation],
        outputs: Vec<usize>,
        files: &ConnectionFiles,
    ) -> Result<CpuWorkerReply, InferenceError> {
        let arena = &self.opened()?.arena;
        let session = self.sessions.lock().get(&session).cloned().ok_or_else(unknown)?;
        let run = self.runs.begin(run);
        let ports = &session.model.signature.inputs;
        let read = |(part, port): (&TensorLocation, &weir_types::Port)| {
            read_tensor(port.datatype, part, &files.memory, arena)
        };
        let inputs = inputs.iter().zip(ports).map(read).collect::<Result<_, _>>()?;
        let job = Job { inputs, outputs };
        let made = session.session.lock().run(&job, run.interrupt())?;
        // The inputs have been copied, so the outputs can take their place.
        drop(job);
        let (outputs, _) = write_tensors(&made, &files.memory, None)?;
        Ok(CpuWorkerReply::Ran { outputs })
    }

    fn opened(&self) -> Result<&Opened, InferenceError> {
        self.opened.get().ok_or_else(|| InferenceError::Unavailable("the worker is not open yet".into()))
    }
}

fn unknown() -> InferenceError {
    InferenceError::Unavailable("the worker does not know it".into())
}
