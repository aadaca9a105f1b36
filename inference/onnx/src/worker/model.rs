//! A model in a worker, its sessions and their runs.

use super::host::WorkerHost;
use super::message::{CpuWorkerReply, CpuWorkerRequest};
use super::{CALL_TIME_MAX, Worker, Workers};
use crate::processor::processor;
use crate::store::{FamilyMember, WeightStore};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use weir_device::Arena;
use weir_inference::{
    Footprint, InferenceError, Interrupt, Job, Model, ModelKey, ModelSource, Session, Tensor,
};
use weir_types::ElementType;
use weir_worker::{read_tensor, write_tensors};

/// Minimum rate at which weights are read from disk and checked, in bytes per second. A slower
/// worker is assumed to hang.
const LOAD_BYTES_PER_S_MIN: u64 = 20 << 20;

/// Loaded model.
pub(super) struct CpuWorkerModel(Arc<SharedModel>);

/// State shared by the model's sessions.
struct SharedModel {
    workers: Arc<Workers>,
    source: ModelSource,
    outputs: Vec<ElementType>,
    arena: Arena,
    footprint: Footprint,
    session_bytes: u64,
    /// The model's share of its family's packed weights, for the footprint.
    _member: FamilyMember,
    /// Where the model was loaded last. Its worker may have ended.
    place: Mutex<Option<WorkerCopy>>,
}

/// A model's place in a worker. Fields drop in order: the worker before its host.
#[derive(Clone)]
struct WorkerCopy {
    worker: Arc<Worker>,
    /// Number of the model in the worker.
    number: u64,
    /// Kept alive by its models.
    _host: Arc<WorkerHost>,
}

impl CpuWorkerModel {
    /// Loads the model in a worker. Blocks.
    pub(super) fn load(
        workers: &Arc<Workers>,
        source: &ModelSource,
        arena: &Arena,
        store: &WeightStore,
    ) -> Result<Self, InferenceError> {
        let variant = source.prepared.variant_for(&processor());
        let variant = variant.ok_or_else(|| InferenceError::Load {
            model: source.id().clone(),
            why: "it was not prepared for this processor".into(),
        })?;
        let member = store.join(&source.id().tenant, variant);
        let loaded = SharedModel {
            workers: workers.clone(),
            outputs: source.prepared.signature.outputs.iter().map(|port| port.datatype).collect(),
            arena: arena.clone(),
            footprint: variant.footprint(member.family()),
            session_bytes: variant.session_bytes.unwrap_or_default(),
            _member: member,
            place: Mutex::new(None),
            source: source.clone(),
        };
        loaded.ready()?;
        Ok(Self(Arc::new(loaded)))
    }
}

impl Model for CpuWorkerModel {
    fn footprint(&self) -> Footprint {
        self.0.footprint.clone()
    }

    fn session_bytes(&self) -> u64 {
        self.0.session_bytes
    }

    fn session(&self, threads: u32) -> Result<Box<dyn Session>, InferenceError> {
        let mut session = CpuWorkerSession { model: self.0.clone(), threads, open: None };
        session.ready()?;
        Ok(Box::new(session))
    }
}

impl SharedModel {
    fn key(&self) -> &ModelKey {
        &self.source.key
    }

    /// The model's place in a running worker. After the end of its worker, loads the model again.
    fn ready(&self) -> Result<WorkerCopy, InferenceError> {
        if let Some(why) = self.workers.quarantine(self.key()) {
            return Err(InferenceError::Quarantined { model: self.source.id().clone(), why });
        }
        let mut place = self.place.lock();
        if let Some(place) = place.as_ref().filter(|place| !place.worker.has_ended()) {
            return Ok(place.clone());
        }
        // The former place keeps its host, which knows how often its workers ended, until the next
        // worker has started.
        let loaded = self.load()?;
        *place = Some(loaded.clone());
        Ok(loaded)
    }

    fn load(&self) -> Result<WorkerCopy, InferenceError> {
        let host = self.workers.host(self.key());
        let worker = host.worker()?;
        let ModelSource { prepared, blobs, .. } = &self.source;
        let linked = worker.folder.add(prepared, blobs);
        linked.map_err(|error| InferenceError::Load {
            model: self.source.id().clone(),
            why: format!("its files cannot be linked: {error}").into(),
        })?;
        let place = WorkerCopy { number: worker.number(), worker, _host: host };
        let (active, _) = place.worker.begin(self.key());
        let request = CpuWorkerRequest::Load {
            model: place.number,
            id: self.source.id().clone(),
            prepared: (**prepared).clone(),
        };
        let asked = place.worker.request(&request, self.load_time_max());
        drop(active);
        asked.inspect_err(|_| place.worker.folder.remove(prepared))?;
        Ok(place)
    }

    fn load_time_max(&self) -> Duration {
        let seconds = self.source.prepared.weight_bytes / LOAD_BYTES_PER_S_MIN;
        CALL_TIME_MAX.saturating_add(Duration::from_secs(seconds))
    }
}

impl Drop for SharedModel {
    fn drop(&mut self) {
        if let Some(place) = self.place.lock().take() {
            place.worker.release(&CpuWorkerRequest::Unload { model: place.number });
            place.worker.folder.remove(&self.source.prepared);
        }
    }
}

struct CpuWorkerSession {
    model: Arc<SharedModel>,
    threads: u32,
    /// The session in a worker; `None` if that worker has ended.
    open: Option<Open>,
}

/// A session in a worker.
struct Open {
    place: WorkerCopy,
    number: u64,
}

impl CpuWorkerSession {
    /// Opens the session in the model's worker, if it is not open there.
    fn ready(&mut self) -> Result<(), InferenceError> {
        let place = self.model.ready()?;
        if self.open.as_ref().is_some_and(|open| Arc::ptr_eq(&open.place.worker, &place.worker)) {
            return Ok(());
        }
        // The former worker has ended, with its sessions.
        self.open = None;
        let session = place.worker.number();
        let request = CpuWorkerRequest::Session { model: place.number, session, threads: self.threads };
        let (active, _) = place.worker.begin(self.model.key());
        let asked = place.worker.request(&request, self.model.load_time_max());
        drop(active);
        asked?;
        self.open = Some(Open { place, number: session });
        Ok(())
    }
}

impl Session for CpuWorkerSession {
    fn run(&mut self, job: &Job, interrupt: &Interrupt) -> Result<Vec<Tensor>, InferenceError> {
        self.ready()?;
        let Some(Open { place, number }) = &self.open else {
            return Err(InferenceError::Cancelled);
        };
        let worker = &place.worker;
        let key = self.model.key();
        let mut line = worker.line(interrupt)?;
        let connection = line.connection().map_err(|error| worker.failed(error, None))?;
        let (mut active, run) = worker.begin(key);
        let cancelled = Arc::downgrade(worker);
        let waker = connection.waker();
        let _hook = interrupt.hook(move || {
            if let Some(worker) = cancelled.upgrade() {
                worker.control.cancel(run);
            }
            waker.wake();
        });
        // A pending reply is that of another run, perhaps of another model.
        connection.settle(interrupt).map_err(|error| worker.failed(error, None))?;
        let (inputs, _) = write_tensors(&job.inputs, &connection.memory, None)?;
        let request = CpuWorkerRequest::Run { session: *number, run, inputs, outputs: job.outputs.clone() };
        let time_max = worker.shared.config.run_time_max;
        let answered = connection.call(&request, &mut active, time_max, interrupt);
        let answer = worker.understand(answered, Some(key))?;
        drop(active);
        let CpuWorkerReply::Ran { outputs } = answer else {
            return Err(worker.senseless(&answer));
        };
        if outputs.len() != job.outputs.len() {
            return Err(worker.senseless(&format!("{} outputs of {}", outputs.len(), job.outputs.len())));
        }
        worker.note_ran(key);
        let missing = || InferenceError::Run("there is no such output".into());
        let tensors = job.outputs.iter().zip(&outputs).map(|(position, part)| {
            let element_type = self.model.outputs.get(*position).copied().ok_or_else(missing)?;
            read_tensor(element_type, part, &connection.memory, &self.model.arena)
        });
        tensors.collect()
    }
}

impl Drop for CpuWorkerSession {
    fn drop(&mut self) {
        if let Some(Open { place, number }) = self.open.take() {
            place.worker.release(&CpuWorkerRequest::Forget { session: number });
        }
    }
}
